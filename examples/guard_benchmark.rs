//! Benchmark of the guard: does it find a flag that changes the replies, and does it pass a flag that does not?
//!
//! ```text
//! cargo build --release
//! cargo run --release --example guard_benchmark -- target/release/setpoint [SEEDS] [NOISE] [SHARE]
//! ```
//!
//! For each seed two studies of the simulated engine search over an 8-bit KV cache, which is faster there. `NOISE` of the
//! replies diverge by chance in every launch. In the first study the 8-bit cache also changes the replies to `SHARE` of
//! the prompts. A seed of the first study counts if every launch with this cache is found and none wins, a seed of the
//! second one if no launch is found.

#![expect(clippy::print_stdout, reason = "the output of a benchmark")]

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value as Json;

type Failure = Box<dyn Error>;

/// The verdicts on the launches of one study with the 8-bit cache.
#[derive(Debug, Default)]
struct StudyVerdicts {
    launches: u32,
    differs: u32,
    agrees: u32,
    /// Lowest and highest agreement with the baseline.
    agreements: Vec<f64>,
    wins: bool,
}

fn study_text(seed: u32, noise: f64, lossy: Option<f64>) -> String {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
    let lossy = lossy.map_or_else(String::new, |share| format!(", \"--sim-lossy\", \"kv-cache-dtype=fp8:{share}\""));
    format!(
        r#"
[study]
name = "guard"
seed = {seed}
sampler = "sobol"

[engine]
kind = "sim"
args = ["--sim-time-scale", "200", "--sim-startup-s", "0.02", "--sim-seed", "{seed}", "--sim-greedy-noise", "{noise}",
        "--sim-fault", "long-step:seconds=0.2,request=12,busy=no", "--sim-fault-if", "kv-cache-dtype="{lossy}]
startup_timeout = "20s"

[model]
path = "{}"

[space]
fixed = {{ max-model-len = 2048 }}
parameters.kv-cache-dtype = {{ kind = "categorical", choices = ["auto", "fp8"] }}
parameters.max-num-seqs = {{ kind = "int", low = 8, high = 64, scale = "pow2" }}

[workload]
kind = "random"
input_len = 32
output_len = 8

[load]
concurrency = 8
requests = 16
warmup = 4

[objective]
maximize = "output_throughput"

[budget]
trials = 10
"#,
        model.display()
    )
}

/// Runs the program in a directory and returns its standard output.
#[expect(clippy::disallowed_methods, reason = "the program under test")]
fn output(program: &Path, directory: &Path, arguments: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env_remove("SETPOINT_DB").stdin(Stdio::null());
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs a study and reads its verdicts.
fn run(program: &Path, text: &str) -> Result<StudyVerdicts, Failure> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("study.toml"), text)?;
    let ask = |arguments: &[&str]| output(program, directory.path(), arguments);
    ask(&["tune", "study.toml"])?;
    let json = |arguments: &[&str]| -> Result<Json, Failure> { Ok(serde_json::from_str(&ask(arguments)?)?) };
    let mut verdicts = StudyVerdicts::default();
    for trial in json(&["trials", "--format", "json"])?.as_array().into_iter().flatten() {
        if trial["config"]["kv-cache-dtype"] != "fp8" {
            continue;
        }
        let shown = json(&["show", &trial["trial"].to_string(), "--format", "json"])?;
        let comparison = &shown["answers"]["comparison"];
        verdicts.launches += 1;
        verdicts.differs += u32::from(comparison["verdict"] == "differs");
        verdicts.agrees += u32::from(comparison["verdict"] == "agrees");
        verdicts.agreements.extend(comparison["agreement"].as_f64());
    }
    verdicts.wins = json(&["best", "--format", "json"])?["config"]["kv-cache-dtype"] == "fp8";
    Ok(verdicts)
}

/// Returns the lowest and the highest value as text.
fn range(values: &[f64]) -> String {
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!("{lowest:.2} to {highest:.2}")
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let program = arguments.next().ok_or("name the program, for instance target/release/setpoint")?;
    let program = std::fs::canonicalize(program)?;
    let seeds: u32 = arguments.next().map_or(Ok(20), |text| text.parse())?;
    let noise: f64 = arguments.next().map_or(Ok(0.05), |text| text.parse())?;
    let share: f64 = arguments.next().map_or(Ok(0.3), |text| text.parse())?;
    println!("{seeds} seeds; {noise} of the replies diverge by chance; the lossy flag changes {share} of the prompts");
    let (mut found, mut passed) = (0, 0);
    let mut sums = [StudyVerdicts::default(), StudyVerdicts::default()];
    for seed in 1..=seeds {
        let lossy = run(&program, &study_text(seed, noise, Some(share)))?;
        let harmless = run(&program, &study_text(seed, noise, None))?;
        let is_found = lossy.launches > 0 && lossy.differs == lossy.launches && !lossy.wins;
        let is_passed = harmless.launches > 0 && harmless.differs == 0;
        if !is_found || !is_passed {
            println!("seed {seed}: lossy {lossy:?}, harmless {harmless:?}");
        }
        found += u32::from(is_found);
        passed += u32::from(is_passed);
        for (sum, verdicts) in sums.iter_mut().zip([lossy, harmless]) {
            sum.launches += verdicts.launches;
            sum.differs += verdicts.differs;
            sum.agrees += verdicts.agrees;
            sum.agreements.extend(verdicts.agreements);
        }
    }
    for (name, sum) in ["lossy", "harmless"].into_iter().zip(&sums) {
        println!(
            "{name}: {} launches, {} differ, {} agree, agreement {}",
            sum.launches,
            sum.differs,
            sum.agrees,
            range(&sum.agreements)
        );
    }
    println!("lossy flag found: {found} of {seeds} seeds; harmless flag passed: {passed} of {seeds} seeds");
    Ok(())
}
