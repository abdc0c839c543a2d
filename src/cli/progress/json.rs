//! Renders each event as one JSON object.

use serde_json::{Value as Json, json};

use crate::report;
use crate::rule::RemovedByRule;
use crate::trial::Proposal;
use crate::tuner::{TunerEvent, WrongRule};

/// Returns the event as JSON. Events of the load's progress return `None` unless `verbose` is set.
#[expect(clippy::too_many_lines, reason = "one arm for each event")]
pub(super) fn event_json(event: &TunerEvent, verbose: bool) -> Option<Json> {
    Some(match event {
        TunerEvent::Begin { study, stored, launched, best } => {
            json!({"event": "begin", "study": study, "stored": stored, "launched": launched, "best": best})
        }
        TunerEvent::Plan(plan) => json!({
            "event": "plan",
            "trials": plan.trials,
            "baseline_repeats": plan.baseline_repeats,
            "confirmations": plan.confirmations,
            "ablations": plan.ablations,
            "confirms_deployment": plan.confirms_deployment,
            "time_s": plan.time.map(|time| time.as_secs_f64()),
            "left_s": plan.remaining_time.map(|left| left.as_secs_f64()),
            "launch_s": plan.launch.map(|launch| launch.as_secs_f64()),
            "reserve_s": plan.reserve.as_secs_f64(),
        }),
        TunerEvent::Space(removal) => {
            let share =
                |removed: &RemovedByRule| (removed.rule.to_owned(), json!(removal.share(removed.configurations)));
            let rules: serde_json::Map<_, _> = removal.rules.iter().map(share).collect();
            let example = |removed: &RemovedByRule| {
                (removed.rule.to_owned(), json!({"config": removed.config, "message": removed.example}))
            };
            let examples: serde_json::Map<_, _> = removal.rules.iter().map(example).collect();
            json!({
                "event": "space",
                "remaining_share": removal.remaining_share(),
                "rules": rules,
                "examples": examples,
            })
        }
        TunerEvent::LeftoversEnded { processes } => json!({"event": "swept", "processes": processes}),
        TunerEvent::StopCommandFailed { error } => {
            json!({"event": "note", "text": format!("engine.stop_command: {error}")})
        }
        TunerEvent::Preflight { text, .. } | TunerEvent::Notice { text } => json!({"event": "note", "text": text}),
        TunerEvent::MemoryHeld { text } => json!({"event": "held", "text": text}),
        TunerEvent::WrongRule(WrongRule { rule, config, message }) => {
            json!({"event": "wrong_rule", "rule": rule, "config": config, "message": message})
        }
        TunerEvent::RuleTested { number, rule, verdict, config, message, failure } => json!({
            "event": "rule_tested",
            "trial": number,
            "rule": rule,
            "verdict": verdict.name(),
            "config": config,
            "message": message,
            "failure": failure,
        }),
        TunerEvent::RuleSetAside { rule, study, number } => {
            json!({"event": "rule_left_aside", "rule": rule, "study": study, "trial": number})
        }
        TunerEvent::Launch(Proposal { number, origin, why, config, .. }) => {
            json!({"event": "launch", "trial": number, "proposed_by": origin.name(), "config": config, "why": why})
        }
        TunerEvent::Look { server_of, proposal: Proposal { number, why, config, .. } } => {
            json!({"event": "look", "trial": number, "server_of": server_of, "config": config, "why": why})
        }
        TunerEvent::Phase { number, phase } => json!({"event": "phase", "trial": number, "phase": phase.to_string()}),
        TunerEvent::ResolvedValuesDiffer { number, differences } => {
            json!({"event": "differs", "trial": number, "differences": differences})
        }
        TunerEvent::Disturbed { number, reasons, is_repeated } => {
            json!({"event": "disturbed", "trial": number, "reasons": reasons, "repeated": is_repeated})
        }
        TunerEvent::LoadProbed { number, load, knob, kept } => {
            json!({"event": "load", "trial": number, "load": load, "of": knob.name(), "kept": kept})
        }
        TunerEvent::SampleVoided { number, reasons } => json!({"event": "void", "trial": number, "reasons": reasons}),
        TunerEvent::Interference { found, at_a_time } => json!({
            "event": "interference",
            "alone": found.as_ref().map(|found| found.alone),
            "together": found.as_ref().map(|found| &found.together),
            "spoilt": found.as_ref().map(|found| found.infeasible),
            "cost": found.as_ref().map(|found| found.cost),
            "limit": found.as_ref().map(|found| found.limit),
            "at_a_time": at_a_time,
        }),
        TunerEvent::SlotsSetAside { number, slots, why } => {
            json!({"event": "set_aside", "trial": number, "slots": slots, "why": why})
        }
        TunerEvent::NoFurtherTrials { why, running } => json!({"event": "last", "why": why, "running": running}),
        TunerEvent::FurtherError { error } => json!({"event": "note", "text": error}),
        TunerEvent::Retry { incident, wait } => {
            let mut json = report::incident_json(incident);
            json["event"] = "retry".into();
            json["wait_s"] = wait.as_secs_f64().into();
            json
        }
        TunerEvent::Paused(pause) => json!({
            "event": "pause",
            "failures": pause.failures,
            "since": pause.since,
            "last": report::incident_json(&pause.last),
            "reason": pause.to_string(),
            "hint": pause.hint,
        }),
        TunerEvent::Progress { .. } if !verbose => return None,
        TunerEvent::Progress { number, done, total, tokens_per_s } => json!({
            "event": "progress",
            "trial": number,
            "done": done,
            "total": total,
            "output_tokens_per_s": tokens_per_s,
        }),
        TunerEvent::TrialEnded { trial, improves, .. } => json!({
            "event": "trial",
            "trial": trial.trial.proposal.number,
            "state": trial.trial.outcome.name(),
            "value": trial.score.value(),
            "feasible": trial.score.is_feasible(),
            "improves": improves,
            "reason": trial.trial.outcome.reason(),
            "elapsed_s": trial.trial.elapsed_s,
        }),
        TunerEvent::RunEnded(ending) => json!({"event": "end", "reason": ending.to_string()}),
    })
}
