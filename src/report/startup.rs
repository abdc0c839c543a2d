//! Renders the start of a launch in a few lines.

use std::fmt::Write;

use crate::facts::MeasurementCondition;
use crate::trial::Startup;

/// Returns a line of phases, a line for each difference between the requested and the engine's actual values, and the
/// host's conditions. Each condition that distorts measurements has a line of its own.
#[must_use]
pub(crate) fn startup_text(startup: &Startup) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<24}{value}");
    };
    let phases = startup.phases.iter();
    let phases: Vec<_> =
        phases.map(|time| format!("{} {:.2} s", time.phase.replace('_', " "), time.duration_s)).collect();
    if !phases.is_empty() {
        line("start", &phases.join(", "));
    }
    for difference in &startup.differences {
        line("differs", &difference.to_string());
    }
    let one = |condition: &MeasurementCondition| format!("{}: {}", condition.kind.name(), condition.state);
    let (distorting, fine): (Vec<_>, Vec<_>) = startup.conditions.iter().partition(|condition| condition.distorts);
    if !fine.is_empty() {
        line("conditions", &fine.into_iter().map(one).collect::<Vec<_>>().join(", "));
    }
    for condition in distorting {
        line("distorts", &format!("{}; {}", one(condition), condition.effect));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::ConditionKind;
    use crate::trial::{FlagDifference, PhaseTime};

    #[test]
    fn phases_share_a_line_and_each_difference_has_its_own() {
        let time = |phase: &str, duration_s| PhaseTime { phase: phase.to_owned(), duration_s };
        let difference = |flag: &str, asked: &str, resolved: &str| FlagDifference {
            flag: flag.to_owned(),
            asked: asked.to_owned(),
            resolved: resolved.to_owned(),
        };
        let condition = |kind, state: &str, distorts| MeasurementCondition {
            kind,
            state: state.to_owned(),
            distorts,
            effect: "the disk is measured".to_owned(),
            remedy: None,
        };
        let startup = Startup {
            phases: vec![time("import", 14.004), time("kv_cache", 0.5)],
            differences: vec![difference("block-size", "16", "32"), difference("dtype", "float16", "bfloat16")],
            conditions: vec![
                condition(ConditionKind::Boost, "on", false),
                condition(ConditionKind::Swap, "9 GiB", true),
            ],
            ..Startup::default()
        };
        let expected = "\
start                   import 14.00 s, kv cache 0.50 s
differs                 block-size is 32, not the requested 16
differs                 dtype is bfloat16, not the requested float16
conditions              boost: on
distorts                swap: 9 GiB; the disk is measured
";
        assert_eq!(startup_text(&startup), expected);
        assert_eq!(startup_text(&Startup::default()), "");
    }
}
