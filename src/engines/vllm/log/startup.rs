//! Memory observations in a start's log. Sources: vLLM's own lines in the releases of `flags/flags.json`, and logs of
//! 0.9.0.1.

use crate::stats::f64_to_u64;
use crate::trial::MemoryObservation;

/// Reads every line. If several workers report numbers, the tightest counts: the most weights and the least cache.
#[must_use]
pub(super) fn read_memory(log: &str) -> MemoryObservation {
    let mut seen = MemoryObservation::default();
    for line in log.lines() {
        let after = |text: &str| number_after(line, text);
        let size = |text: &str| after(text).filter(|number| *number >= 0.0);
        // V0, then V1.
        let weights = size("Loading model weights took ").or_else(|| size("Model loading took "));
        update(&mut seen.weights_gib, weights, f64::max);
        // V1 from 0.10, V0, and the refusal of a length. Before 0.10, the refusal is V1's only line with this number.
        let cache = after("Available KV cache memory: ")
            .or_else(|| after("the rest of the memory reserved for KV Cache is "))
            .or_else(|| after("larger than the available KV cache memory (").filter(|_| seen.cache_gib.is_none()));
        update(&mut seen.cache_gib, cache, f64::min);
        let blocks = size("num_gpu_blocks is: ").or_else(|| v0_blocks(line)).map(f64_to_u64);
        update(&mut seen.blocks, blocks, u64::min);
        // `GPU`, and from 0.32 the device's name.
        update(&mut seen.tokens, size(" KV cache size: ").map(f64_to_u64), u64::min);
        let length = size("Maximum concurrency for ");
        update(&mut seen.max_model_len, length.map(f64_to_u64), u64::min);
        update(&mut seen.concurrency, length.and_then(|_| size(" tokens per request: ")), f64::min);
        let graphs = line.contains("Graph capturing finished in ").then(|| after(" took ")).flatten();
        update(&mut seen.graphs_gib, graphs, f64::max);
        let init = line.contains("init engine (").then(|| size(") took ")).flatten();
        update(&mut seen.init_s, init, f64::max);
        update(&mut seen.largest_length, size("estimated maximum model length is ").map(f64_to_u64), u64::min);
    }
    seen
}

fn update<T: Copy>(slot: &mut Option<T>, value: Option<T>, choose: fn(T, T) -> T) {
    if let Some(value) = value {
        *slot = Some(slot.map_or(value, |before| choose(before, value)));
    }
}

/// Returns N in `# GPU blocks: N, # CPU blocks: M`. Late releases of V0 write the device's name in lowercase letters.
fn v0_blocks(line: &str) -> Option<f64> {
    if !line.contains("# CPU blocks: ") {
        return None;
    }
    ["# GPU blocks: ", "# cuda blocks: ", "# cpu blocks: ", "# rocm blocks: "]
        .into_iter()
        .find_map(|text| number_after(line, text))
}

/// Returns the number after a text. Commas between thousands are removed.
fn number_after(line: &str, text: &str) -> Option<f64> {
    let rest = &line[line.find(text)? + text.len()..];
    let end = rest.find(|c: char| !(c.is_ascii_digit() || "-.,".contains(c))).unwrap_or(rest.len());
    let digits = rest[..end].trim_end_matches(['.', ',']).replace(',', "");
    digits.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_of_v1_in_0_9_is_read() {
        let log = "\
INFO 07-22 20:00:29 [gpu_model_runner.py:1549] Model loading took 14.9889 GiB and 5.413280 seconds
INFO 07-22 20:00:41 [kv_cache_utils.py:637] GPU KV cache size: 191,328 tokens
INFO 07-22 20:00:41 [kv_cache_utils.py:640] Maximum concurrency for 131,072 tokens per request: 1.46x
INFO 07-22 20:01:01 [gpu_model_runner.py:1933] Graph capturing finished in 20 secs, took 0.52 GiB
INFO 07-22 20:01:01 [core.py:167] init engine (profile, create kv cache, warmup model) took 31.72 seconds
INFO 07-22 20:01:02 [loggers.py:134] vllm cache_config_info with initialization after num_gpu_blocks is: 11958";
        let expected = MemoryObservation {
            weights_gib: Some(14.9889),
            cache_gib: None,
            blocks: Some(11_958),
            tokens: Some(191_328),
            graphs_gib: Some(0.52),
            concurrency: Some(1.46),
            max_model_len: Some(131_072),
            largest_length: None,
            init_s: Some(31.72),
        };
        assert_eq!(read_memory(log), expected);
    }

    #[test]
    fn a_start_of_v0_is_read() {
        let log = "\
INFO 07-22 20:37:31 [worker.py:291] model weights take 14.99GiB; non_torch_memory takes 0.08GiB; PyTorch activation peak memory takes 1.27GiB; the rest of the memory reserved for KV Cache is 23.72GiB.
INFO 07-22 20:37:31 [executor_base.py:112] # cuda blocks: 24292, # CPU blocks: 4096";
        let seen = read_memory(log);
        assert_eq!((seen.cache_gib, seen.blocks), (Some(23.72), Some(24_292)));
        let old = read_memory(
            "INFO 11-20 model_runner.py:1067] Loading model weights took 14.9595 GB\n\
            INFO 11-20 gpu_executor.py:122] # GPU blocks: 27886, # CPU blocks: 2048",
        );
        assert_eq!((old.weights_gib, old.blocks), (Some(14.9595), Some(27_886)));
    }

    #[test]
    fn a_start_of_0_32_on_a_cpu_is_read() {
        let log = "(EngineCore pid=9) INFO 11-20 21:20:01 [kv_cache_utils.py:2321] CPU KV cache size: 524,288 tokens, \
                   Maximum concurrency for 1,024 tokens per request: 512.00x\n\
                   (EngineCore pid=9) INFO 11-20 21:20:09 [core.py:301] init engine (profile, create kv cache, \
                   warmup model) took 12.31 s (compilation: 0.00 s)";
        let seen = read_memory(log);
        assert_eq!((seen.tokens, seen.concurrency, seen.max_model_len), (Some(524_288), Some(512.0), Some(1024)));
        assert_eq!(seen.init_s, Some(12.31));
    }

    #[test]
    fn the_log_of_a_refused_length_contains_the_longest_that_fits() {
        let log = "(EngineCore pid=9) ERROR 11-20 [core.py:1510] ValueError: To serve at least one request with the \
                   model's max seq len (4096), (0.01 GiB KV cache is needed, which is larger than the available KV cache \
                   memory (-1.44 GiB). Based on the available memory, the estimated maximum model length is 896. Try";
        let seen = read_memory(log);
        assert_eq!((seen.cache_gib, seen.largest_length), (Some(-1.44), Some(896)));
        assert!(seen.is_useful());
    }

    #[test]
    fn the_worker_with_the_least_memory_counts_and_an_empty_log_has_no_observation() {
        let log = "Available KV cache memory: 30.10 GiB\nAvailable KV cache memory: 29.90 GiB\n\
                   Model loading took 15.0 GiB memory and 3.1 seconds\nModel loading took 15.2 GiB memory and 3.1 seconds";
        let seen = read_memory(log);
        assert_eq!((seen.cache_gib, seen.weights_gib), (Some(29.9), Some(15.2)));
        assert!(!read_memory("Model loading took ages\n# GPU blocks: many").is_useful());
    }
}
