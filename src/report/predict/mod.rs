//! Renders predictions as a table, as JSON, and as a page with plots.

mod json;
mod page;
mod plot;
mod text;

use crate::config::Config;
use crate::facts::EngineVersion;
use crate::job::LoadJob;
use crate::load::ArrivalPattern;
use crate::objective::Objective;
use crate::predict::{LaunchNoise, TwinPrediction};
use crate::twin::DevicePreset;

pub(crate) use json::predictions_json;
pub(crate) use page::predictions_page;
pub(crate) use text::predictions_text;

/// The predictions of a study, with the values that they share.
#[derive(Debug)]
pub(crate) struct Predictions<'a> {
    pub study: &'a str,
    pub objective: &'a Objective,
    /// The engine and its release.
    pub engine: String,
    pub version: EngineVersion,
    /// Whether the release is only assumed, because no source states it.
    pub version_assumed: bool,
    pub load: &'a LoadJob,
    /// The predictions, best first.
    pub all: Vec<PredictedConfiguration>,
}

/// The prediction of one configuration on one device.
#[derive(Debug)]
pub(crate) struct PredictedConfiguration {
    /// The requested configuration, without the values that the study sets in every launch.
    pub config: Config,
    pub device: &'static DevicePreset,
    /// Whether the device is another one (`--on`) than that of the study or of `--device`.
    pub elsewhere: bool,
    /// Whether the twin was calibrated by trials on this device.
    pub calibrated: bool,
    /// The noise between launches that the ranges contain.
    pub noise: Option<LaunchNoise>,
    pub prediction: TwinPrediction,
}

impl PredictedConfiguration {
    /// Returns `feasible`, `over a limit`, or the predicted outcome of the trial.
    fn state(&self) -> &'static str {
        match (&self.prediction.outcome, self.prediction.score.is_feasible()) {
            (crate::trial::Outcome::Measured(_), true) => "feasible",
            (crate::trial::Outcome::Measured(_), false) => "over a limit",
            (outcome, _) => outcome.name(),
        }
    }

    /// Describes the basis of its numbers in one line.
    fn basis(&self, objective: &str) -> String {
        let basis = match (self.elsewhere, self.calibrated) {
            (_, true) => "calibrated: the ranges contain the uncertainty that remains after the observed runs",
            (false, false) => {
                "not calibrated: the ranges are wide, because nothing was measured here; --calibrate STUDY narrows them"
            }
            (true, false) => {
                "another device: the ranges are wide, because nothing was measured on it; only the calibration of the \
                 host and the front end applies"
            }
        };
        let noise = self
            .noise
            .as_ref()
            .map(|noise| format!(", and the noise between launches, {}", describe(noise, objective)));
        format!("{basis}{}", noise.unwrap_or_default())
    }
}

/// Returns a text such as `3.2 % of output_throughput by 4 launches of 2 configurations`.
fn describe(noise: &LaunchNoise, objective: &str) -> String {
    let percent = 100.0 * noise.deviation(objective).0;
    if noise.is_measured() {
        let configurations = if noise.configurations == 1 { "configuration" } else { "configurations" };
        format!(
            "{percent:.1} % of {objective} by {} launches of {} {configurations}",
            noise.launches, noise.configurations
        )
    } else {
        format!("{percent:.1} % of {objective} assumed because no configuration was measured twice")
    }
}

/// Returns a text such as `closed loop of 64, 96 requests`.
fn describe_load(load: &LoadJob) -> String {
    let arrival = match &load.arrival {
        ArrivalPattern::Closed => format!("closed loop of {}", load.concurrency.unwrap_or(1)),
        ArrivalPattern::AtOnce => "all at once".to_owned(),
        ArrivalPattern::Rate { per_s, .. } => format!("{per_s} arrivals/s"),
        ArrivalPattern::Ramp { from_per_s, to_per_s, .. } => format!("{from_per_s} to {to_per_s} arrivals/s"),
        ArrivalPattern::Trace { factor } => {
            format!("a trace, {} times as fast as recorded", super::number(1.0 / factor))
        }
    };
    let places = load.concurrency.filter(|_| load.arrival != ArrivalPattern::Closed);
    let places = places.map(|places| format!(", at most {places} at a time"));
    let requests = load.requests.map(|requests| format!(", {requests} requests"));
    let duration = load.duration.map(|duration| format!(", {} s", super::number(duration.as_secs_f64())));
    [Some(arrival), places, requests, duration].into_iter().flatten().collect()
}

/// Returns the metrics to show, the objective's first.
fn shown(objective: &Objective) -> Vec<&str> {
    const USUAL: [&str; 10] = [
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
        "request_goodput",
        "mean_ttft_ms",
        "p99_ttft_ms",
        "mean_tpot_ms",
        "p99_tpot_ms",
        "p99_itl_ms",
        "mean_e2el_ms",
    ];
    let own = objective.limits().map(|constraint| constraint.metric.as_str());
    let mut names: Vec<&str> = std::iter::once(objective.metric.as_str()).chain(own).collect();
    names.extend(USUAL);
    let mut seen = Vec::new();
    names.retain(|name| {
        let new = !seen.contains(name);
        seen.push(name);
        new
    });
    names
}
