//! Imported results as trials of a study of their own.
//!
//! Configurations are compared only if everything that distinguishes their measurements is known. So a trial's
//! configuration has, beside the flags, the load and the device as keys that begin with `import.`. A result without a
//! launch line has its place in the document as `import.result`, because its flags are unknown. A later study uses
//! such a key like a flag that it does not set: a trial is no point of its space if the key differs among the trials.

use std::collections::BTreeMap;

use super::{ImportedDocument, ImportedFailure, ImportedResult};
use crate::config::{Config, Value};
use crate::engine::EngineEvidence;
use crate::engines::default_engine;
use crate::objective::{Goal, Objective};
use crate::store::{ScoredTrial, now};
use crate::trial::{
    CommandLine, Failure, FailureKind, LaunchCommand, Measurement, Origin, Outcome, Proposal, Rejection, Trial,
    without_controls,
};

/// Begin of the keys that describe a result and are no flags.
const PREFIX: &str = "import.";

/// Total memory of an imported result's device. Our own trials have it in their context.
pub(crate) const TOTAL_MEMORY: &str = "gpu_memory_total_gib";

/// Metrics for the objective of an imported study, the first that a result has.
const OBJECTIVES: [(&str, Goal); 5] = [
    ("output_throughput", Goal::Maximize),
    ("request_throughput", Goal::Maximize),
    ("total_token_throughput", Goal::Maximize),
    ("mean_e2el_ms", Goal::Minimize),
    ("mean_ttft_ms", Goal::Minimize),
];

/// The trials of documents, ready to be stored.
#[derive(Debug)]
pub(crate) struct ImportedStudy {
    pub objective: Objective,
    /// Their numbers are given when they are stored.
    pub trials: Vec<ScoredTrial>,
}

impl ImportedStudy {
    /// Converts documents. Without an objective, the documents decide.
    #[must_use]
    pub(crate) fn new(documents: &[ImportedDocument], objective: Option<Objective>) -> Self {
        let results = || documents.iter().flat_map(|document| &document.results);
        let stated = documents.iter().find_map(|document| document.objective.clone());
        let objective = objective.or(stated).unwrap_or_else(|| usual(&results().collect::<Vec<_>>()));
        let scored = |result: &ImportedResult| {
            let trial = trial(result);
            ScoredTrial { score: objective.score(&trial.outcome), trial }
        };
        Self { trials: results().map(scored).collect(), objective }
    }
}

fn usual(results: &[&ImportedResult]) -> Objective {
    let has = |metric: &str| results.iter().any(|result| result.metrics.contains_key(metric));
    let (metric, goal) = OBJECTIVES.into_iter().find(|(metric, _)| has(metric)).unwrap_or(OBJECTIVES[0]);
    Objective {
        metric: metric.to_owned(),
        goal,
        constraints: Vec::new(),
        joint: None,
        price_per_hour: None,
        load_goal: None,
    }
}

fn trial(result: &ImportedResult) -> Trial {
    let launch = result.launch.as_ref();
    let config = config(result);
    let duration = result.metrics.get("duration").copied().filter(|seconds| *seconds > 0.0);
    Trial {
        proposal: Proposal {
            number: 0,
            origin: Origin::Import,
            why: Some(without_controls(&source(result)).into_owned()),
            expected_gain: None,
            expected: None,
            config,
            server_of: None,
        },
        launch: launch.map_or_else(LaunchCommand::default, |launch| {
            LaunchCommand::redacted(&CommandLine::from_words(launch.command.clone()), launch.env.clone())
        }),
        started_at: result.measured_at.clone().unwrap_or_else(now),
        startup_s: None,
        elapsed_s: duration.unwrap_or_default(),
        engine_version: result.engine_version.clone(),
        log: None,
        outcome: outcome(result).for_storage(),
        probe: None,
    }
}

/// Describes the place of a result in its document.
fn source(result: &ImportedResult) -> String {
    let name = result.name.as_ref().map(|name| format!(", {name}"));
    format!("imported from {}:{}{}", result.file.display(), result.line, name.unwrap_or_default())
}

fn outcome(result: &ImportedResult) -> Outcome {
    match &result.failure {
        Some(ImportedFailure { message, rule: Some(rule), .. }) => {
            Outcome::Rejected(Rejection { rule: rule.clone(), message: message.clone() })
        }
        Some(ImportedFailure { message, kind: Some(kind), .. }) => {
            Outcome::Failed(Failure { kind: *kind, message: message.clone() })
        }
        Some(ImportedFailure { message, .. }) => {
            let kind = diagnose(message);
            Outcome::Failed(Failure { kind, message: message.clone() })
        }
        None => {
            let gib = |mib: u64| crate::stats::to_f64(mib) / 1024.0;
            let memory = result.memory.into_iter().flat_map(|memory| {
                let values = [("gpu_memory_gib_max", memory.used_mib), (TOTAL_MEMORY, memory.total_mib)];
                values.map(|(name, mib)| (name.to_owned(), gib(mib)))
            });
            let is_server = |name: &str| crate::trial::SERVER_NAMES.iter().any(|(known, _)| *known == name);
            let (mut server, reported): (BTreeMap<_, _>, BTreeMap<_, _>) =
                result.metrics.clone().into_iter().partition(|(name, _)| is_server(name));
            server.extend(memory);
            Outcome::Measured(Measurement::of_reported(reported, server))
        }
    }
}

/// Returns the engine's diagnosis of an error message.
fn diagnose(message: &str) -> FailureKind {
    let evidence = EngineEvidence {
        log: message,
        exit: Some(crate::engine::ProcessExit::Code(1)),
        under_load: false,
        oom_kills: 0,
        ended_by_tuner: false,
        own_models: &[],
    };
    default_engine().diagnose(&evidence).kind
}

/// Returns the flags with the keys that describe the measurement.
fn config(result: &ImportedResult) -> Config {
    let mut config = result.launch.as_ref().map(|launch| launch.config.clone()).unwrap_or_default();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            config.set(format!("{PREFIX}{name}"), value);
        }
    };
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    let count = |count: Option<u64>| count.and_then(|count| i64::try_from(count).ok()).map(Value::Int);
    let load = &result.load;
    if result.launch.is_none() {
        let place = || format!("{}:{}", result.file.display(), result.line);
        set("result", Some(Value::from(result.name.clone().unwrap_or_else(place))));
    }
    set("model", text(&load.model));
    set("device", text(&result.device));
    // JSON has no infinity.
    set("rate", load.rate.map(|rate| if rate.is_finite() { Value::Float(rate) } else { Value::from("inf") }));
    set("concurrency", count(load.concurrency));
    set("requests", count(load.requests));
    set("input-len", count(load.input_len));
    set("output-len", count(load.output_len));
    config
}
