//! Renders a configuration with all its measurements as text and JSON.

use serde_json::{Value as Json, json};

use super::table::number;
use crate::store::{ExpectedConfiguration, RankedConfiguration};
use crate::study_report::{
    ConfigurationResults, DeploymentOutcome, DeploymentStatus, Gain, GainDoubt, GainRange, RankReason, StudyReport,
};
use crate::trial::Measurement;

/// Returns the means of all metrics of the load, by name.
#[must_use]
pub(crate) fn mean_metrics(standing: &ConfigurationResults) -> Json {
    let means =
        Measurement::NAMES.iter().filter_map(|name| Some(((*name).to_owned(), json!(standing.metric(name)?.mean))));
    Json::Object(means.collect())
}

/// Describes the value of a configuration by all its measurements.
#[must_use]
pub(crate) fn value_text(metric: &str, ranked: &RankedConfiguration) -> String {
    match ranked.measurements {
        1 => format!("{metric} {}, measured once", number(ranked.value)),
        n if ranked.is_confirmed => {
            let (least, most) = (number(ranked.range.0), number(ranked.range.1));
            let value = number(ranked.value);
            format!("{metric} {value}, confirmed; {n} measurements from {least} to {most}")
        }
        n => {
            let (least, most) = (number(ranked.range.0), number(ranked.range.1));
            format!("{metric} {}, the mean of {n} measurements from {least} to {most}", number(ranked.value))
        }
    }
}

/// Returns a text such as `1234 +-2.5 %`, with two standard deviations on either side.
#[must_use]
pub(crate) fn expectation(expected: ExpectedConfiguration) -> String {
    format!("{} +-{:.1} %", number(expected.value), 200.0 * expected.deviation)
}

/// Describes the gain over the engine's defaults, and whether the measurements support it.
#[must_use]
pub(crate) fn gain_text(gain: Gain) -> String {
    gain_over(gain, "the engine's defaults", "the defaults were", "the defaults are")
}

/// Describes the gain over today's deployment, and whether the measurements support it.
#[must_use]
pub(crate) fn deployment_gain_text(gain: Gain) -> String {
    gain_over(gain, "today's deployment", "the deployment was", "the deployment is")
}

/// Describes the gain over a baseline, which is the subject of two parts of sentences.
fn gain_over(gain: Gain, baseline: &str, baseline_was: &str, baseline_is: &str) -> String {
    const AGAIN: &str = "(budget.confirm measures both again)";
    let title = format!("gain over {baseline}");
    let (factor, doubt, baseline_over_limit, interval) = match gain {
        Gain::None => return format!("{title}: none, no configuration was better"),
        Gain::Unknown => return format!("{title}: unknown, {baseline_was} not measured"),
        Gain::Factor { factor, doubt, baseline_over_limit, interval } => (factor, doubt, baseline_over_limit, interval),
    };
    let interval = interval.map(|interval| format!(" ({})", interval_text(interval))).unwrap_or_default();
    let doubt = match doubt {
        None => String::new(),
        Some(GainDoubt::WithinNoise) => ", equal within noise".to_owned(),
        Some(GainDoubt::Wide) => ", no clear winner: the budget of the confirmation ended".to_owned(),
        Some(GainDoubt::EachMeasuredOnce) => format!(", not significant: each was measured once {AGAIN}"),
        Some(GainDoubt::ConfigurationMeasuredOnce) => {
            format!(", not significant: this configuration was measured once {AGAIN}")
        }
        Some(GainDoubt::BaselineMeasuredOnce) => {
            format!(", not significant: {baseline_was} measured once {AGAIN}")
        }
        Some(GainDoubt::Overlap) => ", not significant: the measured ranges overlap".to_owned(),
    };
    let limits = if baseline_over_limit { format!("; {baseline_is} over a limit") } else { String::new() };
    format!("{title}: {factor:.2}x{interval}{doubt}{limits}")
}

/// Returns a text such as `98 % interval -1.2 to 3.4 %`.
#[must_use]
pub(crate) fn interval_text(interval: GainRange) -> String {
    let [low, high, confidence] = [interval.low, interval.high, interval.confidence].map(|share| 100.0 * share);
    format!("{confidence:.0} % interval {low:+.1} to {high:+.1} %")
}

/// Describes the value of today's deployment, or the reason for which it has none.
#[must_use]
pub(crate) fn deployment_text(report: &StudyReport) -> Option<String> {
    let DeploymentStatus { source, outcome } = report.deployment_status.as_ref()?;
    let text = match (outcome, &report.deployment) {
        (DeploymentOutcome::IsDefaults, _) => {
            "equals the engine's defaults, so that one trial measures both".to_owned()
        }
        (DeploymentOutcome::Rejected(reason), _) => format!("rejected before its launch by {reason}"),
        (DeploymentOutcome::Failed(reason), _) => format!("failed, {reason}"),
        (_, Some(ranked)) => {
            let limits = if ranked.first.score.is_feasible() { "" } else { ", over a limit" };
            format!("{}{limits}", value_text(&report.value_name(), ranked))
        }
        (_, None) => "not launched yet".to_owned(),
    };
    Some(format!("today's deployment ({source}): {text}"))
}

