//! The state of studies in the text format that Prometheus reads.

use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::StudyDocument;
use crate::stats::to_f64;
use crate::trial::without_controls;

/// The media type of the text.
pub(crate) const PROMETHEUS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The label of a number of a whole study.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StudyLabel {
    study: String,
}

/// The labels of a number that a study has several of. The name of the second label depends on the family.
type Labels = Vec<(&'static str, String)>;

type StudyGauge = Family<StudyLabel, Gauge<f64, AtomicU64>>;
type LabelledGauge = Family<Labels, Gauge<f64, AtomicU64>>;

/// All families of numbers.
#[derive(Default)]
struct Families {
    running: StudyGauge,
    trials: LabelledGauge,
    value: LabelledGauge,
    gain: LabelledGauge,
    remaining_gain: LabelledGauge,
    time: LabelledGauge,
    saved: LabelledGauge,
    failures: LabelledGauge,
    incidents: StudyGauge,
    latest: StudyGauge,
    latest_metric: LabelledGauge,
    launched_at: LabelledGauge,
}

/// Returns the numbers of all studies.
///
/// # Errors
/// Never in practice: the writer is a string.
pub(crate) fn prometheus_text<'d>(
    documents: impl Iterator<Item = &'d StudyDocument>,
) -> Result<String, std::fmt::Error> {
    let families = Families::default();
    documents.for_each(|document| families.add(document));
    let mut text = String::new();
    encode(&mut text, &families.registry())?;
    Ok(text)
}

impl Families {
    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("setpoint");
        let info = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The release of setpoint", info);
        registry.register("study_running", "1 if a tuner runs the study on this host", self.running.clone());
        registry.register("study_trials", "Trials in each state", self.trials.clone());
        registry.register("study_value", "Objective of the winner and the baselines", self.value.clone());
        registry.register("study_gain_ratio", "Gain of the winner, with its interval", self.gain.clone());
        let help = "Estimated gain by configurations that were not measured";
        registry.register("study_remaining_gain_ratio", help, self.remaining_gain.clone());
        registry.register_with_unit("study_time", "Time of launches by part", Unit::Seconds, self.time.clone());
        registry.register_with_unit("study_saved_time", "Time that was not spent", Unit::Seconds, self.saved.clone());
        registry.register("study_failures", "Failed launches by kind", self.failures.clone());
        registry.register("study_incidents", "Launches repeated after environment failures", self.incidents.clone());
        registry.register("study_latest_trial", "Number of the latest trial with an outcome", self.latest.clone());
        let help = "Metrics of the latest measured trial, in the units of their names";
        registry.register("study_latest_metric", help, self.latest_metric.clone());
        let help = "Start of each running trial";
        registry.register_with_unit("study_launched_timestamp", help, Unit::Seconds, self.launched_at.clone());
        registry
    }

    fn add(&self, document: &StudyDocument) {
        let study = without_controls(&document.study.name).into_owned();
        let label = StudyLabel { study: study.clone() };
        let set = |family: &LabelledGauge, label: (&'static str, &str), value: f64| {
            let labels = vec![("study", study.clone()), (label.0, without_controls(label.1).into_owned())];
            family.get_or_create(&labels).set(value);
        };
        self.running.get_or_create(&label).set(f64::from(u8::from(document.is_running)));
        let counts = document.study.counts;
        for (state, count) in [
            ("measured", counts.measured),
            ("failed", counts.failed),
            ("rejected", counts.rejected),
            ("running", counts.running),
            ("live_look", counts.live_looks),
        ] {
            set(&self.trials, ("state", state), to_f64(count));
        }
        for value in &document.values {
            value.roles.iter().for_each(|role| set(&self.value, ("configuration", role), value.value));
        }
        for gain in &document.gains {
            let over = if gain.over == "today's deployment" { "deployment" } else { "defaults" };
            for (bound, share) in
                [("mean", gain.factor.map(|factor| factor - 1.0)), ("low", gain.low), ("high", gain.high)]
            {
                let Some(share) = share else { continue };
                let labels = vec![("study", study.clone()), ("over", over.to_owned()), ("bound", bound.to_owned())];
                self.gain.get_or_create(&labels).set(share);
            }
        }
        for (quantile, share) in ["0.05", "0.5", "0.95"].into_iter().zip(document.remaining_gain.iter().flatten()) {
            set(&self.remaining_gain, ("quantile", quantile), *share);
        }
        document.time.parts.iter().for_each(|part| set(&self.time, ("part", part.name), part.seconds));
        document.time.saved.iter().for_each(|saved| set(&self.saved, ("by", saved.by), saved.seconds));
        document.failures.iter().for_each(|it| set(&self.failures, ("kind", it.kind), to_f64(it.count)));
        self.incidents.get_or_create(&label).set(to_f64(document.incidents.len()));
        let ended = || document.trials.iter().rev().filter(|trial| trial.state != "running");
        if let Some(latest) = ended().next() {
            self.latest.get_or_create(&label).set(f64::from(latest.trial));
        }
        let measured = ended().find_map(|trial| trial.metrics.as_ref());
        for (name, value) in document.metrics.iter().zip(measured.into_iter().flatten()) {
            if let Some(value) = value {
                set(&self.latest_metric, ("metric", name), *value);
            }
        }
        for trial in document.trials.iter().filter(|trial| trial.state == "running") {
            if let Ok(instant) = trial.started_at.parse::<Timestamp>() {
                set(&self.launched_at, ("trial", &trial.trial.to_string()), instant.as_duration().as_secs_f64());
            }
        }
    }
}
