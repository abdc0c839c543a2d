//! A configuration with all its measurements: its means, its place in the ranking, and its gain over the engine's defaults.

use serde_json::{Value as Json, json};

use super::table::number;
use crate::objective::{Goal, Score};
use crate::stats::to_f64;
use crate::store::{Expected, Ranked, Scored, Study};
use crate::trial::Measurement;

/// A configuration of a ranking.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub ranked: Ranked,
    /// Its measured trials, in the order of their numbers.
    pub repeats: Vec<Scored>,
}

/// A metric over several measurements of one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    pub measurements: usize,
}

impl Standing {
    /// Returns the mean and the range of a metric; `None` if no measurement has it.
    #[must_use]
    pub(crate) fn metric(&self, name: &str) -> Option<Spread> {
        let measured = self.repeats.iter().filter_map(|scored| scored.trial.outcome.measurement()?.metric(name));
        let values: Vec<_> = measured.collect();
        let mean = values.iter().sum::<f64>() / to_f64(values.len());
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(Spread { mean, low, high, measurements: values.len() })
    }

    /// Returns the means of all metrics of the load, by name.
    #[must_use]
    pub(crate) fn mean_metrics(&self) -> Json {
        let means =
            Measurement::NAMES.iter().filter_map(|name| Some(((*name).to_owned(), json!(self.metric(name)?.mean))));
        Json::Object(means.collect())
    }

    /// Returns the numbers of the trials whose measurement was disturbed.
    #[must_use]
    pub(crate) fn disturbed(&self) -> Vec<u32> {
        let disturbed = self.repeats.iter().filter(|scored| scored.is_disturbed());
        disturbed.map(|scored| scored.trial.proposal.number).collect()
    }

    /// Whether a measurement of it was over a limit.
    #[must_use]
    pub(crate) fn is_over_a_limit(&self) -> bool {
        self.repeats.iter().any(|scored| matches!(scored.score, Score::Infeasible { .. }))
    }
}

/// Describes the value of a configuration by all its measurements.
#[must_use]
pub(crate) fn value_text(metric: &str, ranked: &Ranked) -> String {
    match ranked.measurements {
        1 => format!("{metric} {}, measured once", number(ranked.value)),
        n => {
            let (least, most) = (number(ranked.range.0), number(ranked.range.1));
            format!("{metric} {}, the mean of {n} measurements from {least} to {most}", number(ranked.value))
        }
    }
}

/// `1234 +-2.5 %`, two standard deviations.
#[must_use]
pub(crate) fn expectation(expected: Expected) -> String {
    format!("{} +-{:.1} %", number(expected.value), 200.0 * expected.deviation)
}

/// Returns how many times better a configuration is than the engine's defaults; `None` if those were not measured.
#[must_use]
pub(crate) fn gain(study: &Study, best: &Ranked, baseline: Option<&Ranked>) -> Option<f64> {
    Some(study.objective()?.gain(best.value, baseline?.value))
}

/// Whether the measured ranges of a configuration and of the defaults do not overlap; `None` if the defaults were not measured,
/// are the configuration itself, or one of the two was measured only once.
#[must_use]
pub(crate) fn is_significant(best: &Ranked, baseline: Option<&Ranked>) -> Option<bool> {
    let baseline =
        baseline.filter(|baseline| baseline.first.trial.proposal.number != best.first.trial.proposal.number)?;
    (best.measurements.min(baseline.measurements) > 1).then(|| best.is_apart_from(baseline))
}

/// Describes the gain over the engine's defaults, and whether the measurements support it.
#[must_use]
pub(crate) fn gain_text(study: &Study, best: &Ranked, baseline: Option<&Ranked>) -> String {
    const GAIN: &str = "gain over the engine's defaults";
    const AGAIN: &str = "(budget.confirm measures both again)";
    if best.first.trial.proposal.number == 0 {
        return format!("{GAIN}: none, no configuration was better");
    }
    let Some((gain, baseline)) = gain(study, best, baseline).zip(baseline) else {
        return format!("{GAIN}: unknown, they were not measured");
    };
    let doubt = match (best.measurements, baseline.measurements) {
        (0 | 1, 0 | 1) => format!(", not significant: each was measured once {AGAIN}"),
        (0 | 1, _) => format!(", not significant: this configuration was measured once {AGAIN}"),
        (_, 0 | 1) => format!(", not significant: the defaults were measured once {AGAIN}"),
        _ if best.is_apart_from(baseline) => String::new(),
        _ => ", not significant: the measured ranges overlap".to_owned(),
    };
    let limits = if baseline.first.score.is_feasible() { "" } else { "; the defaults are over a limit" };
    format!("{GAIN}: {gain:.2}x{doubt}{limits}")
}

/// Explains how an estimated remaining gain fits beside a gain that the measurements do not support.
pub(crate) const BOTH_GAINS: &str = "the two do not contradict each other: the gain compares measured configurations; the remaining gain \
                              is a model's estimate, uncertainty included, of what configurations that were not measured could \
                              add to the best one";

/// The reason for the place of each configuration of a ranking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// Nothing that is expected to be better is so by more than the uncertainty of the difference, or was measured as often.
    Confirmed { times: u32, rival: Expected, rival_times: u32 },
    /// By what a model of all measurements expects.
    Expected,
    /// The model ranks it nowhere, so that it comes after all that it ranks.
    Unranked,
    /// By the mean of its measurements, without a model.
    Mean,
}

