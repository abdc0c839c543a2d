//! Names of metrics and limits in questions that users ask on the command line.

use crate::document::nearest;
use crate::objective::{Constraint, Goal, MetricLimit};
use crate::trial::{Measurement, MetricDirection};

/// The reason for which a question cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QuestionError {
    pub message: String,
    pub hint: Option<String>,
}

/// A metric to improve, of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MetricGoal {
    pub metric: &'static str,
    pub goal: Goal,
}

impl QuestionError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Returns the known metric of this name.
///
/// # Errors
/// For an unknown name, with the nearest one.
pub(super) fn metric_of(name: &str) -> Result<&'static str, QuestionError> {
    if let Some(known) = Measurement::names().find(|known| *known == name) {
        return Ok(known);
    }
    let hint = match nearest(name, Measurement::names()) {
        Some(similar) => format!("did you mean {similar}?"),
        None => "the chapter \"Definitions of all metrics\" lists them, such as output_throughput and p99_ttft_ms"
            .to_owned(),
    };
    Err(QuestionError::new(format!("there is no metric {name:?}")).with_hint(hint))
}

/// Returns the better direction of a known metric.
pub(super) fn goal_of(metric: &str) -> Goal {
    match Measurement::direction(metric) {
        Some(MetricDirection::Minimize) => Goal::Minimize,
        _ => Goal::Maximize,
    }
}

impl MetricGoal {
    /// Parses `METRIC`, `max:METRIC` or `min:METRIC`. Without a prefix the metric's own direction applies.
    ///
    /// # Errors
    /// For an unknown name.
    pub(crate) fn parse(text: &str) -> Result<Self, QuestionError> {
        let text = text.trim();
        let (goal, name) = match text.split_once(':') {
            Some(("max", name)) => (Some(Goal::Maximize), name),
            Some(("min", name)) => (Some(Goal::Minimize), name),
            _ => (None, text),
        };
        let metric = metric_of(name)?;
        Ok(Self { metric, goal: goal.unwrap_or_else(|| goal_of(metric)) })
    }
}

/// Parses a limit such as `p99_ttft_ms<=500` or `output_throughput >= 1000`.
///
/// # Errors
/// For an unknown metric, another relation, or a limit that is no finite number.
pub(crate) fn parse_limit(text: &str) -> Result<Constraint, QuestionError> {
    let wrong = || {
        QuestionError::new(format!("cannot read the limit {text:?}"))
            .with_hint("write METRIC<=NUMBER or METRIC>=NUMBER in quotes, such as 'p99_ttft_ms<=500'")
    };
    let (name, number, limit): (_, _, fn(f64) -> MetricLimit) = match (text.split_once("<="), text.split_once(">=")) {
        (Some((name, number)), None) => (name, number, MetricLimit::AtMost),
        (None, Some((name, number))) => (name, number, MetricLimit::AtLeast),
        _ => return Err(wrong()),
    };
    let metric = metric_of(name.trim())?.to_owned();
    let number = number.trim().parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(wrong)?;
    Ok(Constraint { metric, limit: limit(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_metric_a_relation_and_a_number() {
        let at_most = parse_limit("p99_ttft_ms<=500").unwrap();
        assert_eq!(at_most.to_string(), "p99_ttft_ms <= 500");
        assert_eq!(parse_limit(" output_throughput >= 1e3 ").unwrap().to_string(), "output_throughput >= 1000");
        for wrong in ["p99_ttft_ms<500", "p99_ttft_ms", "p99_ttft_ms<=x", "p99_ttft_ms<=inf", "1<=p99_ttft_ms<=2"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
        let unknown = parse_limit("p99_tfft_ms<=500").unwrap_err();
        assert_eq!(unknown.message, "there is no metric \"p99_tfft_ms\"");
        assert_eq!(unknown.hint.as_deref(), Some("did you mean p99_ttft_ms?"));
    }

    #[test]
    fn a_metric_has_its_own_direction_unless_a_prefix_changes_it() {
        let goal = |text| MetricGoal::parse(text).unwrap().goal;
        assert_eq!([goal("p99_ttft_ms"), goal("output_throughput")], [Goal::Minimize, Goal::Maximize]);
        assert_eq!([goal("max:p99_ttft_ms"), goal("min:energy_j")], [Goal::Maximize, Goal::Minimize]);
        assert!(MetricGoal::parse("least:energy_j").is_err());
    }
}
