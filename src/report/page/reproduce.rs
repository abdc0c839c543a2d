//! The facts of a study and everything needed to repeat it, in its document.

use serde_json::Value as Json;

use super::PageOptions;
use super::document::{CommandPart, ContextPart, Fact, ReproducePart, StudyPart};
use super::findings::{command_text, goal_name};
use crate::facts::TrialContext;
use crate::objective::Objective;
use crate::stats::gib_text;
use crate::study_report::StudyDetails;

pub(super) fn study_part(details: &StudyDetails) -> StudyPart {
    let (study, counts) = (&details.report.study, details.report.counts);
    let definition = &study.definition;
    let mut facts: Vec<Fact> = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        facts.extend(value.filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value)));
    };
    let context = details.present_context.as_ref();
    let kind = definition["engine"]["kind"].as_str().unwrap_or("unknown");
    let release = context.and_then(|context| context.release.clone());
    add("engine", Some(release.map_or_else(|| kind.to_owned(), |release| format!("{kind} {release}"))));
    add("model", definition["model"].as_str().map(str::to_owned));
    add("device", context.and_then(device_text));
    add("host", context.and_then(|context| context.host.name.clone()));
    if let Some(workloads) = definition["workloads"].as_array() {
        for workload in workloads {
            let name = workload["name"].as_str().unwrap_or_default();
            add(&format!("workload {name}"), Some(values_text(workload, &["name"])));
        }
    } else {
        add("workload", Some(values_text(&definition["workload"], &[])));
        add("load", Some(values_text(&definition["load"], &[])));
    }
    let objective = details.report.objective.as_ref();
    add("objective", objective.map(|it| format!("{} {}", goal_name(it.goal), it.value_name())));
    let limits: Vec<_> = objective.into_iter().flat_map(Objective::limits).map(ToString::to_string).collect();
    add("limits", Some(limits.join(", ")));
    add("setpoint", Some(study.setpoint_version.clone()));
    add("created", Some(study.created_at.clone()));
    StudyPart {
        name: study.name.clone(),
        created_at: study.created_at.clone(),
        facts,
        counts: super::document::CountsPart {
            measured: counts.measured,
            failed: counts.failed,
            rejected: counts.rejected,
            running: counts.running,
            live_looks: counts.live_looks,
        },
    }
}

/// Returns the values of an object as `kind, name value, name value`. Absent values and `except` are left out.
fn values_text(json: &Json, except: &[&str]) -> String {
    let shown = |value: &Json| match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    let object = json.as_object();
    let kind = json["kind"].as_str().map(str::to_owned);
    let other = object
        .into_iter()
        .flatten()
        .filter(|(name, value)| name.as_str() != "kind" && !except.contains(&name.as_str()) && !value.is_null());
    kind.into_iter().chain(other.map(|(name, value)| format!("{name} {}", shown(value)))).collect::<Vec<_>>().join(", ")
}

fn device_text(context: &TrialContext) -> Option<String> {
    let name = context.device.name.clone()?;
    Some(match context.device.count {
        Some(count) if count > 1 => format!("{count} x {name}"),
        _ => name,
    })
}

pub(super) fn reproduce_part(details: &StudyDetails, options: &PageOptions<'_>) -> ReproducePart {
    let mut commands = Vec::new();
    if details.report.winner().is_some() {
        let launch = command_text(&options.commands.launch);
        commands.push(CommandPart { purpose: "launch the winner", command: launch });
        commands
            .push(CommandPart { purpose: "write the winner as a script", command: options.commands.export.join(" ") });
    }
    commands
        .extend(options.questions.iter().map(|(purpose, command)| CommandPart { purpose, command: command.clone() }));
    ReproducePart { contexts: context_parts(details), commands, definition: details.report.study.definition.clone() }
}

/// Returns the contexts of the study's trials, the present one first.
fn context_parts(details: &StudyDetails) -> Vec<ContextPart> {
    let mut parts: Vec<(Option<&TrialContext>, ContextPart)> = Vec::new();
    for stored in details.contexts.values() {
        let context = stored.context.as_ref();
        let same =
            |known: Option<&TrialContext>, part: &ContextPart| known == context && part.is_present != stored.is_earlier;
        if let Some((_, part)) = parts.iter_mut().find(|(known, part)| same(*known, part)) {
            part.trials += 1;
        } else {
            let facts = context.map_or_else(Vec::new, context_facts);
            parts.push((context, ContextPart { is_present: !stored.is_earlier, trials: 1, facts }));
        }
    }
    let mut parts: Vec<_> = parts.into_iter().map(|(_, part)| part).collect();
    parts.sort_by_key(|part| !part.is_present);
    parts
}

fn context_facts(context: &TrialContext) -> Vec<Fact> {
    let TrialContext { release, device, host } = context;
    let facts = [
        ("release", release.clone()),
        ("device", device_text(context)),
        ("device memory", device.memory.map(gib_text)),
        ("MIG profile", device.mig_profile.clone().filter(|profile| profile != "none")),
        ("compute capability", device.compute_capability.clone()),
        ("power limit", device.power_limit_w.map(|limit| format!("{limit:.0} W"))),
        ("driver", device.driver.clone()),
        ("host", host.name.clone()),
        ("processor", host.cpu.clone()),
        ("processors", host.cpus.map(|count| count.to_string())),
        ("host memory", host.memory.map(gib_text)),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