impl Order {
    /// Returns the reason for each place of a ranking.
    #[must_use]
    pub(crate) fn of(goal: Goal, ranking: &[Ranked]) -> Vec<Self> {
        let is_judged = ranking.iter().any(|ranked| ranked.expected.is_some());
        let is_better = |one: Expected, other: Expected| match goal {
            Goal::Maximize => one.value > other.value,
            Goal::Minimize => one.value < other.value,
        };
        let order = |(place, ranked): (usize, &Ranked)| {
            let Some(own) = ranked.expected else { return if is_judged { Self::Unranked } else { Self::Mean } };
            let rivals = ranking.iter().skip(1).filter_map(|other| Some((other, other.expected?)));
            let better =
                rivals.filter(|(other, rival)| is_better(*rival, own) && other.measurements < ranked.measurements);
            let best = better.reduce(|best, next| if is_better(next.1, best.1) { next } else { best });
            match best {
                Some((rival, expected)) if place == 0 => {
                    Self::Confirmed { times: ranked.measurements, rival: expected, rival_times: rival.measurements }
                }
                _ => Self::Expected,
            }
        };
        ranking.iter().enumerate().map(order).collect()
    }

    /// One word for a column.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Confirmed { .. } => "confirmed",
            Self::Expected => "expected",
            Self::Unranked => "unranked",
            Self::Mean => "mean",
        }
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Confirmed { times, rival, rival_times } => write!(
                f,
                "confirmed: it was measured {times} times, and trial {}, which is expected at {} and was measured {}, is not \
                 better by more than two standard deviations of the difference",
                rival.trial,
                expectation(*rival),
                if *rival_times == 1 { "once".to_owned() } else { format!("{rival_times} times") }
            ),
            Self::Expected => f.write_str("by the expectation of a model of all measurements: the best single one is mostly luck"),
            Self::Unranked => f.write_str(
                "after all that the model ranks: it lies outside of the space, or is not likely enough to keep the limits",
            ),
            Self::Mean => f.write_str("by the mean of its measurements"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Outcome, Trial};

    fn ranked(trial: u32, value: f64, range: (f64, f64), measurements: u32, expected: Option<f64>) -> Ranked {
        let first = Trial::example(trial, "auto", Outcome::Measured(Measurement::default()));
        let expected = expected.map(|value| Expected { trial, value, deviation: 0.015, feasible: 1.0 });
        Ranked {
            first: Scored { trial: first, score: Score::Feasible { value } },
            value,
            measurements,
            range,
            expected,
        }
    }

    fn study() -> Study {
        let objective = json!({"metric": "output_throughput", "goal": "maximize", "constraints": []});
        Study {
            id: 1,
            name: "s".to_owned(),
            definition: json!({"objective": objective}),
            host: Json::Null,
            setpoint_version: String::new(),
            created_at: String::new(),
        }
    }

    #[test]
    fn a_confirmed_configuration_that_is_expected_lower_comes_first_with_its_reason() {
        let ranking = [
            ranked(7, 4606.0, (4255.0, 4956.0), 2, Some(4621.0)),
            ranked(5, 4700.0, (4700.0, 4700.0), 1, Some(4690.0)),
            ranked(6, 4661.0, (4661.0, 4661.0), 1, Some(4640.0)),
            ranked(9, 4000.0, (4000.0, 4000.0), 1, None),
        ];
        let order = Order::of(Goal::Maximize, &ranking);
        assert_eq!(
            order.iter().map(Order::name).collect::<Vec<_>>(),
            ["confirmed", "expected", "expected", "unranked"]
        );
        let reason = order[0].to_string();
        assert!(
            reason.contains("measured 2 times") && reason.contains("trial 5, which is expected at 4690 +-3.0 %"),
            "{reason}"
        );
        // The smaller value is the better one: nothing is expected to be better than the first.
        assert_eq!(Order::of(Goal::Minimize, &ranking)[0], Order::Expected);
        let means = ranking.map(|ranked| Ranked { expected: None, ..ranked });
        assert!(Order::of(Goal::Maximize, &means).iter().all(|order| *order == Order::Mean));
    }

    #[test]
    fn a_gain_is_significant_only_if_both_were_repeated_and_their_ranges_are_apart() {
        let best = |measurements| ranked(7, 10.0, (9.0, 11.0), measurements, None);
        let defaults = |range, measurements| ranked(0, 8.0, range, measurements, None);
        let text = |best: &Ranked, baseline: &Ranked| gain_text(&study(), best, Some(baseline));
        let apart = defaults((7.0, 8.5), 2);
        assert_eq!(text(&best(2), &apart), "gain over the engine's defaults: 1.25x");
        assert_eq!(is_significant(&best(2), Some(&apart)), Some(true));
        let overlaps = defaults((7.0, 9.0), 2);
        let expected = "gain over the engine's defaults: 1.25x, not significant: the measured ranges overlap";
        assert_eq!(
            (text(&best(2), &overlaps), is_significant(&best(2), Some(&overlaps))),
            (expected.to_owned(), Some(false))
        );
        let once = defaults((8.0, 8.0), 1);
        assert!(text(&best(3), &once).contains("1.25x, not significant: the defaults were measured once ("));
        assert!(text(&best(1), &apart).contains("1.25x, not significant: this configuration was measured once ("));
        assert!(text(&best(1), &once).contains("1.25x, not significant: each was measured once ("));
        assert_eq!((is_significant(&best(3), Some(&once)), is_significant(&once, Some(&once))), (None, None));
    }
}
