//! The content of a study as other programs store one: trials with numbers and texts, and texts about the study.
//!
//! Texts contain no secrets and no control characters; only quoted words of a command keep their line ends. Earlier
//! versions of `setpoint` stored some secrets, so that nothing relies on the redaction before the storage.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use crate::config::{Config, Value};
use crate::export::quote;
use crate::objective::{Constraint, MetricLimit, Score};
use crate::report::{gain_text, value_text};
use crate::store::{ScoredTrial, Store, StoreError, StoredContext, UnfinishedTrial};
use crate::study_report::StudyReport;
use crate::trial::{
    CommandLine, LaunchCommand, MeasuredBy, Measurement, Outcome, Proposal, REDACTED, SERVER_NAMES, is_secret, redact,
    without_controls,
};

/// Texts about a study that come first, because dashboards show a few of them at a time.
const FIRST_OF_STUDY: [&str; 5] = ["winner", "gain", "objective", "limits", "winner_command"];

/// Texts of a trial that come first.
const FIRST_OF_TRIAL: [&str; 6] = ["state", "reason", "broken_limits", "proposed_by", "why", "command"];

/// A whole study.
#[derive(Debug)]
pub(crate) struct StudyContent<'a> {
    pub report: &'a StudyReport,
    /// Every trial, ordered by number.
    pub trials: Vec<TrialContent>,
}

/// The state of an exported trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentState {
    /// Measured, and comparable with the others.
    Ranked,
    /// Measured, but not comparable: in an earlier context, or while other trials ran.
    Unranked,
    Failed,
    Rejected,
    /// Without an outcome.
    Running,
}

/// A trial. Maps are from names to values.
#[derive(Debug)]
pub(crate) struct TrialContent {
    pub(super) number: u32,
    pub(super) state: ContentState,
    pub(super) config: Config,
    /// Milliseconds since the epoch; `None` if the stored instant cannot be read.
    pub(super) started_ms: Option<i64>,
    pub(super) ended_ms: Option<i64>,
    /// The value of the objective.
    pub(super) value: Option<f64>,
    /// The relative excess over each limit, in the objective's order: at most 0 if the limit was kept.
    pub(super) excesses: Vec<f64>,
    pub(super) numbers: BTreeMap<&'static str, f64>,
    texts: BTreeMap<&'static str, String>,
}

impl<'a> StudyContent<'a> {
    /// Reads all trials of the report's study.
    pub(crate) async fn read(store: &Store, report: &'a StudyReport) -> Result<Self, StoreError> {
        let contexts = store.contexts(&report.study).await?;
        let context = |proposal: &Proposal| contexts.get(&proposal.number);
        let constraints = report.objective.as_ref().map_or(&[][..], |objective| &objective.constraints);
        let ended = store.trials(&report.study).await?;
        let ended =
            ended.iter().map(|scored| TrialContent::ended(scored, constraints, context(&scored.trial.proposal)));
        let mut trials: Vec<_> = ended.collect();
        let unfinished = store.unfinished_trials(&report.study).await?;
        trials.extend(unfinished.iter().map(|trial| TrialContent::unfinished(trial, context(&trial.proposal))));
        trials.sort_by_key(|trial| trial.number);
        Ok(Self { report, trials })
    }

    /// Returns the texts about the study itself.
    pub(super) fn texts(&self) -> Vec<(&'static str, String)> {
        let study = &self.report.study;
        let mut texts = BTreeMap::from([
            ("setpoint_version", clean(&study.setpoint_version)),
            ("created_at", clean(&study.created_at)),
            ("definition", clean(&redacted_json(study.definition.clone()).to_string())),
        ]);
        if let Some(objective) = &self.report.objective {
            let goal = if objective.goal == crate::objective::Goal::Maximize { "maximize" } else { "minimize" };
            texts.insert("objective", clean(&format!("{goal} {}", objective.value_name())));
            let limits: Vec<_> = objective.limits().map(ToString::to_string).collect();
            if !limits.is_empty() {
                texts.insert("limits", clean(&limits.join(", ")));
            }
        }
        for (name, pointer) in [("engine", "/engine/kind"), ("model", "/model")] {
            if let Some(text) = study.definition.pointer(pointer).and_then(Json::as_str) {
                texts.insert(name, clean(text));
            }
        }
        match self.report.winner() {
            Some(winner) => {
                let ranked = &winner.results.ranked;
                let trial = &ranked.first.trial;
                let value = value_text(&self.report.value_name(), ranked);
                texts.insert("winner", clean(&format!("trial {}: {value}", trial.proposal.number)));
                texts.insert("winner_command", command_text(&trial.launch));
                texts.insert("gain", clean(&gain_text(self.report.gain(ranked))));
            }
            None if self.report.counts.measured == 0 => {
                texts.insert("winner", "none: no trial was measured".to_owned());
            }
            None => {
                texts.insert("winner", "none: no configuration kept every limit in all its trials".to_owned());
            }
        }
        in_order(texts, &FIRST_OF_STUDY)
    }

