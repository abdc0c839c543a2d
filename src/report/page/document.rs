//! The document of a study: everything that its page, its Markdown and its JSON show. All three render these values.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value as Json;

use crate::config::Config;
use crate::sampler::ExplainedNumber;
use crate::trial::ExpectedValue;

/// The format of the JSON. It changes if a field changes its meaning.
pub(super) const FORMAT: u32 = 1;

/// A name with a text.
pub(super) type Fact = (String, String);

/// The document of a study. Shares are of 1, times are in seconds, instants in RFC 3339.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StudyDocument {
    pub(super) format: u32,
    pub(super) setpoint_version: &'static str,
    pub(super) written_at: String,
    /// Whether a tuner runs the study now.
    pub(super) is_running: bool,
    pub(super) study: StudyPart,
    pub(super) objective: Option<ObjectivePart>,
    pub(super) limits: Vec<LimitPart>,
    pub(super) verdict: VerdictPart,
    pub(super) winner: Option<WinnerPart>,
    pub(super) gains: Vec<GainPart>,
    /// The winner and the baselines.
    pub(super) values: Vec<ValuePart>,
    /// The flags of the confirmed winner, with their effects.
    pub(super) flags: Vec<FlagPart>,
    pub(super) flags_note: Option<String>,
    /// The 5th, 50th and 95th percentile of the estimated remaining gain.
    pub(super) remaining_gain: Option<[f64; 3]>,
    pub(super) remarks: Vec<String>,
    pub(super) parameters: Vec<ParameterPart>,
    /// The metrics of the trials, in the order of their values.
    pub(super) metrics: Vec<&'static str>,
    pub(super) metric_goals: BTreeMap<&'static str, &'static str>,
    pub(super) trials: Vec<TrialPart>,
    pub(super) fronts: Vec<FrontPart>,
    pub(super) load_curves: Vec<LoadCurvePart>,
    pub(super) importance: Option<ImportancePart>,
    pub(super) importance_note: Option<String>,
    pub(super) time: TimePart,
    pub(super) failures: Vec<FailurePart>,
    pub(super) rejections: Vec<RejectionPart>,
    pub(super) incidents: Vec<IncidentPart>,
    pub(super) timelines: BTreeMap<u32, Timeline>,
    /// The address of one timeline on a live page, with `{trial}` for the number.
    pub(super) timelines_url: Option<String>,
    pub(super) reproduce: ReproducePart,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct StudyPart {
    pub(super) name: String,
    pub(super) created_at: String,
    pub(super) facts: Vec<Fact>,
    pub(super) counts: CountsPart,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct CountsPart {
    pub(super) measured: i64,
    pub(super) failed: i64,
    pub(super) rejected: i64,
    pub(super) running: i64,
    pub(super) live_looks: i64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ObjectivePart {
    pub(super) metric: String,
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) goal: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LimitPart {
    pub(super) metric: String,
    pub(super) text: String,
    pub(super) at_most: Option<f64>,
    pub(super) at_least: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct VerdictPart {
    pub(super) text: String,
    /// `better`, `keep`, `doubtful`, `none` or `running`.
    pub(super) kind: &'static str,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct WinnerPart {
    pub(super) trial: u32,
    pub(super) value: f64,
    pub(super) value_text: String,
    /// The launch as text for a shell.
    pub(super) command: String,
    pub(super) export: String,
    pub(super) config: Vec<SetFlag>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct SetFlag {
    pub(super) flag: String,
    pub(super) value: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct GainPart {
    pub(super) over: &'static str,
    pub(super) text: String,
    pub(super) factor: Option<f64>,
    /// The interval of `factor - 1`.
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    pub(super) confidence: Option<f64>,
    pub(super) is_significant: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ValuePart {
    pub(super) name: String,
    /// `winner`, `defaults` and `deployment`: a configuration may be several of them.
    pub(super) roles: Vec<&'static str>,
    pub(super) value: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) measurements: u32,
    pub(super) is_feasible: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct FlagPart {
    pub(super) flag: String,
    pub(super) value: String,
    pub(super) text: String,
    pub(super) effect: Option<f64>,
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    pub(super) is_kept: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ParameterPart {
    pub(super) name: String,
    pub(super) domain: String,
    /// `number` or `choice`.
    pub(super) kind: &'static str,
    pub(super) log: bool,
    /// The values of a choice.
    pub(super) values: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent marks of a row")]
pub(super) struct TrialPart {
    pub(super) trial: u32,
    pub(super) origin: String,
    pub(super) state: String,
    pub(super) value: Option<f64>,
    pub(super) is_feasible: Option<bool>,
    /// The best feasible value of launches up to this trial.
    pub(super) best: Option<f64>,
    pub(super) is_confirmation: bool,
    pub(super) is_look: bool,
    pub(super) is_disturbed: bool,
    pub(super) is_earlier_context: bool,
    pub(super) expected: Option<ExpectedValue>,
    pub(super) started_at: String,
    pub(super) startup_s: Option<f64>,
    pub(super) elapsed_s: Option<f64>,
    pub(super) reason_code: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) why: Option<String>,
    pub(super) config: Config,
    pub(super) metrics: Option<Vec<Option<f64>>>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct FrontPart {
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) trials: Vec<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadCurvePart {
    pub(super) name: String,
    pub(super) trial: u32,
    pub(super) unit: &'static str,
    pub(super) highest: f64,
    pub(super) low: Option<f64>,
    pub(super) high: Option<f64>,
    pub(super) text: String,
    pub(super) points: Vec<LoadPointPart>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LoadPointPart {
    pub(super) load: f64,
    pub(super) kept: bool,
    pub(super) metrics: BTreeMap<&'static str, f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ImportancePart {
    pub(super) about: Vec<ExplainedNumber>,
    /// The number of outcomes that it uses.
    pub(super) trials: u32,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct TimePart {
    pub(super) text: String,
    pub(super) parts: Vec<TimeShare>,
    pub(super) rejected: usize,
    pub(super) saved: Vec<SavedTime>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TimeShare {
    pub(super) name: &'static str,
    pub(super) seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SavedTime {
    pub(super) by: &'static str,
    pub(super) count: usize,
    pub(super) seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct FailurePart {
    pub(super) kind: &'static str,
    pub(super) count: usize,
    /// The message of the latest one.
    pub(super) line: String,
    pub(super) trials: Vec<u32>,
    pub(super) log: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct RejectionPart {
    pub(super) rule: String,
    pub(super) count: usize,
    pub(super) line: String,
    pub(super) trials: Vec<u32>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct IncidentPart {
    pub(super) trial: u32,
    pub(super) at: String,
    pub(super) kind: &'static str,
    pub(super) line: String,
}

/// Samples of a server over time. All series have the instants `at_s`, from the start of the measured window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Timeline {
    pub(super) at_s: Vec<f64>,
    pub(super) series: BTreeMap<&'static str, Vec<Option<f64>>>,
    /// Begin and end of the measured window.
    pub(super) window: Option<[f64; 2]>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ReproducePart {
    pub(super) contexts: Vec<ContextPart>,
    pub(super) commands: Vec<CommandPart>,
    pub(super) definition: Json,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ContextPart {
    pub(super) is_present: bool,
    pub(super) trials: usize,
    pub(super) facts: Vec<Fact>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CommandPart {
    #[serde(rename = "for")]
    pub(super) purpose: &'static str,
    pub(super) command: String,
}
