//! Renders the verdict of a comparison of engines.

use super::grid::grid;
use crate::decision::{GainInterval, VerdictKind};

/// An engine of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct ComparedEngine {
    pub name: String,
    /// The name of its study.
    pub study: String,
    /// The best value that keeps every limit.
    pub value: Option<f64>,
    pub launches: u32,
    /// Why its search ended before the others'.
    pub note: Option<String>,
    pub is_winner: bool,
}

/// Returns the verdict and a row for each engine. `other` is the engine that the winner was launched in turn with, the
/// winner's gain over it, and the number of rounds.
#[must_use]
pub(crate) fn engine_comparison_text(
    name: &str,
    metric: &str,
    engines: &[ComparedEngine],
    other: Option<(&str, &GainInterval, usize)>,
) -> String {
    let winner = engines.iter().find(|engine| engine.is_winner).map_or("", |engine| engine.name.as_str());
    let verdict = match other {
        None => format!("{winner}, the only engine with a configuration that keeps every limit"),
        Some((other, gain, rounds)) => pair_text(winner, other, gain, rounds),
    };
    let rows = engines.iter().map(|engine| {
        vec![
            engine.name.clone(),
            engine.value.map_or_else(|| "none".to_owned(), crate::report::number),
            engine.launches.to_string(),
            engine.study.clone(),
            engine.note.clone().unwrap_or_default(),
        ]
    });
    let rows = grid(&["engine", metric, "launches", "study", ""], &[1, 2], rows.collect());
    format!("comparison {name}: {verdict}\n{rows}\n")
}

fn pair_text(winner: &str, other: &str, gain: &GainInterval, rounds: usize) -> String {
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let Some(measured) = gain.gain else {
        return format!("{winner} was not launched in turn with {other}: the budget ended before");
    };
    let interval = match (gain.low, gain.high) {
        (Some(low), Some(high)) => {
            format!("{:.0} % interval {} to {}, ", 100.0 * gain.confidence, percent(low), percent(high))
        }
        _ => String::new(),
    };
    let measured = format!("by {} % ({interval}{rounds} rounds in turn)", percent(measured));
    match gain.kind {
        VerdictKind::Better => format!("{winner} is better than {other} {measured}"),
        VerdictKind::EqualWithinNoise => {
            format!("{winner} and {other} are equal within the noise: they differ {measured}")
        }
        VerdictKind::NoClearWinner => format!("no clear winner; {winner} was better than {other} {measured}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::compare_engines;
    use crate::objective::Goal;

    fn engine(name: &str, value: Option<f64>) -> ComparedEngine {
        let is_winner = name == "llama";
        let note = (!is_winner).then(|| "dropped".to_owned());
        ComparedEngine { name: name.to_owned(), study: format!("c-{name}"), value, launches: 9, note, is_winner }
    }

    #[test]
    fn the_verdict_names_both_engines_the_interval_and_each_study() {
        let engines = [engine("vllm", Some(41.25)), engine("llama", Some(60.5))];
        let gain = compare_engines(&[(20.0, 10.0), (22.0, 11.0), (18.0, 9.0)], Goal::Maximize);
        let text = engine_comparison_text("c", "output_throughput", &engines, Some(("vllm", &gain, 3)));
        assert!(text.starts_with(
            "comparison c: llama is better than vllm by 100.0 % (98 % interval 100.0 to 100.0, 3 rounds in turn)\n"
        ));
        assert!(text.contains("c-vllm") && text.contains("dropped"), "{text}");
        let alone = [engine("vllm", None), engine("llama", Some(60.5))];
        let text = engine_comparison_text("c", "output_throughput", &alone, None);
        assert!(text.starts_with("comparison c: llama, the only engine with a configuration"), "{text}");
        let unmeasured = compare_engines(&[], Goal::Maximize);
        let text = engine_comparison_text("c", "x", &engines, Some(("vllm", &unmeasured, 0)));
        assert!(text.contains("llama was not launched in turn with vllm"), "{text}");
    }
}