    /// Returns the flags that have the same value in every trial. They are part of the study, and no parameters.
    pub(super) fn fixed(&self) -> Config {
        let fixed = self.report.study.definition.pointer("/space/fixed").cloned();
        let fixed: Config = fixed.and_then(|fixed| serde_json::from_value(fixed).ok()).unwrap_or_default();
        let fixed = redacted_config(&fixed);
        let differs = |name: &str, value: &Value| {
            self.trials.iter().any(|trial| trial.config.get(name).is_some_and(|other| other != value))
        };
        fixed.iter().filter(|(name, value)| !differs(name, value)).map(|(n, v)| (n.to_owned(), v.clone())).collect()
    }
}

impl TrialContent {
    /// Returns the texts about the trial.
    pub(super) fn texts(&self) -> Vec<(&'static str, String)> {
        in_order(self.texts.clone(), &FIRST_OF_TRIAL)
    }

    /// Returns the reason for the lack of a comparable measurement, or the broken limits.
    pub(super) fn shortcoming(&self) -> Option<&str> {
        self.texts.get("reason").or_else(|| self.texts.get("broken_limits")).map(String::as_str)
    }

    fn ended(scored: &ScoredTrial, constraints: &[Constraint], context: Option<&StoredContext>) -> Self {
        let trial = &scored.trial;
        let mut content = Self::begun(&trial.proposal, &trial.launch, &trial.started_at, context);
        content.ended_ms = content.started_ms.and_then(|started| after(started, trial.elapsed_s));
        content.texts.insert("state", trial.outcome.name().to_owned());
        content.numbers.insert("elapsed_s", trial.elapsed_s);
        content.numbers.extend(trial.startup_s.map(|seconds| ("startup_s", seconds)));
        let log = trial.log.as_ref().map(|log| log.to_string_lossy().into_owned());
        for (name, text) in
            [("engine_version", &trial.engine_version), ("log", &log), ("reason", &trial.outcome.reason())]
        {
            content.texts.extend(text.as_ref().map(|text| (name, clean(text))));
        }
        let code = match &trial.outcome {
            Outcome::Rejected(rejection) => Some(rejection.rule.as_str()),
            Outcome::Failed(failure) => Some(failure.kind.name()),
            Outcome::Measured(_) => None,
        };
        content.texts.extend(code.map(|code| ("reason_code", clean(code))));
        content.state = match &trial.outcome {
            Outcome::Rejected(_) => ContentState::Rejected,
            Outcome::Failed(_) => ContentState::Failed,
            Outcome::Measured(measurement) => content.measured(measurement, scored.score, constraints, context),
        };
        content
    }

    fn unfinished(trial: &UnfinishedTrial, context: Option<&StoredContext>) -> Self {
        let mut content = Self::begun(&trial.proposal, &trial.launch, &trial.started_at, context);
        content.texts.insert("state", "running".to_owned());
        content
    }

    /// Returns the part that exists before an outcome.
    fn begun(proposal: &Proposal, launch: &LaunchCommand, started_at: &str, context: Option<&StoredContext>) -> Self {
        let config = redacted_config(&proposal.config);
        let mut texts = BTreeMap::from([
            ("proposed_by", clean(proposal.origin.name())),
            ("started_at", clean(started_at)),
            ("config", clean(&config.key())),
        ]);
        texts.extend(proposal.why.as_ref().map(|why| ("why", clean(why))));
        if !launch.command.is_empty() {
            texts.insert("command", command_text(launch));
            let measured_by = MeasuredBy::new(proposal.server_of, launch.is_prepared, launch.is_fast);
            texts.insert("measured_by", measured_by.name().to_owned());
        }
        if !launch.env.is_empty() {
            texts.insert("env", environment_text(launch));
        }
        if let Some(context) = context.and_then(|stored| stored.context.as_ref()) {
            let count = context.device.count.filter(|count| *count > 1);
            let device = context.device.name.as_ref().map(|name| match count {
                Some(count) => format!("{count} x {name}"),
                None => name.clone(),
            });
            for (name, text) in [("device", &device), ("driver", &context.device.driver), ("host", &context.host.name)]
            {
                texts.extend(text.as_ref().map(|text| (name, clean(text))));
            }
        }
        Self {
            number: proposal.number,
            state: ContentState::Running,
            config,
            started_ms: started_at.parse().ok().map(jiff::Timestamp::as_millisecond),
            ended_ms: None,
            value: None,
            excesses: Vec::new(),
            numbers: proposal.expected_gain.map(|gain| ("expected_gain", gain)).into_iter().collect(),
            texts,
        }
    }

