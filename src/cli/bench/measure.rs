//! Measures one run: drives the load and builds its report.

use std::path::Path;

use tokio::sync::watch;

use super::arguments::WindowName;
use super::drive::{self, BenchEnding, DrivenLoad};
use super::progress::BenchDisplay;
use super::{BenchCommand, INTERRUPTED_END, RequestedRun, RunCriteria, target};
use crate::cli::CommandFailure;
use crate::cli::failure::USAGE;
use crate::facts::{GpuReport, GpuSelection, Host};
use crate::import::GpuMemoryUse;
use crate::job::LoadJob;
use crate::load::{ArrivalPattern, LoadPlan, LoadRun, LoadTarget, RunEnd};
use crate::metrics::{PrecisionTarget, RunPart, Slo, SummaryOptions, WatchOptions, summarize};
use crate::report::{BenchResult, number};
use crate::stats::{f64_to_u64, to_f64};
use crate::telemetry::{self, LoadSpan, TelemetryScope, is_local};
use crate::trial::Measurement;

/// Default limit of the share of failed requests, 0 to 1. Above it, the completed requests do not represent the rest.
const DEFAULT_ERROR_RATE: f64 = 0.05;

/// Default metric of `--until`.
const DEFAULT_METRIC: &str = "output_throughput";

/// Share of prompt tokens found in the server's prefix cache above which earlier runs must have sent the same prompts.
/// A chat template, which all prompts share, accounts for smaller shares.
const MAX_CACHE_HITS: f64 = 0.2;

impl BenchCommand {
    /// Drives one run, and computes its metrics and their validity.
    pub(super) async fn measure(
        &self,
        asked: RequestedRun,
        tokenizer: Option<&Path>,
        display: &BenchDisplay,
        stop: &watch::Receiver<bool>,
    ) -> Result<(BenchResult, LoadRun), CommandFailure> {
        let date = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
        let RequestedRun { name, target, workload, plan, has_unique_prompts, judge, test } = asked;
        let scope = (!self.output.no_telemetry).then(|| TelemetryScope::of_url(&target.base_url));
        let driven =
            drive::drive(&target, workload, plan.clone(), watch_options(&judge, &plan), scope, display, stop.clone())
                .await?;
        let DrivenLoad { run, recorder, stop, saturated, telemetry } = driven;
        let options = SummaryOptions {
            goodput: judge.goodput.clone(),
            window: judge.window,
            plan: Some(&plan),
            recorder: Some(&recorder),
        };
        let mut measurement = summarize(&run, &options);
        let mut server_series = None;
        if let Some(telemetry) = &telemetry {
            let window = LoadSpan::measured(run.began..run.ended, measurement.window.as_ref());
            measurement.server = telemetry::summarize(telemetry, &window, measurement.total_output_tokens);
            server_series = self.output.series.then(|| telemetry.to_json(&window));
        }
        let hits = measurement.server.get("prefix_cache_hit_rate").copied().unwrap_or(0.0);
        if has_unique_prompts && hits > MAX_CACHE_HITS {
            display.note(&format!(
                "{name}: {:.0} % of the prompt tokens came from the server's prefix cache, but no two prompts share a \
                 prefix: an earlier run sent the same prompts; give another --seed, or restart the server",
                100.0 * hits
            ));
        }
        let invalid = invalid_reasons(&judge, &measurement, &run, stop.as_ref());
        let end = match (&run.end, stop) {
            (RunEnd::Stopped, _) => INTERRUPTED_END.to_owned(),
            (_, Some(ending)) => ending.text,
            (RunEnd::Complete | RunEnd::Observer, None) => "complete".to_owned(),
        };
        let memory = memory_use(&target, &measurement);
        let benchmark = BenchResult {
            test,
            memory,
            request_timeout_s: plan.request_timeout.as_secs_f64(),
            output_len: run.records.iter().map(|record| record.requested_tokens).max(),
            name,
            date,
            backend: target.dialect.name().to_owned(),
            model: target.model.clone(),
            tokenizer: tokenizer.map(|path| path.display().to_string()),
            device: self.device(&target),
            requests: plan.requests,
            rate: match plan.arrival {
                ArrivalPattern::Rate { per_s, .. } => per_s,
                _ => f64::INFINITY,
            },
            burstiness: match plan.arrival {
                ArrivalPattern::Rate { burstiness, .. } | ArrivalPattern::Ramp { burstiness, .. } => burstiness,
                _ => self.load.burstiness.unwrap_or(1.0),
            },
            ramp: match plan.arrival {
                ArrivalPattern::Ramp { from_per_s, to_per_s, over, .. } => {
                    Some([from_per_s, to_per_s, over.as_secs_f64()])
                }
                _ => None,
            },
            concurrency: plan.concurrency.map(|n| n as u64),
            seed: plan.seed,
            steady: judge.window == RunPart::Steady,
            invalid,
            measurement,
            end,
            unfinished: run.unfinished as u64,
            unsent: run.unsent as u64,
            saturated,
            series: self.output.series.then(|| serde_json::to_value(recorder.series()).unwrap_or_default()),
            server_series,
        };
        Ok((benchmark, run))
    }

