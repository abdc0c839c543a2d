//! Runs one load on the twin, warm-up included, and computes its metrics by the definitions of measured runs.

use std::time::{Duration, Instant};

use super::PredictError;
use super::client::{PhaseTiming, VirtualClient};
use super::early_end::{cut_off, find_early_end};
use super::forecast::ForecastSpan;
use super::limit::VirtualRun;
use super::script::PromptScript;
use super::series::BatchSeries;
use super::setup::TwinSetup;
use super::watch::StepWatch;
use crate::job::LoadJob;
use crate::load::{self, ArrivalPattern, LoadRun, WarmupSummary, check, due, measured, warmup, warmup_places};
use crate::metrics::{self, RunPart, SummaryOptions, WatchOptions, summarize, summarize_within};
use crate::stats::to_f64;
use crate::trial::{Measurement, Outcome, Replies};
use crate::twin::{Counters, Drive, DriveObserver, Factors, Frontend, StepTime, TwinEngine};

/// One virtual run.
pub(super) struct RunResult {
    pub(super) outcome: Outcome,
    /// Share of the completed requests that kept every latency limit of the goodput. `None` without such limits.
    pub(super) good: Option<f64>,
    pub(super) observations: VirtualRun,
    pub(super) series: BatchSeries,
    /// The cost of the computation, in units of one sequence in one step.
    pub(super) cost: u64,
    /// The length of the load without its warm-up, and the number of its requests that ended.
    pub(super) length: Duration,
    pub(super) ended: usize,
    /// The times of the requests, if the span keeps them.
    pub(super) replies: Option<Replies>,
}

/// The part of a run that the metrics cover.
pub(super) enum MeasuredSpan {
    Forecast(ForecastSpan),
    /// The load's own window. The watch may end the run before.
    Watched {
        watch: Box<WatchOptions>,
        /// Whether the times of the requests are returned.
        keeps_replies: bool,
    },
}

/// An observer that ignores everything.
struct IgnoringObserver;

impl DriveObserver for IgnoringObserver {}

/// Runs a load with the step time scaled by these factors.
pub(super) fn run(
    setup: &TwinSetup,
    script: &PromptScript,
    load: &LoadJob,
    seed: u64,
    factors: &Factors,
) -> Result<RunResult, PredictError> {
    run_over(MeasuredSpan::Forecast(ForecastSpan::Own), setup, script, load, seed, factors)
}

/// Like `run`, but the metrics cover `span` of the run.
pub(super) fn run_over(
    span: MeasuredSpan,
    setup: &TwinSetup,
    script: &PromptScript,
    load: &LoadJob,
    seed: u64,
    factors: &Factors,
) -> Result<RunResult, PredictError> {
    let plan = load.plan(seed);
    let sessions = check(&plan, &*script.workload)?;
    let step_time = setup.prior.clone().scaled(*factors);
    let mut engines = setup.engines()?;
    let client = |script, range, instants, places, length| {
        let timing = PhaseTiming {
            pace: setup.time_scale,
            wire: setup.wire,
            instants,
            max_in_flight: places,
            length,
            request_timeout: plan.request_timeout,
            kept_chunks: plan.kept_chunks,
        };
        VirtualClient::new(script, range, setup.settings.resolved.prefix_caching, timing)
    };
    let mut warmed = WarmupSummary::default();
    if plan.warmup > 0 {
        let mut client = client(script.warmup(), warmup(&plan), None, Some(warmup_places(&plan)), None);
        drive(&mut engines, &step_time).run(&mut client, &mut IgnoringObserver)?;
        warmed.completed = client.records.len();
    }
    let before: Vec<Counters> = engines.iter().map(TwinEngine::counters).collect();
    let mut watch = StepWatch::new(&step_time, &engines, setup.time_scale);
    let instants = due(&plan, &script.workload, sessions);
    let mut client = client(script, measured(&plan, sessions), instants, plan.concurrency, plan.duration);
    drive(&mut engines, &step_time).run(&mut client, &mut watch)?;
    let unsent = client.unsent();
    let mut recorder = client.recorder;
    let mut run = virtual_run(client.records, warmed, unsent);
    let window = run.ended.duration_since(run.began).mul_f64(setup.time_scale);
    let counted: Vec<Counters> =
        engines.iter().zip(before).map(|(engine, before)| counter_increase(engine.counters(), before)).collect();
    // The server's metrics and the shares of the time remain those of the whole load.
    let (front_end, own_part) = (front_end(setup, &step_time, &run, watch.mean_samples()), load.window);
    let (settled, early, keeps_replies) = match span {
        MeasuredSpan::Forecast(span) => (span.window(&run), None, false),
        MeasuredSpan::Watched { watch, keeps_replies } => (None, find_early_end(&run.records, *watch), keeps_replies),
    };
    if let Some(end) = &early {
        recorder = cut_off(&mut run, end);
    }
    let part = if early.is_some() { RunPart::Steady } else { own_part };
    let options = SummaryOptions { goodput: load.goodput.clone(), window: part, plan: None, recorder: Some(&recorder) };
    let mut summary = match settled {
        Some(settled) => summarize_within(settled, &run, &options),
        None => summarize(&run, &options),
    };
    let (length, ended) = (run.ended.duration_since(run.began), run.records.len());
    if let (Some(end), Some(window)) = (&early, &mut summary.window) {
        window.reason = format!("ended early: {}; {}", end.reason, window.reason);
        window.saved_s = load.saved_s(length, ended);
        window.overloaded = end.reason.is_overload();
    }
    let mut measurement = Measurement { server: watch.server(window, &counted), ..summary };
    if let Some(price) = setup.price_per_hour {
        measurement.add_cost(price);
    }
    let good = measurement.good_requests.map(|good| share(good, measurement.completed));
    let seen = VirtualRun {
        shares: watch.shares(window),
        front_end,
        open: !matches!(plan.arrival, ArrivalPattern::Closed | ArrivalPattern::AtOnce),
    };
    let (series, cost) = (watch.series.finish(setup.replicas), watch.cost);
    Ok(RunResult {
        outcome: metrics::outcome(measurement, &run, load.max_error_rate),
        good,
        observations: seen,
        series,
        cost,
        length,
        ended,
        replies: keeps_replies.then(|| metrics::replies(&run, &plan, &*script.workload)),
    })
}

