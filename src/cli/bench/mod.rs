//! `bench`: the load generator alone, against any server of OpenAI's interface.

mod arguments;
mod drive;
mod place;
mod plan;
mod progress;
mod record;
mod target;
mod work;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::Global;
use super::failure::{Failure, INTERRUPTED, NOT_VALID, USAGE};
use super::output::print;
use crate::facts::{Gpu, Host};
use crate::job::{Profile, ProfileRun};
use crate::load::{Api, Arrival, End, Plan, Run, Target};
use crate::metrics::{Options, Part, Slo, Until, WatchOptions, summarize};
use crate::report::{BENCH_FORMATS, Benchmark, Runs, benchmark_json, number};
use crate::telemetry::{self, Scope};
use crate::trial::Measurement;
use crate::workload::{Spec, Workload};
use arguments::{JudgeArgs, LoadArgs, OutputArgs, ServerArgs, WindowName, WorkArgs};
use drive::{Driven, Ending};
use place::Place;
use progress::Display;
use target::Served;

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
    work: WorkArgs,
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
    target: Target,
    workload: Arc<dyn Workload>,
    plan: Plan,
}

impl Bench {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        let format = BENCH_FORMATS.iter().find(|format| format.name == self.output.format);
        let Some(format) = format else { return Err(Failure::new(USAGE, "unknown format")) };
        let mut result = self.output.output.as_deref().map(|path| Place::new(path, "--output")).transpose()?;
        let mut records = self.output.records.as_deref().map(|path| Place::new(path, "--records")).transpose()?;