    /// Builds the stop and validity criteria from the arguments.
    pub(super) fn validity_criteria(&self) -> Result<RunCriteria, CommandFailure> {
        let parse = |text: &String| {
            text.parse::<Slo>().map_err(|error| CommandFailure::new(USAGE, format!("--goodput: {error}")))
        };
        if self.judge.until_metric.is_some() && self.judge.until.is_none() && self.load.profile.is_none() {
            let message = "--until-metric has no effect without --until";
            return Err(CommandFailure::new(USAGE, message).with_hint("add --until 2%"));
        }
        Ok(RunCriteria {
            goodput: self.judge.goodput.iter().map(parse).collect::<Result<_, _>>()?,
            until: self.judge.until.as_ref().map(|share| self.until(share)).transpose()?,
            window: if self.judge.window == Some(WindowName::Steady) { RunPart::Steady } else { RunPart::Whole },
            max_error_rate: self.judge.max_error_rate.unwrap_or(DEFAULT_ERROR_RATE),
        })
    }

    /// Like `judge`, for a run of a profile: its own criteria replace those that the arguments omit.
    pub(super) fn profile_criteria(
        &self,
        load: &LoadJob,
        arguments: &RunCriteria,
    ) -> Result<RunCriteria, CommandFailure> {
        let own = load.target_precision.map(|share| self.until(&share.to_string())).transpose()?;
        Ok(RunCriteria {
            goodput: if arguments.goodput.is_empty() { load.goodput.clone() } else { arguments.goodput.clone() },
            until: arguments.until.clone().or(own),
            window: if self.judge.window.is_some() { arguments.window } else { load.window },
            max_error_rate: self.judge.max_error_rate.unwrap_or(load.max_error_rate),
        })
    }

    /// Returns the precision at which the run ends.
    fn until(&self, share: &str) -> Result<PrecisionTarget, CommandFailure> {
        PrecisionTarget::parse(self.judge.until_metric.as_deref().unwrap_or(DEFAULT_METRIC), share).map_err(|error| {
            let failure = CommandFailure::new(USAGE, format!("--until: {error}"));
            match error.hint() {
                Some(hint) => failure.with_hint(hint),
                None => failure,
            }
        })
    }

    fn device(&self, target: &LoadTarget) -> String {
        if let Some(device) = &self.output.device {
            return device.clone();
        }
        if !is_local(&target.base_url) {
            return target::host(&target.base_url);
        }
        let visible = GpuSelection::Visible(std::env::var("CUDA_VISIBLE_DEVICES").ok());
        // A machine without a GPU serves with its processor.
        GpuReport::read(&visible).map_or_else(|_| Host::detect().cpu, |report| report.names())
    }
}

