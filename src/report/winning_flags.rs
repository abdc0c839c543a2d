//! Renders the flags of the confirmed winner with their measured effects.

use serde_json::{Value as Json, json};

use crate::decision::{AblationResult, FlagEffect, FlagFinding};
use crate::store::RankedConfiguration;
use crate::study_report::StudyReport;

/// Returns a line for each flag of a configuration that changes the value, and one for the flags that were left out. One
/// line if no flag was tested. Empty unless it is the confirmed winner.
#[must_use]
pub(crate) fn flag_lines(report: &StudyReport, ranked: &RankedConfiguration) -> Vec<String> {
    let Some(result) = report.ablation(ranked) else { return Vec::new() };
    if is_untested(result) {
        return flags_note(result).into_iter().collect();
    }
    let mut lines: Vec<String> =
        kept(result).map(|flag| format!("flag {}: {}", named(flag), finding_text(flag))).collect();
    let dropped: Vec<String> = dropped(result).map(named).collect();
    if !dropped.is_empty() {
        lines.push(format!("left out, because no effect is proven: {}", dropped.join(", ")));
    }
    lines.extend(flags_note(result));
    lines
}

/// Returns whether no launch tested a flag.
fn is_untested(result: &AblationResult) -> bool {
    let is_untested = |flag: &FlagEffect| flag.finding == FlagFinding::Unsettled && flag.effect.is_none();
    !result.flags.is_empty() && result.flags.iter().all(is_untested) && result.is_complete
}

/// Returns a note about effects that were not measured.
pub(super) fn flags_note(result: &AblationResult) -> Option<String> {
    let note = match (is_untested(result), result.is_complete) {
        (true, _) => "effects of single flags: not measured; budget.ablation reserves launches for them",
        (false, false) => "the effects of the flags are not all measured: continue the study",
        (false, true) => return None,
    };
    Some(note.to_owned())
}

/// Adds the flags of a configuration with their effects, and those that were left out. Both are null unless it is the
/// confirmed winner.
pub(crate) fn add_flags(json: &mut Json, report: &StudyReport, ranked: &RankedConfiguration) {
    let result = report.ablation(ranked);
    json["flags"] = result.map_or(Json::Null, |result| kept(result).map(|flag| json!(flag)).collect());
    json["dropped"] = result.map_or(Json::Null, |result| dropped(result).map(|flag| json!(flag)).collect());
}

fn kept(result: &AblationResult) -> impl Iterator<Item = &FlagEffect> {
    result.flags.iter().filter(|flag| flag.is_kept())
}

fn dropped(result: &AblationResult) -> impl Iterator<Item = &FlagEffect> {
    result.flags.iter().filter(|flag| !flag.is_kept())
}

fn named(flag: &FlagEffect) -> String {
    let value = flag.value.as_ref().map(|value| format!(" {value}"));
    format!("{}{}", flag.name, value.unwrap_or_default())
}

/// Returns a text such as `+8.1 % (95 % interval +6.9 to +9.4 %, 6 pairs)`.
pub(super) fn finding_text(flag: &FlagEffect) -> String {
    let effect = flag.effect.map(|effect| {
        let interval = flag.low.zip(flag.high).map(|(low, high)| {
            format!("{:.0} % interval {:+.1} to {:+.1} %, ", 100.0 * FlagEffect::CONFIDENCE, 100.0 * low, 100.0 * high)
        });
        let noun = if flag.pairs == 1 { "pair" } else { "pairs" };
        let together = match flag.together_with.as_slice() {
            [] => String::new(),
            others => format!(" together with {}", others.join(", ")),
        };
        let interval = interval.unwrap_or_default();
        format!("{:+.1} %{together} ({interval}{} {noun} of launches)", 100.0 * effect, flag.pairs)
    });
    match (flag.finding, effect) {
        (FlagFinding::Required, _) => "required: without it a limit is broken or the launch fails".to_owned(),
        (FlagFinding::Unsettled, None) => "effect not measured: too few launches".to_owned(),
        (FlagFinding::Unsettled, Some(effect)) => format!("{effect}, not settled"),
        (_, effect) => effect.unwrap_or_else(|| "effect not measured".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flag(name: &str, finding: FlagFinding, effect: Option<f64>) -> FlagEffect {
        FlagEffect {
            name: name.to_owned(),
            value: Some(64_i64.into()),
            finding,
            effect,
            low: effect.map(|effect| effect - 0.01),
            high: effect.map(|effect| effect + 0.01),
            pairs: 3,
            together_with: Vec::new(),
        }
    }

    #[test]
    fn each_finding_has_a_text() {
        let text = |finding, effect| finding_text(&flag("a", finding, effect));
        assert_eq!(
            text(FlagFinding::Proven, Some(0.081)),
            "+8.1 % (95 % interval +7.1 to +9.1 %, 3 pairs of launches)"
        );
        assert_eq!(text(FlagFinding::Required, None), "required: without it a limit is broken or the launch fails");
        assert_eq!(text(FlagFinding::Unsettled, None), "effect not measured: too few launches");
        let unsettled = text(FlagFinding::Unsettled, Some(0.01));
        assert!(unsettled.starts_with("+1.0 % (") && unsettled.ends_with(", not settled"), "{unsettled}");
        let group = FlagEffect { together_with: vec!["b".to_owned()], ..flag("a", FlagFinding::Proven, Some(0.02)) };
        assert!(finding_text(&group).starts_with("+2.0 % together with b ("));
        assert_eq!(named(&group), "a 64");
    }
}