fn drive<'a>(engines: &'a mut [TwinEngine], step_time: &'a StepTime) -> Drive<'a> {
    Drive { engines, step_time }
}

/// Converts the records to the result type of the load generator.
fn virtual_run(mut records: Vec<load::RequestRecord>, warmup: WarmupSummary, unsent: usize) -> LoadRun {
    records.sort_by_key(|record| record.end);
    let length = records.last().map_or(Duration::ZERO, |record| record.end);
    // Only the difference of `began` and `ended` has a meaning.
    let began = Instant::now();
    LoadRun {
        records,
        warmup,
        began,
        ended: began + length,
        unfinished: 0,
        unsent,
        end: load::RunEnd::Complete,
        client: load::ClientUse::default(),
    }
}

/// Returns the increase of every counter.
fn counter_increase(now: Counters, before: Counters) -> Counters {
    Counters {
        steps: now.steps - before.steps,
        preemptions: now.preemptions - before.preemptions,
        prompt_tokens: now.prompt_tokens - before.prompt_tokens,
        prefix_hits: now.prefix_hits - before.prefix_hits,
        prefix_queries: now.prefix_queries - before.prefix_queries,
        generated_tokens: now.generated_tokens - before.generated_tokens,
        drafts: now.drafts - before.drafts,
        draft_tokens: now.draft_tokens - before.draft_tokens,
        accepted_tokens: now.accepted_tokens - before.accepted_tokens,
        finished: now.finished - before.finished,
        aborted: now.aborted - before.aborted,
        reported_preemptions: now.reported_preemptions - before.reported_preemptions,
        cached_tokens: now.cached_tokens - before.cached_tokens,
    }
}

/// Estimates the share of the requests' total time that is spent outside of the engine, if no request waits for the
/// front end.
fn front_end(setup: &TwinSetup, step_time: &StepTime, run: &LoadRun, samples: f64) -> f64 {
    let Frontend { request_s, prompt_token_s, step_s, stream_s } = step_time.frontend();
    let wire = (setup.wire.request + setup.wire.token).as_secs_f64();
    let (mut outside, mut whole) = (0.0, 0.0);
    for record in &run.records {
        // On average, the tokens of half of the step's other sequences are written first.
        let own = request_s + prompt_token_s * f64::from(record.prompt_tokens) + step_s + stream_s * samples / 2.0;
        outside += (own + wire) / setup.time_scale;
        whole += record.e2el().unwrap_or_default().as_secs_f64();
    }
    if whole > 0.0 { (outside / whole).min(1.0) } else { 0.0 }
}

fn share(part: u64, whole: u64) -> f64 {
    to_f64(part) / to_f64(whole.max(1))
}
