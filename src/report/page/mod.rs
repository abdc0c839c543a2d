//! The page of a study: a document with its findings and trials, and the template that renders it as HTML.

mod comparison;
mod document;
mod findings;
mod markdown;
mod prometheus;
mod reproduce;
mod resources;
mod template;
mod timelines;
mod trials;

use serde_json::{Value as Json, json};

use crate::report::terminal::CardCommands;
use crate::sampler::Explanation;
use crate::store::now;
use crate::study_report::{NoWinner, StudyDetails};
use crate::trial::without_controls;

pub(crate) use comparison::studies_comparison;
pub(crate) use document::{StudyDocument, Timeline};
pub(crate) use markdown::report_markdown;
pub(crate) use prometheus::{PROMETHEUS_TYPE, prometheus_text};
pub(crate) use template::{
    EMBEDDED_LICENSES, PageError, comparison_page, live_page, page_assets, report_html, studies_page,
};
pub(crate) use trials::page_fronts;

/// The largest number of samples of all timelines of a document together, and of one of them. It bounds the size of a page.
const TIMELINE_SAMPLES: usize = 16_000;
const MAX_TIMELINE_SAMPLES: usize = 120;
const MIN_TIMELINE_SAMPLES: usize = 12;

/// The parts of a document that the database does not contain.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageOptions<'a> {
    pub commands: CardCommands,
    /// Purposes and commands of further questions.
    pub questions: Vec<(&'static str, String)>,
    pub is_running: bool,
    /// The reason for a missing winner.
    pub no_winner: Option<&'a NoWinner>,
    /// The address of a timeline on a live page. The document then contains none.
    pub timelines_url: Option<String>,
}

impl StudyDocument {
    /// Creates the document of a study.
    #[must_use]
    pub(crate) fn new(details: &StudyDetails, options: &PageOptions<'_>) -> Self {
        let report = &details.report;
        let objective = report.objective.as_ref();
        let metrics = trials::metric_names(objective, &details.trials);
        let rows = trials::trial_parts(details, &metrics);
        let (flags, flags_note) = findings::flag_parts(report);
        let (importance, importance_note) = importance_part(details);
        let samples = TIMELINE_SAMPLES / details.series.len().max(1);
        let samples = samples.clamp(MIN_TIMELINE_SAMPLES, MAX_TIMELINE_SAMPLES);
        let timelines = details.series.iter();
        Self {
            format: document::FORMAT,
            setpoint_version: env!("CARGO_PKG_VERSION"),
            written_at: now(),
            is_running: options.is_running,
            study: reproduce::study_part(details),
            objective: objective.map(findings::objective_part),
            limits: findings::limit_parts(objective),
            verdict: findings::verdict_part(report, options.no_winner, options.is_running),
            winner: findings::winner_part(report, &options.commands),
            gains: findings::gain_parts(report),
            values: findings::value_parts(report),
            flags,
            flags_note,
            remaining_gain: report.judgement.as_ref().and_then(|judgement| judgement.remaining),
            remarks: findings::remark_parts(report),
            parameters: trials::parameter_parts(&report.study.definition, &rows),
            metric_goals: trials::metric_goals(&metrics),
            metrics,
            trials: rows,
            fronts: trials::front_parts(details),
            load_curves: findings::load_curve_parts(details),
            importance,
            importance_note,
            time: resources::time_part(details),
            failures: resources::failure_parts(details),
            rejections: resources::rejection_parts(details),
            incidents: resources::incident_parts(details),
            timelines: timelines
                .filter_map(|(number, stored)| Some((*number, timelines::timeline(stored, samples)?)))
                .collect(),
            timelines_url: options.timelines_url.clone(),
            reproduce: reproduce::reproduce_part(details, options),
        }
    }

    /// Returns the first trial of the best configuration; `None` without one.
    #[must_use]
    pub(crate) fn winning_trial(&self) -> Option<u32> {
        self.winner.as_ref().map(|winner| winner.trial)
    }

    /// Returns the entry of a list of studies, with the address of the study's page.
    #[must_use]
    pub(crate) fn summary_json(&self, url: &str) -> Json {
        let facts = self.study.facts.iter().filter(|(name, _)| ["engine", "model", "device"].contains(&name.as_str()));
        let text: Vec<_> = facts.map(|(_, value)| value.as_str()).collect();
        let mut summary = json!({
            "name": self.study.name,
            "url": url,
            "text": text.join(", "),
            "counts": self.study.counts,
            "is_running": self.is_running,
            "verdict": self.verdict.text,
        });
        remove_controls(&mut summary);
        summary
    }

    /// Returns the document as JSON. Strings have no control characters except the line ends of commands.
    ///
    /// # Errors
    /// Never in practice: all keys are strings.
    pub(crate) fn to_json(&self) -> Result<Json, serde_json::Error> {
        let mut json = serde_json::to_value(self)?;
        remove_controls(&mut json);
        Ok(json)
    }
}

impl Timeline {
    /// Creates the timeline of a trial from its stored samples; `None` without samples.
    #[must_use]
    pub(crate) fn new(stored: &Json) -> Option<Self> {
        timelines::timeline(stored, MAX_TIMELINE_SAMPLES)
    }
}

/// Returns the importance of the parameters, and a note if it is absent or lacks later trials.
fn importance_part(details: &StudyDetails) -> (Option<document::ImportancePart>, Option<String>) {
    const COMMAND: &str = "`setpoint importance STUDY.toml` computes it from all trials and stores it";
    let stored = details.explanation.as_ref();
    let part = stored.and_then(|stored| {
        let explanation: Explanation = serde_json::from_value(stored.explanation.clone()).ok()?;
        Some(document::ImportancePart { about: explanation.numbers, trials: stored.outcomes })
    });
    let outcomes = details.trials.len();
    let note = match &part {
        None => Some(format!(
            "the importance of the parameters is not stored yet; a run with two measurements for each parameter stores it at its end, and {COMMAND}"
        )),
        Some(part) if (part.trials as usize) < outcomes => {
            Some(format!("this is the state after {} of {outcomes} trials; {COMMAND}", part.trials))
        }
        Some(_) => None,
    };
    (part, note)
}

fn remove_controls(json: &mut Json) {
    match json {
        Json::String(text) => {
            let clean: Vec<_> = text.split('\n').map(|line| without_controls(line).into_owned()).collect();
            *text = clean.join("\n");
        }
        Json::Array(values) => values.iter_mut().for_each(remove_controls),
        Json::Object(fields) => fields.values_mut().for_each(remove_controls),
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}