    /// Adds a measurement and returns the state.
    fn measured(
        &mut self,
        measurement: &Measurement,
        score: Score,
        constraints: &[Constraint],
        context: Option<&StoredContext>,
    ) -> ContentState {
        let names = Measurement::NAMES.iter().copied().chain(SERVER_NAMES.iter().map(|(name, _)| *name));
        self.numbers.extend(names.filter_map(|name| Some((name, measurement.metric(name)?))));
        if !measurement.errors.is_empty() {
            let errors: Vec<_> = measurement.errors.iter().map(|(name, count)| format!("{name} {count}")).collect();
            self.texts.insert("errors", clean(&errors.join(", ")));
        }
        if !measurement.disturbed.is_empty() {
            self.texts.insert("disturbed", clean(&measurement.disturbed.join("; ")));
        }
        let broken: Vec<_> = constraints
            .iter()
            .filter(|limit| limit.violation(measurement) > 0.0)
            .map(|c| broken_text(c, measurement))
            .collect();
        if !broken.is_empty() {
            self.texts.insert("broken_limits", clean(&broken.join(", ")));
        }
        let Some(value) = score.value() else {
            let reason = "the measurement lacks the metric of the objective";
            self.texts.insert("reason", reason.to_owned());
            return ContentState::Failed;
        };
        self.value = Some(value);
        // Neither JSON nor SQL has an infinity.
        self.excesses = constraints.iter().map(|c| c.relative_excess(measurement).clamp(f64::MIN, f64::MAX)).collect();
        self.numbers.insert("violation", self.excesses.iter().map(|excess| excess.max(0.0)).sum::<f64>().min(f64::MAX));
        self.texts.insert("feasible", score.is_feasible().to_string());
        let reason = match self.texts.get("proposed_by").map(String::as_str) {
            _ if context.is_some_and(|stored| stored.is_earlier) => "not comparable: measured in an earlier context",
            Some("interference") => "not comparable: measured while other trials ran",
            Some("live_look") => "not ranked: measured by a live look on a running server",
            _ => return ContentState::Ranked,
        };
        self.texts.insert("reason", reason.to_owned());
        ContentState::Unranked
    }
}

/// Returns the text on one line, without control characters and secrets.
pub(super) fn clean(text: &str) -> String {
    redact(&without_controls(text)).into_owned()
}

/// Returns the named texts first, and the others by their names.
fn in_order(mut texts: BTreeMap<&'static str, String>, first: &[&'static str]) -> Vec<(&'static str, String)> {
    let mut ordered: Vec<_> = first.iter().filter_map(|name| texts.remove_entry(name)).collect();
    ordered.extend(texts);
    ordered
}

fn after(started_ms: i64, seconds: f64) -> Option<i64> {
    let elapsed = std::time::Duration::try_from_secs_f64(seconds).ok()?;
    started_ms.checked_add(i64::try_from(elapsed.as_millis()).ok()?)
}

/// Returns the command as a line for a shell.
fn command_text(launch: &LaunchCommand) -> String {
    launch.command.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the environment as the words before a command in a shell.
fn environment_text(launch: &LaunchCommand) -> String {
    let words: Vec<_> = launch.env.iter().map(|(name, value)| format!("{}={}", clean(name), quote(value))).collect();
    words.join(" ")
}

fn broken_text(constraint: &Constraint, measurement: &Measurement) -> String {
    let limit = match constraint.limit {
        MetricLimit::AtMost(limit) => format!("at most {limit}"),
        MetricLimit::AtLeast(limit) => format!("at least {limit}"),
    };
    match measurement.metric(&constraint.metric) {
        Some(value) => format!("{} {value} ({limit})", constraint.metric),
        None => format!("{} was not measured ({limit})", constraint.metric),
    }
}

fn redacted_config(config: &Config) -> Config {
    let value = |(name, value): (&str, &Value)| {
        let value = match value {
            Value::Text(_) if is_secret(name) => REDACTED.into(),
            Value::Text(text) => redact(text).into_owned().into(),
            other => other.clone(),
        };
        (name.to_owned(), value)
    };
    config.iter().map(value).collect()
}

/// Redacts values under the names of secrets, words after the flags of secrets, and texts that look like secrets.
fn redacted_json(json: Json) -> Json {
    match json {
        Json::Object(map) => {
            let entry = |(name, value): (String, Json)| match value {
                Json::String(_) if is_secret(&name) => (name, REDACTED.into()),
                value => (name, redacted_json(value)),
            };
            map.into_iter().map(entry).collect()
        }
        Json::Array(values) => {
            let words: Option<Vec<_>> = values.iter().map(|value| value.as_str().map(str::to_owned)).collect();
            match words {
                Some(words) => LaunchCommand::redacted(&CommandLine::from_words(words), BTreeMap::new()).command.into(),
                None => values.into_iter().map(redacted_json).collect(),
            }
        }
        Json::String(text) => redact(&text).into_owned().into(),
        other => other,
    }
}
