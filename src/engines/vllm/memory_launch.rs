//! The flags and variables of vLLM that change how a launch uses memory.

use std::collections::BTreeMap;

use crate::config::{Config, ResolvedConfig};
use crate::facts::EngineVersion;
use crate::memory::{LaunchTarget, MemoryLaunch};
use crate::stats::gib_to_bytes;

/// Returns the properties of a launch that decide its memory. `env` are the variables of the launch.
pub(in crate::engines::vllm) fn read_launch(
    target: LaunchTarget,
    resolved: ResolvedConfig,
    config: &Config,
    env: &BTreeMap<String, String>,
) -> MemoryLaunch {
    let since = |minor| target.version >= EngineVersion::new(0, minor, 0);
    let number = |name: &str| config.get_i64(name).and_then(|value| u64::try_from(value).ok());
    let on = |name: &str| config.get_bool(name);
    // On a CPU the variable replaces the share of memory. Up to 0.12 it has a default of 4 GiB.
    let space = env.get("VLLM_CPU_KVCACHE_SPACE").and_then(|text| text.trim().parse::<u64>().ok());
    let space = space.filter(|gib| *gib > 0).or_else(|| (!since(13)).then_some(4)).filter(|_| target.cpu);
    let cache_dtype = config.get_str("kv-cache-dtype").unwrap_or("auto");
    let eager = on("enforce-eager").unwrap_or(false) || level(config) == Some(0) && !resolved.v0;
    let asynchronous = !target.cpu && on("async-scheduling").unwrap_or(resolved.pipeline_parallel_size <= 1);
    MemoryLaunch {
        target,
        resolved,
        eager,
        compiled: if resolved.v0 { level(config).is_some_and(|level| level > 0) } else { !eager },
        cache_dtype_bytes: element_bytes(cache_dtype),
        unknown_cache_dtype: cache_dtype != "auto" && element_bytes(cache_dtype).is_none(),
        data_parallel_size: number("data-parallel-size").unwrap_or(1).max(1),
        deepseek_cache: cache_dtype == "fp8_ds_mla",
        dtype_bytes: config.get_str("dtype").and_then(element_bytes),
        quantization: config.get_str("quantization").map(str::to_lowercase),
        // The variable takes precedence over the flag.
        cache_memory: space
            .map(|gib| gib.saturating_mul(1 << 30))
            .or_else(|| number("kv-cache-memory-bytes").filter(|bytes| *bytes > 0)),
        blocks: number("num-gpu-blocks-override"),
        // Up to 0.9 every layer counts as a full-attention layer.
        hybrid: !resolved.v0 && since(10) && !on("disable-hybrid-kv-cache-manager").unwrap_or(false),
        // `VllmConfig.max_in_flight_tokens` was added after 0.20.
        concurrent_batches: if since(32) && asynchronous { 2 } else { 1 },
        context_parallel_size: number("decode-context-parallel-size")
            .unwrap_or(1)
            .saturating_mul(number("prefill-context-parallel-size").filter(|_| since(12)).unwrap_or(1))
            .max(1),
        estimates_graphs: env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS").is_none_or(|value| value != "0"),
        offloaded: config.get_f64("cpu-offload-gb").filter(|gib| gib.is_finite() && *gib > 0.0).map_or(0, gib_to_bytes),
    }
}

/// Returns the level in `compilation-config`, which is a number or a JSON object with `level` or `mode`. At level 0
/// nothing is compiled.
fn level(config: &Config) -> Option<u64> {
    if let Some(level) = config.get_i64("compilation-config") {
        return u64::try_from(level).ok();
    }
    let text = config.get_str("compilation-config")?;
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    json.as_u64().or_else(|| json.get("level").or_else(|| json.get("mode"))?.as_u64())
}

/// Returns the size in bytes of an element of a named type. `None` for `auto` and for unknown types.
fn element_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "float32" | "float" => Some(4),
        "float16" | "half" | "bfloat16" => Some(2),
        text if text.starts_with("fp8") || text.starts_with("int8") => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::Settings;

    fn launch(cpu: bool, config: &Config, space: Option<&str>) -> MemoryLaunch {
        let version = EngineVersion::V0_32;
        let env = space.map(|gib| ("VLLM_CPU_KVCACHE_SPACE".to_owned(), gib.to_owned())).into_iter().collect();
        read_launch(LaunchTarget { version, cpu, device_memory: None }, Settings::default().resolved, config, &env)
    }

    #[test]
    fn the_cache_of_a_cpu_is_set_by_a_variable_and_any_cache_by_a_flag() {
        let none = Config::new();
        assert_eq!(launch(true, &none, Some("2")).cache_memory, Some(2 << 30));
        assert_eq!(launch(true, &none, None).cache_memory, None);
        assert_eq!(launch(false, &none, Some("2")).cache_memory, None);
        let flag = Config::new().with("kv-cache-memory-bytes", 7_i64);
        let sizes = [(true, Some("2")), (true, None), (false, Some("2"))];
        let sizes = sizes.map(|(cpu, space)| launch(cpu, &flag, space).cache_memory);
        assert_eq!(sizes, [Some(2 << 30), Some(7), Some(7)], "as seen with the real 0.32.0");
    }

    #[test]
    fn types_of_the_cache_and_levels_of_compilation_are_read() {
        let config = Config::new().with("kv-cache-dtype", "fp8_e5m2").with("compilation-config", "{\"level\": 0}");
        let launch = launch(false, &config, None);
        assert_eq!((launch.cache_dtype_bytes, launch.eager, launch.compiled), (Some(1), true, false));
        assert!(!launch.unknown_cache_dtype);
        let strange = Config::new().with("kv-cache-dtype", "nvfp4");
        assert!(self::launch(false, &strange, None).unknown_cache_dtype);
    }
}