/// Returns the reason for a place in a sentence.
#[must_use]
pub(crate) fn order_text(order: &RankReason) -> String {
    match order {
        RankReason::Decided => "confirmed: it was launched again beside the baselines, and won".to_owned(),
        RankReason::Confirmed { times, rival, rival_times } => format!(
            "confirmed: it was measured {times} times; trial {} is expected at {} and was measured {}, but is not \
             better by more than two standard deviations of the difference",
            rival.trial,
            expectation(*rival),
            if *rival_times == 1 { "once".to_owned() } else { format!("{rival_times} times") }
        ),
        RankReason::Expected => {
            "by the expectation of a model of all measurements, because the best single measurement is mostly luck"
                .to_owned()
        }
        RankReason::Unranked => {
            "after all that the model ranks: it lies outside of the space, or is too unlikely to keep the limits"
                .to_owned()
        }
        RankReason::Mean => "by the mean of its measurements".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::{Goal, Score};
    use crate::store::ScoredTrial;
    use crate::trial::{Outcome, Trial};

    fn ranked(
        trial: u32,
        value: f64,
        range: (f64, f64),
        measurements: u32,
        expected: Option<f64>,
    ) -> RankedConfiguration {
        let first = Trial::example(trial, "auto", Outcome::Measured(Measurement::default()));
        let expected = expected.map(|value| ExpectedConfiguration { trial, value, deviation: 0.015, feasible: 1.0 });
        RankedConfiguration {
            first: ScoredTrial { trial: first, score: Score::Feasible { value } },
            trials: vec![trial],
            value,
            measurements,
            range,
            expected,
            is_confirmed: false,
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
        let order = RankReason::of(Goal::Maximize, &ranking);
        assert_eq!(
            order.iter().map(RankReason::name).collect::<Vec<_>>(),
            ["confirmed", "expected", "expected", "unranked"]
        );
        let reason = order_text(&order[0]);
        assert!(
            reason.contains("measured 2 times") && reason.contains("trial 5 is expected at 4690 +-3.0 %"),
            "{reason}"
        );
        // The smaller value is better, so the model expects no configuration to be better than the first.
        assert_eq!(RankReason::of(Goal::Minimize, &ranking)[0], RankReason::Expected);
        let means = ranking.map(|ranked| RankedConfiguration { expected: None, ..ranked });
        assert!(RankReason::of(Goal::Maximize, &means).iter().all(|order| *order == RankReason::Mean));
    }

    #[test]
    fn a_gain_is_significant_only_if_both_were_repeated_and_their_ranges_are_apart() {
        let best = |measurements| ranked(7, 10.0, (9.0, 11.0), measurements, None);
        let defaults = |range, measurements| ranked(0, 8.0, range, measurements, None);
        let gain = |best: &RankedConfiguration, baseline: &RankedConfiguration| {
            let report = StudyReport { baseline: Some(baseline.clone()), ..StudyReport::example("s") };
            report.gain(best)
        };
        let text = |best: &RankedConfiguration, baseline: &RankedConfiguration| gain_text(gain(best, baseline));
        let is_significant =
            |best: &RankedConfiguration, baseline: &RankedConfiguration| gain(best, baseline).is_significant();
        let apart = defaults((7.0, 8.5), 2);
        assert_eq!(text(&best(2), &apart), "gain over the engine's defaults: 1.25x");
        assert_eq!(is_significant(&best(2), &apart), Some(true));
        let overlaps = defaults((7.0, 9.0), 2);
        let expected = "gain over the engine's defaults: 1.25x, not significant: the measured ranges overlap";
        assert_eq!(
            (text(&best(2), &overlaps), is_significant(&best(2), &overlaps)),
            (expected.to_owned(), Some(false))
        );
        let once = defaults((8.0, 8.0), 1);
        assert!(text(&best(3), &once).contains("1.25x, not significant: the defaults were measured once ("));
        assert!(text(&best(1), &apart).contains("1.25x, not significant: this configuration was measured once ("));
        assert!(text(&best(1), &once).contains("1.25x, not significant: each was measured once ("));
        assert_eq!((is_significant(&best(3), &once), is_significant(&once, &once)), (None, None));
    }
    #[test]
    fn the_text_of_a_deployment_has_its_value_or_the_reason_for_none() {
        let of = |outcome, deployment| StudyReport {
            deployment,
            deployment_status: Some(DeploymentStatus { source: "serve.sh, line 12".to_owned(), outcome }),
            ..StudyReport::example("s")
        };
        let text = |outcome, deployment| deployment_text(&of(outcome, deployment)).unwrap_or_default();
        let measured = ranked(1, 8.0, (8.0, 8.0), 1, None);
        let prefix = "today's deployment (serve.sh, line 12): ";
        for (outcome, deployment, expected) in [
            (DeploymentOutcome::Measured, Some(measured.clone()), "output_throughput 8, measured once"),
            (DeploymentOutcome::IsDefaults, None, "equals the engine's defaults, so that one trial measures both"),
            (DeploymentOutcome::Rejected("R1: no".to_owned()), None, "rejected before its launch by R1: no"),
            (DeploymentOutcome::Failed("crash: gone".to_owned()), None, "failed, crash: gone"),
            (DeploymentOutcome::NotLaunched, None, "not launched yet"),
        ] {
            assert_eq!(text(outcome, deployment), format!("{prefix}{expected}"));
        }
        assert_eq!(deployment_text(&StudyReport::example("s")), None);
        let report = of(DeploymentOutcome::Measured, Some(measured));
        let gain = |value, measurements| {
            deployment_gain_text(report.gain_over_deployment(&ranked(7, value, (value, value), measurements, None)))
        };
        assert!(
            gain(10.0, 2)
                .starts_with("gain over today's deployment: 1.25x, not significant: the deployment was measured once")
        );
        assert_eq!(
            deployment_gain_text(StudyReport::example("s").gain_over_deployment(&ranked(7, 1.0, (1.0, 1.0), 1, None))),
            "gain over today's deployment: unknown, the deployment was not measured"
        );
    }
}
