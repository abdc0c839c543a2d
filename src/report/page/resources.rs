//! The use of time, the failures and the rejections of a study in its document.

use super::document::{FailurePart, IncidentPart, RejectionPart, SavedTime, TimePart, TimeShare};
use crate::report::terminal::cost_text;
use crate::stats::{median, to_f64};
use crate::study_report::StudyDetails;
use crate::trial::{FailureKind, Outcome, Trial};

/// Returns the use of time. A rejected configuration is estimated to save the median of the failed launches, or else of
/// the starts.
pub(super) fn time_part(details: &StudyDetails) -> TimePart {
    let trials = || details.trials.iter().map(|scored| &scored.trial);
    let measured = || trials().filter(|trial| trial.outcome.measurement().is_some());
    let failed = || trials().filter(|trial| trial.outcome.failure().is_some());
    let start_s = |trial: &Trial| trial.startup_s.filter(|_| trial.proposal.server_of.is_none()).unwrap_or_default();
    let load_s = |trial: &Trial| {
        let measurement = trial.outcome.measurement();
        let window = measurement.and_then(|measurement| measurement.window.as_ref());
        let until = window.map_or_else(|| measurement.map_or(0.0, |it| it.duration_s), |window| window.to_s);
        until.clamp(0.0, (trial.elapsed_s - start_s(trial)).max(0.0))
    };
    let total = |seconds: &mut dyn Iterator<Item = f64>| seconds.fold(0.0, |total, next| total + next);
    let starts = total(&mut measured().map(start_s));
    let loads = total(&mut measured().map(load_s));
    let all = total(&mut measured().map(|trial| trial.elapsed_s));
    let parts = vec![
        TimeShare { name: "starts", seconds: starts },
        TimeShare { name: "loads", seconds: loads },
        TimeShare { name: "further loads, stops and waits", seconds: (all - starts - loads).max(0.0) },
        TimeShare { name: "failed launches", seconds: total(&mut failed().map(|trial| trial.elapsed_s)) },
    ];
    let rejected = usize::try_from(details.report.counts.rejected).unwrap_or_default();
    let failed_s = median(failed().map(|trial| trial.elapsed_s));
    let spared_s = failed_s.or_else(|| median(trials().filter_map(|trial| trial.startup_s))).unwrap_or_default();
    let saved = |by, count, seconds| SavedTime { by, count, seconds };
    let (cost, early) = (&details.cost, details.report.early_ends);
    let saved = [
        saved("rejected before launch (estimated)", rejected, to_f64(rejected) * spared_s),
        saved("loads that ended early", usize::try_from(early.loads).unwrap_or_default(), early.saved_s),
        saved("fast starts", cost.fast_starts, cost.saved_by_fast_starts_s),
        saved("live looks instead of launches", cost.live_looks, cost.saved_by_looks_s),
    ];
    TimePart {
        text: cost_text(&details.report, cost),
        parts,
        rejected,
        saved: saved.into_iter().filter(|saved| saved.count > 0).collect(),
    }
}

/// Returns the failures by kind, the most frequent first. The line and the log are those of the latest one.
pub(super) fn failure_parts(details: &StudyDetails) -> Vec<FailurePart> {
    let mut parts: Vec<FailurePart> = Vec::new();
    for scored in details.trials.iter().rev() {
        let Outcome::Failed(failure) = &scored.trial.outcome else { continue };
        let kind: FailureKind = failure.kind;
        let number = scored.trial.proposal.number;
        match parts.iter_mut().find(|part| part.kind == kind.name()) {
            Some(part) => part.trials.push(number),
            None => parts.push(FailurePart {
                kind: kind.name(),
                count: 0,
                line: failure.message.clone(),
                trials: vec![number],
                log: scored.trial.log.as_ref().map(|path| path.display().to_string()),
            }),
        }
    }
    for part in &mut parts {
        part.trials.reverse();
        part.count = part.trials.len();
    }
    parts.sort_by(|a, b| b.count.cmp(&a.count).then(a.kind.cmp(b.kind)));
    parts
}

/// Returns the rejections by rule, the most frequent first.
pub(super) fn rejection_parts(details: &StudyDetails) -> Vec<RejectionPart> {
    let mut parts: Vec<RejectionPart> = Vec::new();
    for scored in &details.trials {
        let Outcome::Rejected(rejection) = &scored.trial.outcome else { continue };
        let number = scored.trial.proposal.number;
        match parts.iter_mut().find(|part| part.rule == rejection.rule) {
            Some(part) => {
                part.trials.push(number);
                part.count += 1;
            }
            None => parts.push(RejectionPart {
                rule: rejection.rule.clone(),
                count: 1,
                line: rejection.message.clone(),
                trials: vec![number],
            }),
        }
    }
    parts.sort_by(|a, b| b.count.cmp(&a.count).then(a.rule.cmp(&b.rule)));
    parts
}

pub(super) fn incident_parts(details: &StudyDetails) -> Vec<IncidentPart> {
    let part = |incident: &crate::store::Incident| IncidentPart {
        trial: incident.number,
        at: incident.at.clone(),
        kind: incident.failure.kind.name(),
        line: incident.failure.message.clone(),
    };
    details.report.incidents.iter().map(part).collect()
}
