//! Benchmark of the rules: verdicts per second on one core.
//!
//! ```text
//! cargo run --release --example rule_benchmark [SECONDS]
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::json;
use setpoint::config::Config;
use setpoint::engines::vllm::FLAGS;
use setpoint::facts::{Device, EngineVersion, ModelShape};
use setpoint::rule::{Facts, check};
use setpoint::stats::to_f64;

/// From one flag to a dozen, valid and invalid.
const LINES: [&str; 10] = [
    "--max-num-seqs 64",
    "--max-num-batched-tokens 100 --max-num-seqs 200",
    "--max-model-len 2048 --max-num-batched-tokens 8k --no-enable-chunked-prefill",
    "--gpu-memory-utilization 0.85 --max-num-seqs 256 --enable-prefix-caching --block-size 32",
    "--tensor-parallel-size 3 --enforce-eager",
    "--max-num-seqs many --swap-space 4",
    "--kv-cache-dtype fp8 --dtype bfloat16 --scheduling-policy priority --stream-interval 4 --async-scheduling",
    "--compilation-config {\"mode\":3,\"cudagraph_mode\":\"PIECEWISE\"} --max-num-seqs 128",
    "--speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":3} --max-num-batched-tokens 4096",
    "--tensor-parallel-size 2 --pipeline-parallel-size 2 --max-model-len 4096 --max-num-seqs 128 --max-num-batched-tokens \
     8192 --gpu-memory-utilization 0.9 --enable-chunked-prefill --no-enable-prefix-caching --kv-cache-dtype auto \
     --performance-mode throughput --optimization-level 2 --cudagraph-capture-sizes 1 2 4 8",
];

/// Returns the calls per second, measured for at least this duration.
fn rate(at_least: Duration, mut all_lines: impl FnMut()) -> f64 {
    let (began, mut rounds) = (Instant::now(), 0_u32);
    while began.elapsed() < at_least {
        for _ in 0..100 {
            all_lines();
        }
        rounds += 100;
    }
    f64::from(rounds) * to_f64(LINES.len()) / began.elapsed().as_secs_f64()
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(2.0), |text| text.parse())?;
    let at_least = Duration::try_from_secs_f64(seconds)?;
    let model = ModelShape::from_json(&json!({
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 8192, "vocab_size": 128_256, "intermediate_size": 14_336, "dtype": "bfloat16"
    }));
    let version = EngineVersion::new(0, 32, 0);
    let table = FLAGS.for_version(version);
    let lists: Vec<Vec<String>> =
        LINES.iter().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect();
    let configs: Vec<Config> = lists.iter().map(|list| table.parse_lenient(list).0).collect();
    for (name, device) in [("CPU", Device::Cpu), ("80 GiB GPU", Device::gpu_of(80 << 30))] {
        let facts = Facts::new(setpoint::engines::vllm::VLLM_RULES, &model, version, device);
        let alone = rate(at_least, || {
            for config in &configs {
                black_box(check(black_box(config), &facts));
            }
        });
        let parsed = rate(at_least, || {
            for list in &lists {
                let (config, errors) = table.parse_lenient(black_box(list));
                black_box((check(&config, &facts), errors));
            }
        });
        println!("{name:<12} {alone:>10.0} verdicts/s alone  {parsed:>10.0} verdicts/s with parsing, on one core");
    }
    Ok(())
}
