//! Renders the results of `check STUDY` as text and as JSON.

use serde_json::{Value as Json, json};

use super::first_points::CheckedPoint;
use super::study::CheckedStudy;
use crate::cli::progress::coarse;
use crate::config::Config;
use crate::execution::{ExecutionEnvironment, ReleaseSource};
use crate::facts::Device;
use crate::memory::MemoryPrediction;
use crate::rule::{Finding, RISKY_PROBABILITY, RangeNarrowing, SpaceRemoval};
use crate::space::{Condition, Domain, Parameter};
use crate::tuner::{FigureSource, PlannedRuleTest, StudyEstimate, WrongRule};

/// Maximum width of a line in characters, including its label.
const MAX_WIDTH: usize = 80;
/// Width of the label column in characters.
const LABEL_WIDTH: usize = 14;

/// Output lines in two columns: label and text. A long text is wrapped, and its further lines have an empty label.
struct TwoColumnText(Vec<String>);

impl TwoColumnText {
    fn add(&mut self, label: &str, text: &str) {
        let mut label = label.to_owned();
        let mut line = String::new();
        for word in text.split(' ') {
            if !line.is_empty() && LABEL_WIDTH + line.chars().count() + 1 + word.chars().count() > MAX_WIDTH {
                self.0.push(format!("{label:<LABEL_WIDTH$}{line}"));
                label.clear();
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.0.push(format!("{label:<LABEL_WIDTH$}{line}"));
    }
}

/// Renders the results for people. Lines exceed [`MAX_WIDTH`] only if a single word is too long. `explain` adds the help
/// text of each parameter.
pub(super) fn as_text(checked: &CheckedStudy<'_>, explain: bool) -> String {
    let (job, search) = (checked.job, &checked.search);
    let fixed = &search.space.fixed;
    let mut page = TwoColumnText(Vec::new());
    page.add("study", &job.name);
    page.add("engine", &format!("{} {}", job.engine.engine.kind(), describe(&checked.installed)));
    let length = job.model.shape.max_model_len(checked.installed.version);
    let assumed = if job.model.shape.lengths.stated.is_none() { ", assumed" } else { "" };
    let known = if job.model.has_shape { format!(" (length {length}{assumed})") } else { String::new() };
    page.add("model", &format!("{}{known}", job.model.argument));
    page.add("fixed", &if fixed.is_empty() { "nothing".to_owned() } else { fixed.to_string() });
    for parameter in &search.space.parameters {
        page.add("parameter", &format!("{}: {}{}", parameter.name, parameter.domain, when(parameter)));
        if let Some(narrowing) = search.narrowings.iter().find(|narrowing| narrowing.parameter == parameter.name) {
            page.add("", &format!("narrowed from {}, by {}", narrowing.before, reasons(narrowing)));
        }
        if explain && let Some(help) = &parameter.help {
            page.add("", help);
        }
    }
    add_removal(&mut page, checked);
    page.add("defaults", &defaults(checked.defaults.as_ref()));
    for point in &checked.first_points {
        page.add(point.label(), &point.text(fixed));
    }
    if let Some(memory) = &checked.memory {
        page.add("memory", &memory_line(memory, &checked.removal));
    }
    if let Some(preflight) = &checked.preflight {
        page.add("preflight", &preflight.text);
        for WrongRule { rule, config, message } in preflight.wrong.iter().flatten() {
            let config = config.without(fixed);
            page.add("", &format!("rule {rule} rejects {config}, but the installed engine accepts it: {message}"));
        }
    }
    for (index, (rule, test)) in checked.verdicts.refuted().into_iter().enumerate() {
        let text =
            format!("{rule}: trial {} of study {} served a configuration that it rejects", test.number, test.study);
        page.add(if index == 0 { "set aside" } else { "" }, &text);
    }
    for (index, PlannedRuleTest { rule, reason, config, .. }) in checked.rule_tests.iter().enumerate() {
        let text = format!(
            "{rule} {reason}, and only a start can refute it: one launch tests it with {}",
            config_text(config, fixed)
        );
        page.add(if index == 0 { "rule tests" } else { "" }, &text);
    }
    for (index, what) in checked.unchecked.iter().enumerate() {
        page.add(if index == 0 { "not checked" } else { "" }, what);
    }
    for (index, warning) in checked.warnings.iter().enumerate() {
        page.add(if index == 0 { "warning" } else { "" }, warning);
    }
    if let Some(slots) = checked.slots.describe() {
        page.add("slots", &slots);
    }
    page.add("duration", &duration(&checked.estimate));
    page.0.join("\n")
}

fn add_removal(page: &mut TwoColumnText, checked: &CheckedStudy<'_>) {
    let removal = &checked.removal;
    let of = if removal.complete { "" } else { "a sample of " };
    let remaining = percent(removal.remaining_share());
    let text = format!("{remaining} of {of}{} configurations pass the rules", removal.configurations);
    page.add("space", &text);
    for removed in &removal.rules {
        let share = percent(removal.share(removed.configurations));
        page.add("", &format!("{share} removed by {}: {}", removed.rule, removed.condition));
        let config = config_text(&removed.config, &checked.search.space.fixed);
        page.add("", &format!("  for instance {config}: {}", removed.example));
    }
}

/// Formats a configuration without the values in `fixed`, which are the same in every launch.
fn config_text(config: &Config, fixed: &Config) -> String {
    let own = config.without(fixed);
    if own.is_empty() { "the engine's defaults".to_owned() } else { own.to_string() }
}

/// Formats a share from 0 to 1 as a percentage. A share above 0 is never shown as 0.0 %.
fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.001 { "less than 0.1 %".to_owned() } else { format!("{:.1} %", 100.0 * share) }
}

fn defaults(finding: Option<&Finding>) -> String {
    match finding {
        None => "accepted".to_owned(),
        Some(finding) if !finding.severity.rejects() => format!("warning {}: {}", finding.rule, finding.message),
        Some(finding) => format!("rejected by {}: {}", finding.rule, finding.message),
    }
}

/// Returns a line such as
/// `KV cache of 191,300 tokens +- 2 % (1.46 requests of 131,072 tokens) with the defaults`. The share of the space that
/// may run out of memory at the start follows.
fn memory_line(memory: &MemoryPrediction, removal: &SpaceRemoval) -> String {
    let cache = if memory.blocks() == 0 {
        "no room for a KV cache".to_owned()
    } else {
        let deviation = match memory.cache_deviation_gib / memory.cache_gib {
            0.0 => String::new(),
            share => format!(" +- {:.0} %", (100.0 * share).max(1.0)),
        };
        let (tokens, length) = (grouped(memory.tokens()), grouped(memory.max_model_len));
        format!("KV cache of {tokens} tokens{deviation} ({:.2} requests of {length} tokens)", memory.concurrency())
    };
    let fails = memory.failure_probability();
    let risk = if fails < RISKY_PROBABILITY {
        String::new()
    } else {
        format!(", which fail to start with a probability of {:.0} %", 100.0 * fails)
    };
    let risky = match removal.risky {
        0 => String::new(),
        risky => format!("; {} of the space may fail to start for lack of memory", percent(removal.share(risky))),
    };
    format!("{cache} with the defaults{risk}{risky}")
}

/// Formats a number with thousands separators, such as `131,072`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

fn reasons(narrowing: &RangeNarrowing) -> String {
    // Only the first sentence is shown. The rest of a message is advice and too long for this line.
    let first = |message: &str| message.split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned();
    let reasons = narrowing.reasons.iter().map(|(rule, message)| format!("{rule}: {}", first(message)));
    reasons.collect::<Vec<_>>().join("; ")
}

/// Formats the conditions under which a parameter applies, such as `, only while enable-chunked-prefill is true`.
fn when(parameter: &Parameter) -> String {
    let condition = |condition: &Condition| {
        let values: Vec<_> = condition.values.iter().map(ToString::to_string).collect();
        format!(", only while {} is {}", condition.parameter, values.join(" or "))
    };
    parameter.conditions.iter().map(condition).collect()
}

fn duration(estimate: &StudyEstimate) -> String {
    let spell = |seconds: f64| coarse(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default());
    let total = estimate.total_s().map_or_else(|| "unlimited".to_owned(), |total| format!("about {}", spell(total)));
    let launches = estimate.launches.map_or_else(String::new, |launches| format!(" for {launches} launches"));
    let limit = estimate.limit_s.map_or_else(String::new, |limit| format!(", within budget.time of {}", spell(limit)));
    let share = estimate.startup_share();
    let (largest, what) = if share >= 0.5 { (share, "start-up") } else { (1.0 - share, "load") };
    let source = match estimate.source {
        FigureSource::Twin(preset) => format!(
            "simulated with the preset of {preset}, not calibrated: no earlier trial with this model is in the database"
        ),
        FigureSource::Study(trials) => format!("the median of {trials} trials of this study"),
        FigureSource::Model(trials) => format!("the median of {trials} trials of other studies with this model"),
        FigureSource::Guess => {
            "a guess from rough figures: no earlier trial with this model is in the database".to_owned()
        }
    };
    if estimate.launches == Some(0) && estimate.finished.launches > 0 {
        return format!(
            "nothing is left to launch; {} launches took {}: {:.1} s of start-up and {:.1} s under load each, {source}",
            estimate.finished.launches,
            spell(estimate.finished.total_s),
            estimate.startup_s,
            estimate.load_s
        );
    }
    format!(
        "{total}{launches}{limit}: {:.1} s of start-up and {:.1} s under load each, {:.0} % of it {what}; {source}",
        estimate.startup_s,
        estimate.load_s,
        100.0 * largest
    )
}

fn describe(installed: &ExecutionEnvironment) -> String {
    let device = match installed.device {
        Device::Cpu => "on the CPU".to_owned(),
        Device::Cuda(gpu) => {
            let what = match gpu.count {
                None => "a GPU".to_owned(),
                Some(1) => "1 GPU".to_owned(),
                Some(count) => format!("{count} GPUs"),
            };
            let memory = gpu.memory.map_or("unknown memory".to_owned(), |memory| format!("{} GiB", memory >> 30));
            let capability = gpu.capability.map(|(major, minor)| format!(", compute capability {major}.{minor}"));
            let reason = installed.detection_error.as_ref().map(|reason| format!(" ({reason})"));
            format!("on {what} of {memory}{}{}", capability.unwrap_or_default(), reason.unwrap_or_default())
        }
    };
    let assumed = if installed.assumed { " (assumed: neither the study nor the engine states it)" } else { "" };
    if installed.release_from == ReleaseSource::Unversioned {
        return device;
    }
    format!("{}{assumed} {device}", installed.version)
}

/// Renders the results for programs, as one JSON object.
pub(super) fn as_json(checked: &CheckedStudy<'_>) -> Json {
    let (job, search, removal) = (checked.job, &checked.search, &checked.removal);
    let narrowings = &search.narrowings;
    let has_release = checked.installed.release_from != ReleaseSource::Unversioned;
    let parameter = |parameter: &Parameter| {
        let narrowing = narrowings.iter().find(|narrowing| narrowing.parameter == parameter.name);
        let when = parameter.conditions.iter().map(|c| (c.parameter.clone(), json!(c.values)));
        json!({
            "name": parameter.name,
            "range": range(&parameter.domain),
            "narrowed_from": narrowing.map(|narrowing| range(&narrowing.before)),
            "narrowed_by": narrowing.map(|narrowing| {
                let reason = |(rule, message): &(&str, String)| json!({"rule": rule, "message": message});
                narrowing.reasons.iter().map(reason).collect::<Vec<_>>()
            }),
            "when": when.collect::<serde_json::Map<_, _>>(),
            "help": parameter.help,
        })
    };
    let rules = removal.rules.iter().map(|removed| {
        let share = removal.share(removed.configurations);
        json!({
            "rule": removed.rule,
            "holds": removed.condition,
            "severity": removed.severity.name(),
            "removed_share": share,
            "example": removed.example,
            "example_config": removed.config,
        })
    });
    let verdict = |finding: &Finding| if finding.severity.rejects() { "reject" } else { "warn" };
    let gpu = checked.installed.device.gpu();
    json!({
        "study": job.name,
        "engine": {
            "kind": job.engine.engine.kind(),
            "version": has_release.then(|| checked.installed.version.to_string()),
            "version_assumed": checked.installed.assumed,
            "device": if gpu.is_some() { "cuda" } else { "cpu" },
            "gpu_memory_bytes": gpu.and_then(|gpu| gpu.memory),
        },
        "model": {
            "name": job.model.argument,
            "max_model_len":
                job.model.has_shape.then(|| job.model.shape.max_model_len(checked.installed.version)),
        },
        "fixed": search.space.fixed,
        "parameters": search.space.parameters.iter().map(parameter).collect::<Vec<_>>(),
        "space": {
            "configurations": removal.complete.then_some(removal.configurations),
            "looked_at": removal.configurations,
            "remaining_share": removal.remaining_share(),
            "rules": rules.collect::<Vec<_>>(),
        },
        "defaults": {
            "verdict": checked.defaults.as_ref().map_or("accept", verdict),
            "rule": checked.defaults.as_ref().map(|finding| finding.rule),
            "message": checked.defaults.as_ref().map(|finding| &finding.message),
        },
        "first_points": checked.first_points.iter().map(CheckedPoint::json).collect::<Vec<_>>(),
        "memory": checked.memory.as_ref().map(|memory| memory_json(memory, removal)),
        "preflight": checked.preflight.as_ref().map(|preflight| &preflight.text),
        "wrong_rules": checked.preflight.as_ref().and_then(|preflight| preflight.wrong.as_ref()).map(|wrong| {
            let one = |w: &WrongRule| json!({"rule": w.rule, "config": w.config, "message": w.message});
            wrong.iter().map(one).collect::<Vec<_>>()
        }),
        "rule_tests": checked.rule_tests.iter().map(|test| {
            json!({"rule": test.rule, "reason": test.reason, "config": test.config, "message": test.message})
        }).collect::<Vec<_>>(),
        "rules_set_aside": checked.verdicts.refuted().into_iter().map(|(rule, test)| {
            json!({"rule": rule, "study": test.study, "trial": test.number, "message": test.message})
        }).collect::<Vec<_>>(),
        "not_checked": checked.unchecked,
        "warnings": checked.warnings,
        "slots": checked.slots.describe().map(|text| {
            json!({"count": checked.slots.count(), "at_a_time": checked.slots.parallel(), "text": text})
        }),
        "duration": duration_json(&checked.estimate),
    })
}

fn memory_json(memory: &MemoryPrediction, removal: &SpaceRemoval) -> Json {
    json!({
        "weights_gib": memory.weights_gib,
        "activations_gib": memory.activations_gib,
        "overhead_gib": memory.overhead_gib,
        "cache_gib": memory.cache_gib,
        "cache_deviation_gib": memory.cache_deviation_gib,
        "cache_tokens": memory.tokens(),
        "max_model_len": memory.max_model_len,
        "concurrency": memory.concurrency(),
        "failure_probability": memory.failure_probability(),
        "risky_share": removal.share(removal.risky),
    })
}

fn duration_json(estimate: &StudyEstimate) -> Json {
    let (source, trials) = match estimate.source {
        FigureSource::Study(trials) => ("study", trials),
        FigureSource::Model(trials) => ("model", trials),
        FigureSource::Twin(_) => ("twin", 0),
        FigureSource::Guess => ("guess", 0),
    };
    json!({
        "total_s": estimate.total_s(),
        "launches": estimate.launches,
        "rounds": estimate.rounds,
        "startup_s": estimate.startup_s,
        "load_s": estimate.load_s,
        "limit_s": estimate.limit_s,
        "source": source,
        "source_trials": trials,
        "taken_launches": estimate.finished.launches,
        "taken_s": estimate.finished.total_s,
    })
}

fn range(domain: &Domain) -> Json {
    let text = domain.to_string();
    match domain {
        Domain::Bool => json!({"text": text, "values": [false, true]}),
        Domain::Categorical(values) => json!({"text": text, "values": values}),
        Domain::Int { low, high, .. } => json!({"text": text, "low": low, "high": high}),
        Domain::Float { low, high, .. } => json!({"text": text, "low": low, "high": high}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_wrapped_and_small_shares_are_not_zero() {
        let mut page = TwoColumnText(Vec::new());
        page.add("label", &"word ".repeat(20));
        assert_eq!(page.0.len(), 2);
        assert!(page.0.iter().all(|line| line.chars().count() <= MAX_WIDTH), "{:?}", page.0);
        assert!(page.0[1].starts_with("              word"), "{:?}", page.0);
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.0002, 0.2].map(percent), ["0.0 %", "less than 0.1 %", "20.0 %"]);
    }
}
