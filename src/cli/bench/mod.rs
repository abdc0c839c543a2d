//! `bench`: the load generator alone, against any server of OpenAI's interface.

mod arguments;
mod drive;
mod place;
mod plan;
mod progress;
mod record;
mod target;

use std::sync::Arc;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::failure::{Failure, INTERRUPTED, NOT_VALID, USAGE};
use super::output::print;
use super::Global;
use crate::load::{Arrival, End, Plan, Run, Target};
use crate::metrics::summarize;
use crate::report::{BENCH_FORMATS, Benchmark, Runs, benchmark_json};
use crate::trial::Measurement;
use crate::workload::Workload;
use arguments::{JudgeArgs, LoadArgs, OutputArgs, ServerArgs};
use drive::Driven;
use place::Place;
use progress::Display;

/// Asks a running server and reports throughput and latencies as `vllm bench serve` does.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Standard output has the results only; progress goes to standard error. Exit codes: 2 wrong arguments, 3 a data file is \
invalid, 5 no server answers, 6 the sample is void (its numbers are written all the same), 130 interrupted (what has \
ended by then is written).")]
pub(super) struct Bench {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    judge: JudgeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// One run to be driven.
struct Asked {
    /// Names it in tables.
    name: String,
    workload: Arc<dyn Workload>,
    plan: Plan,
}

impl Bench {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        let format = BENCH_FORMATS.iter().find(|format| format.name == self.output.format);
        let Some(format) = format else { return Err(Failure::new(USAGE, "unknown format")) };
        let mut result = self.output.output.as_deref().map(|path| Place::new(path, "--output")).transpose()?;
        let mut records = self.output.records.as_deref().map(|path| Place::new(path, "--records")).transpose()?;

        let display = Display::new(global);
        let mut stop = stop_signals()?;
        let (target, served) = tokio::select! {
            biased;
            found = target::find(&self.server) => found?,
            () = stopped(&mut stop) => return Err(interrupted()),
        };
        let runs = self.asked(&served)?;
        let mut ended = Vec::new();
        for asked in runs {
            let name = asked.name.clone();
            let driven = self.drive(&target, asked, &display, &stop).await;
            let (benchmark, run) = match driven {
                Ok(driven) => driven,
                Err(failure) => {
                    display.finish();
                    return Err(failure);
                }
            };
            if let Some(records) = &mut records {
                for record in &run.records {
                    records.line(&record::line(&name, record).to_string())?;
                }
            }
            ended.push(benchmark);
            if run.end == End::Stopped {
                break;
            }
        }
        display.finish();
        let runs = match ended.as_slice() {
            [one] if self.load.profile.is_none() => Runs::One(one),
            all => Runs::Profile(all),
        };
        if let Some(mut place) = result.take() {
            let json = match runs {
                Runs::One(run) => benchmark_json(run),
                Runs::Profile(all) => all.iter().map(benchmark_json).collect(),
            };
            place.line(&format!("{json:#}"))?;
            place.keep()?;
        }
        if let Some(place) = records.take() {
            place.keep()?;
        }
        print(&(format.write)(runs))?;
        verdict(&ended)
    }
}

/// The exit code of what has been written.
fn verdict(ended: &[Benchmark]) -> Result<(), Failure> {
    if ended.iter().any(|run| run.end == INTERRUPTION) {
        return Err(interrupted());
    }
    let several = ended.len() > 1;
    let void: Vec<_> = ended
        .iter()
        .filter(|run| !run.is_valid())
        .map(|run| match several {
            true => format!("{}: {}", run.name, run.invalid.join("; ")),
            false => run.invalid.join("; "),
        })
        .collect();
    if void.is_empty() {
        return Ok(());
    }
    Err(Failure::new(NOT_VALID, format!("the sample is void: {}", void.join("; "))))
}

const INTERRUPTION: &str = "interrupted";

fn interrupted() -> Failure {
    Failure::new(INTERRUPTED, "interrupted")
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// The first signal ends the load, whose numbers are written.
fn stop_signals() -> Result<watch::Receiver<bool>, Failure> {
    let (sender, receiver) = watch::channel(false);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals =
            signal(kind).map_err(|error| Failure::unexpected(format!("cannot watch signals: {error}")))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                sender.send_replace(true);
            }
        });
    }
    Ok(receiver)
}
