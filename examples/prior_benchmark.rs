//! Benchmark of the twin's prior for a space, in wall-clock seconds and in seconds of one core.
//!
//! ```text
//! cargo run --release --example prior_benchmark [STUDY.toml]...
//! ```
//!
//! Without studies it uses the quickstart, and a context with a very large model and load. That is 70B on eight H100,
//! 256 users, prompts of 3,072 tokens and replies of 256.

use std::path::Path;
use std::time::Instant;

use setpoint::config::Config;
use setpoint::execution::detect;
use setpoint::job::Job;
use setpoint::objective::Goal;
use setpoint::prior::{DeviceContext, LoadContext, ModelContext, OptimizeContext, context_prior};
use setpoint::sampler::{ObjectiveTarget, SamplerPrior, SearchAim};
use setpoint::space::{Domain, IntScale, Parameter, Space};
use setpoint::stats::to_f64;
use setpoint::tuner::read_priors;
use setpoint::twin::Calibration;

/// Returns the processor time of this process so far.
fn processor_s() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = procfs::process::Process::myself()?.stat()?;
    Ok(to_f64(stat.utime + stat.stime) / to_f64(procfs::ticks_per_second()))
}

#[expect(clippy::print_stdout, reason = "it is what the program is for")]
fn told(
    name: &str,
    ask: impl FnOnce() -> Result<SamplerPrior, Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (clock, processor) = (Instant::now(), processor_s()?);
    let prior = ask()?;
    let (clock_s, processor_s) = (clock.elapsed().as_secs_f64(), processor_s()? - processor);
    println!("{name}: {} configurations in {clock_s:.2} s, {processor_s:.2} s of processors", prior.points().len());
    Ok(())
}

/// Measures the twin's prior of a study, computed as in `tune`.
fn study(file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let job = Job::read(file)?;
    let installed = runtime.block_on(detect(&job));
    let search = job.search(installed.version, installed.device, installed.host);
    told(&file.display().to_string(), || {
        let (priors, notes) = runtime.block_on(read_priors(&job, &installed, None, &search, &Calibration::none()))?;
        priors.into_iter().next().ok_or_else(|| notes.join("\n").into())
    })
}

fn large() -> Result<(), Box<dyn std::error::Error>> {
    let parameter =
        |name: &str, domain| Parameter { name: name.to_owned(), domain, conditions: Vec::new(), help: None };
    let parameters = vec![
        parameter("tensor_parallel_size", Domain::int(2, 8, IntScale::PowerOfTwo, 1)),
        parameter("max_num_seqs", Domain::int(8, 1024, IntScale::Log, 8)),
        parameter("max_num_batched_tokens", Domain::int(512, 32_768, IntScale::PowerOfTwo, 1)),
        parameter("gpu_memory_utilization", Domain::Float { low: 0.7, high: 0.95, log: false }),
        parameter("enable_chunked_prefill", Domain::Bool),
        parameter("enable_prefix_caching", Domain::Bool),
    ];
    let space = Space { parameters, fixed: Config::new() };
    let target = ObjectiveTarget { name: "throughput".to_owned(), goal: Goal::Maximize };
    let aim = SearchAim { objectives: vec![target], constraints: vec!["ttft_p99".to_owned(), "tpot_p99".to_owned()] };
    let model = ModelContext {
        num_hidden_layers: Some(80),
        hidden_size: Some(8192),
        intermediate_size: Some(28_672),
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        vocab_size: Some(128_256),
        max_model_len: Some(8192),
        ..ModelContext::default()
    };
    let load = LoadContext {
        input_tokens: Some(3072.0),
        output_tokens: Some(256.0),
        concurrency: Some(256),
        arrival: Some("closed".to_owned()),
        ..LoadContext::default()
    };
    let context = OptimizeContext {
        model,
        device: DeviceContext { name: Some("h100".to_owned()), count: Some(8), memory_bytes: None },
        load,
        limits_s: [("ttft_p99".to_owned(), 4.0), ("tpot_p99".to_owned(), 0.05)].into_iter().collect(),
        ..OptimizeContext::default()
    };
    told("70B on 8 H100, 256 users", || Ok(context_prior(&context, &space, &aim, &|_| true, 1)?.prior))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        study(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart.toml"))?;
        return large();
    }
    files.iter().try_for_each(|file| study(Path::new(file)))
}
