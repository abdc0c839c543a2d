//! Renders studies and trials as JSON for programs.

use serde_json::{Value as Json, json};

use super::configuration_results::{mean_metrics, order_text};
use crate::objective::Score;
use crate::store::{
    ExpectedConfiguration, Incident, RankedConfiguration, ScoredTrial, StoredJudgement, Study, StudyCounts,
};
use crate::study_report::{DeploymentStatus, RankingPlace};
use crate::trial::Outcome;

/// Returns one study with its counts.
#[must_use]
pub(crate) fn study_json(study: &Study, counts: StudyCounts) -> Json {
    json!({
        "study": study.name,
        "created_at": study.created_at,
        "setpoint_version": study.setpoint_version,
        "measured": counts.measured,
        "failed": counts.failed,
        "rejected": counts.rejected,
        "running": counts.running,
        "live_looks": counts.live_looks,
        "definition": study.definition,
        "host": study.host,
    })
}

/// Returns one trial with any outcome. Missing values are null. `violation` is the sum of the relative excesses over
/// the limits.
#[must_use]
pub(crate) fn trial_json(study: &Study, scored: &ScoredTrial) -> Json {
    let trial = &scored.trial;
    let (code, message) = match &trial.outcome {
        Outcome::Rejected(rejection) => (Some(rejection.rule.as_str()), Some(rejection.message.as_str())),
        Outcome::Failed(failure) => (Some(failure.kind.name()), Some(failure.message.as_str())),
        Outcome::Measured(_) => (None, None),
    };
    json!({
        "study": study.name,
        "trial": trial.proposal.number,
        "state": trial.outcome.name(),
        "proposed_by": trial.proposal.origin.name(),
        "measured_by": trial.measured_by().name(),
        "server_of": trial.proposal.server_of,
        "why": trial.proposal.why,
        "expected_gain": trial.proposal.expected_gain,
        "expected": trial.proposal.expected,
        "config": trial.proposal.config,
        "command": trial.launch.command,
        "env": trial.launch.env,
        "started_at": trial.started_at,
        "startup_s": trial.startup_s,
        "elapsed_s": trial.elapsed_s,
        "engine_version": trial.engine_version,
        "log": trial.log,
        "reason_code": code,
        "reason": message,
        "metrics": trial.outcome.measurement(),
        "value": scored.score.value(),
        "feasible": scored.score.is_feasible(),
        "violation": match scored.score {
            Score::Failed => None,
            Score::Infeasible { violation, .. } => Some(violation),
            Score::Feasible { .. } => Some(0.0),
        },
    })
}

/// Returns a launch that failed for a reason of its environment.
#[must_use]
pub(crate) fn incident_json(incident: &Incident) -> Json {
    json!({
        "trial": incident.number,
        "attempt": incident.attempt,
        "at": incident.at,
        "kind": incident.failure.kind.name(),
        "message": incident.failure.message,
        "log": incident.log,
    })
}

/// Returns a configuration with all its measurements: its first trial, `mean_value`, the number of `measurements`, and
/// their `value_range`. `expected` is the prediction of the sampler's model.
#[must_use]
pub(crate) fn ranked_json(study: &Study, ranked: &RankedConfiguration) -> Json {
    let mut json = trial_json(study, &ranked.first);
    json["mean_value"] = ranked.value.into();
    json["measurements"] = ranked.measurements.into();
    json["value_range"] = serde_json::json!([ranked.range.0, ranked.range.1]);
    json["expected"] = ranked.expected.map_or(Json::Null, |expected| {
        let ExpectedConfiguration { value, deviation, feasible, .. } = expected;
        json!({"value": value, "deviation": deviation, "feasible": feasible})
    });
    json
}

/// Returns source and outcome of today's deployment: `measured`, `is_defaults`, `rejected`, `failed` or `not_launched`.
#[must_use]
pub(crate) fn deployment_json(status: &DeploymentStatus) -> Json {
    let DeploymentStatus { source, outcome } = status;
    json!({"source": source, "outcome": outcome.name(), "reason": outcome.reason()})
}

/// Like [`ranked_json`], but with `mean_metrics` over all measurements, their `trials`, and the `disturbed` ones of
/// these. The reason for the configuration's place is in `order` (one word) and `order_reason` (a sentence).
#[must_use]
pub(crate) fn standing_json(study: &Study, place: &RankingPlace) -> Json {
    let RankingPlace { results: standing, rank_reason: order } = place;
    let mut json = ranked_json(study, &standing.ranked);
    json["mean_metrics"] = mean_metrics(standing);
    json["trials"] = standing.measured_trials.iter().map(|scored| scored.trial.proposal.number).collect();
    json["disturbed"] = standing.disturbed().into();
    json["order"] = order.name().into();
    json["order_reason"] = order_text(order).into();
    json
}

/// Returns the judgement of the sampler's model over all measurements. `remaining` has the 5th, 50th and 95th
/// percentile of the remaining gain. Gains are shares of the winner's value.
#[must_use]
pub(crate) fn judgement_json(judgement: &StoredJudgement) -> Json {
    json!({"sampler": judgement.sampler, "remaining": judgement.remaining, "next_gain": judgement.next_gain})
}