/// Returns the memory that was in use on the fullest GPU of this machine, if the server runs on it.
fn memory_use(target: &LoadTarget, measurement: &Measurement) -> Option<GpuMemoryUse> {
    const MIB: u64 = 1 << 20;
    let used_gib = measurement.server.get("gpu_memory_gib_max").filter(|_| is_local(&target.base_url))?;
    let visible = GpuSelection::Visible(std::env::var("CUDA_VISIBLE_DEVICES").ok());
    let report = GpuReport::read(&visible).ok()?;
    let total = report.readings.iter().filter_map(|reading| Some(reading.memory.as_ref()?.total)).max()?;
    Some(GpuMemoryUse { used_mib: f64_to_u64((used_gib * 1024.0).round()), total_mib: total / MIB })
}

/// Returns the conditions that end a run early: the precision of `--until`, too many failed requests, and a server that
/// is gone or falls behind. An error rate of 100 % is no limit.
fn watch_options(judge: &RunCriteria, plan: &LoadPlan) -> WatchOptions {
    WatchOptions {
        error_rate_limit: (judge.max_error_rate < 1.0).then_some(judge.max_error_rate),
        goodput: judge.goodput.clone(),
        open_loop: !matches!(plan.arrival, ArrivalPattern::Closed | ArrivalPattern::AtOnce),
        until: judge.until.clone(),
        total: plan.requests,
        concurrency: plan.concurrency,
        ..WatchOptions::default()
    }
}

/// Returns the reasons for which the numbers must not be used. A valid run has none.
fn invalid_reasons(
    judge: &RunCriteria,
    measurement: &Measurement,
    run: &LoadRun,
    stop: Option<&BenchEnding>,
) -> Vec<String> {
    let mut reasons = Vec::new();
    let first = run.records.iter().find_map(|record| record.result.as_ref().err());
    let total = measurement.completed + measurement.failed;
    let share = to_f64(measurement.failed) / to_f64(total.max(1));
    let example = first.map_or_else(String::new, |first| format!("; first error: {first}"));
    if let Some(ending) = stop.filter(|ending| !ending.is_valid) {
        reasons.push(format!("{}{example}", ending.text));
    } else if share > judge.max_error_rate {
        let (failed, percent) = (measurement.failed, number(judge.max_error_rate * 100.0));
        reasons.push(format!("{failed} of {total} requests failed, more than the allowed {percent} %{example}"));
    } else if measurement.completed == 0 {
        reasons.push("no request completed".to_owned());
    }
    if let Some(until) = judge.until.as_ref().filter(|_| stop.is_none() && run.end != RunEnd::Stopped) {
        let (metric, percent, completed) = (&until.metric, number(until.relative * 100.0), measurement.completed);
        reasons.push(format!(
            "the run was too short to measure {metric} to within {percent} %: {completed} requests completed"
        ));
    }
    let asked = judge.window == RunPart::Steady && run.end != RunEnd::Stopped;
    if let Some(window) = measurement.window.as_ref().filter(|window| asked && !window.steady) {
        reasons.push(format!("no steady state was found: {}", window.reason));
    }
    if let Some(client) = measurement.client.as_ref().filter(|client| !client.valid) {
        reasons.extend(client.reasons.iter().cloned());
    }
    reasons
}

/// Returns the name of a run such as `random_qps_inf`, `random_c64` or `trace_qps_4`, as in vLLM's nightly benchmarks.
pub(super) fn name(kind: &str, plan: &LoadPlan) -> String {
    let rate = match plan.arrival {
        ArrivalPattern::Closed => return format!("{kind}_c{}", plan.concurrency.unwrap_or(1)),
        ArrivalPattern::AtOnce => "qps_inf".to_owned(),
        ArrivalPattern::Rate { per_s, .. } => format!("qps_{per_s}"),
        ArrivalPattern::Ramp { from_per_s, to_per_s, .. } => format!("qps_{from_per_s}_to_{to_per_s}"),
        ArrivalPattern::Trace { factor } => format!("x{factor}"),
    };
    match plan.concurrency {
        Some(concurrency) => format!("{kind}_{rate}_c{concurrency}"),
        None => format!("{kind}_{rate}"),
    }
}