        self.slos()?;
        self.until()?;
        let display = Display::new(global);
        let mut stop = stop_signals()?;
        let (target, served) = tokio::select! {
            biased;
            found = target::find(&self.server) => found?,
            () = stopped(&mut stop) => return Err(interrupted()),
        };
        let tokenizer = self.work.tokenizer(&served);
        let runs = self.asked(&target, &served)?;
        for asked in &runs {
            for left_out in asked.workload.left_out() {
                display.note(&format!("{}: left out {} {}", asked.name, left_out.rows, left_out.reason));
            }
        }
        let mut ended = Vec::new();
        let of = runs.len();
        for (place, asked) in runs.into_iter().enumerate() {
            let name = asked.name.clone();
            if of > 1 {
                display.note(&format!("run {} of {of}: {name}", place + 1));
            }
            let driven = self.drive(asked, tokenizer.as_deref(), &display, &stop).await;
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

impl Bench {
    /// The runs, in order.
    fn asked(&self, target: &Target, served: &Served) -> Result<Vec<Asked>, Failure> {
        if let Some(profile) = &self.load.profile {
            return self.profile(profile, target, served);
        }
        let spec = self.work.spec(self.load.num_requests)?;
        let surroundings = self.work.surroundings(target, served, self.load.seed);
        let workload = spec.build(&surroundings).map_err(work::failure)?;
        let trace = matches!(spec, Spec::Trace { .. });
        let plan = plan::of(&self.load, &*workload, trace, self.judge.until.is_some())?;
        Ok(vec![Asked { name: name(spec.kind(), &plan), target: target.clone(), workload, plan }])
    }

    /// The runs of a profile. All are built before the first is driven, so that a missing file is found at once.
    fn profile(&self, profile: &str, target: &Target, served: &Served) -> Result<Vec<Asked>, Failure> {
        if let Some(flag) = self.work.described() {
            return Err(Failure::new(USAGE, format!("--profile says itself what {flag} would say")));
        }
        let mut profile = Profile::read(profile)?;
        if let Some(file) = &self.work.dataset
            && !profile.set_dataset(file)
        {
            return Err(Failure::new(USAGE, format!("no run of profile {} needs --dataset", profile.name)));
        }
        let build = |run: &ProfileRun| {
            let api = self.server.api.map_or(run.load.api, Api::from);
            let target = Target { api, ..target.clone() };
            let surroundings = self.work.surroundings(&target, served, self.load.seed);
            let workload = run.spec.build(&surroundings).map_err(work::failure)?;
            let own = run.load.plan(self.load.seed);
            let requests = own.requests.or_else(|| if own.duration.is_none() { workload.len() } else { None });
            let plan = Plan {
                requests,
                warmup: self.load.warmup.unwrap_or(own.warmup),
                request_timeout: self.load.request_timeout.unwrap_or(own.request_timeout),
                allow_eos: own.allow_eos || self.load.allow_eos,
                ..own
            };
            Ok(Asked { name: run.name.clone(), target, workload, plan })
        };
        profile.runs.iter().map(build).collect()
    }

    async fn drive(
        &self,
        asked: Asked,
        tokenizer: Option<&Path>,
        display: &Display,
        stop: &watch::Receiver<bool>,
    ) -> Result<(Benchmark, Run), Failure> {
        let date = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
        let Asked { name, target, workload, plan } = asked;
        let scope = (!self.output.no_telemetry).then(|| Scope::of_url(&target.base_url));
        let driven =
            drive::drive(&target, workload, plan.clone(), self.watched(&plan)?, scope, display, stop.clone()).await?;
        let Driven { run, recorder, stop, telemetry } = driven;
        let steady = self.judge.window == WindowName::Steady;
        let options = Options {
            goodput: self.slos()?,
            window: if steady { Part::Steady } else { Part::Whole },
            plan: Some(&plan),
            recorder: Some(&recorder),
        };
        let mut measurement = summarize(&run, &options);
        let mut server_series = None;
        if let Some(telemetry) = &telemetry {
            let window = window(&run, &measurement);
            measurement.server = telemetry::summarize(telemetry, &window, measurement.total_output_tokens);
            server_series = self.output.series.then(|| telemetry.to_json(&window));
        }
        let invalid = self.void(&measurement, &run, stop.as_ref());
        let end = match (&run.end, stop) {
            (End::Stopped, _) => INTERRUPTION.to_owned(),
            (_, Some(ending)) => ending.text,
            (End::Complete | End::Observer, None) => "complete".to_owned(),
        };
        let benchmark = Benchmark {
            name,
            date,
            backend: target.dialect.name().to_owned(),
            model: target.model.clone(),
            tokenizer: tokenizer.map(|path| path.display().to_string()),
            device: self.device(&target),
            requests: plan.requests,
            rate: match plan.arrival {
                Arrival::Rate { per_s, .. } => per_s,
                _ => f64::INFINITY,
            },
            burstiness: match plan.arrival {
                Arrival::Rate { burstiness, .. } | Arrival::Ramp { burstiness, .. } => burstiness,
                _ => self.load.burstiness.unwrap_or(1.0),
            },
            ramp: match plan.arrival {
                Arrival::Ramp { from_per_s, to_per_s, over, .. } => Some([from_per_s, to_per_s, over.as_secs_f64()]),
                _ => None,
            },
            concurrency: plan.concurrency.map(|n| n as u64),
            seed: plan.seed,
            steady,
            invalid,
            measurement,
            end,
            unfinished: run.unfinished as u64,
            unsent: run.unsent as u64,
            series: self.output.series.then(|| serde_json::to_value(recorder.series()).unwrap_or_default()),
            server_series,
        };
        Ok((benchmark, run))
    }

    /// The limits of a good request.
    fn slos(&self) -> Result<Vec<Slo>, Failure> {
        let parse =
            |text: &String| text.parse::<Slo>().map_err(|error| Failure::new(USAGE, format!("--goodput: {error}")));
        self.judge.goodput.iter().map(parse).collect()
    }

    /// What may end a run early. Whoever asks for a number of requests gets them, unless their numbers would be void.
    fn watched(&self, plan: &Plan) -> Result<WatchOptions, Failure> {
        let open = !matches!(plan.arrival, Arrival::Closed | Arrival::AtOnce);
        let until = self.until()?;
        Ok(WatchOptions {
            error_rate_limit: (self.judge.max_error_rate < 1.0).then_some(self.judge.max_error_rate),
            goodput: self.slos()?,
            open_loop: open && until.is_some(),
            until,
            total: plan.requests,
            concurrency: plan.concurrency,
            ..WatchOptions::default()
        })
    }

    /// The precision that is enough.
    fn until(&self) -> Result<Option<Until>, Failure> {
        let Some(share) = &self.judge.until else { return Ok(None) };
        let until = Until::parse(&self.judge.until_metric, share).map_err(|error| {
            let failure = Failure::new(USAGE, format!("--until: {error}"));
            match error.hint() {
                Some(hint) => failure.with_hint(hint),
                None => failure,
            }
        })?;
        Ok(Some(until))
    }

    /// Why the numbers must not be used.
    fn void(&self, measurement: &Measurement, run: &Run, stop: Option<&Ending>) -> Vec<String> {
        let mut reasons = Vec::new();
        let first = run.records.iter().find_map(|record| record.result.as_ref().err());
        let total = measurement.completed + measurement.failed;
        #[expect(clippy::cast_precision_loss, reason = "counts of requests are far below 2^53")]
        let share = measurement.failed as f64 / total.max(1) as f64;
        let example = first.map_or_else(String::new, |first| format!("; the first: {first}"));
        if let Some(ending) = stop.filter(|ending| !ending.sound) {
            reasons.push(format!("{}{example}", ending.text));
        } else if share > self.judge.max_error_rate {
            let (failed, percent) = (measurement.failed, number(self.judge.max_error_rate * 100.0));
            reasons.push(format!("{failed} of {total} requests failed, more than {percent} %{example}"));
        } else if measurement.completed == 0 {
            reasons.push("no request completed".to_owned());
        }
        let precise = stop.is_some_and(|ending| ending.sound);
        if let Some(share) = self.judge.until.as_ref().filter(|_| !precise && stop.is_none() && run.end != End::Stopped)
        {
            reasons.push(format!(
                "the run was too short to know {} to {share}: {} requests completed",
                self.judge.until_metric, measurement.completed
            ));
        }
        if let Some(window) = measurement.window.as_ref() {
            if self.judge.window == WindowName::Steady && !window.steady && run.end != End::Stopped {
                reasons.push(format!("no steady state was found: {}", window.reason));
            }
        }
        if let Some(client) = measurement.client.as_ref().filter(|client| !client.valid) {
            reasons.extend(client.reasons.iter().cloned());
        }
        reasons
    }

    fn device(&self, target: &Target) -> String {
        if let Some(device) = &self.output.device {
            return device.clone();
        }
        if !target::is_local(&target.base_url) {
            return target::host(&target.base_url).to_owned();
        }
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        // A machine without a GPU serves with its processor.
        Gpu::describe(visible.as_deref()).unwrap_or_else(|_| Host::detect().cpu)
    }
}

/// The measured part of a run.
fn window(run: &Run, measurement: &Measurement) -> Range<Instant> {
    let at = |seconds: f64| run.began + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    match &measurement.window {
        Some(window) => at(window.from_s)..at(window.to_s),
        None => run.began..run.ended,
    }
}

/// `random_inf`, `random_c64`, `trace_qps_4`: what the nightly benchmarks call a test.
fn name(kind: &str, plan: &Plan) -> String {
    let rate = match plan.arrival {
        Arrival::Closed => return format!("{kind}_c{}", plan.concurrency.unwrap_or(1)),
        Arrival::AtOnce => "qps_inf".to_owned(),
        Arrival::Rate { per_s, .. } => format!("qps_{per_s}"),
        Arrival::Ramp { from_per_s, to_per_s, .. } => format!("qps_{from_per_s}_to_{to_per_s}"),
        Arrival::Trace { factor } => format!("x{factor}"),
    };
    match plan.concurrency {
        Some(concurrency) => format!("{kind}_{rate}_c{concurrency}"),
        None => format!("{kind}_{rate}"),
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
