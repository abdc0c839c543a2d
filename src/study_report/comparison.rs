//! Two configurations side by side: their flags, their metrics, and the circumstances of their measurements.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::ConfigurationResults;
use super::configuration_results::MetricSpread;
use super::question::goal_of;
use crate::config::{Config, Value};
use crate::objective::Goal;
use crate::store::{ScoredTrial, Store, StoreError, StoredContext, Study};
use crate::trial::{Measurement, redact};

/// One of two compared configurations.
#[derive(Clone, Debug)]
pub(crate) struct ComparedSide {
    pub study: Study,
    /// The trial that was named, or the first one of the configuration.
    pub scored: ScoredTrial,
    /// All measurements of its configuration in the context of the trial; `None` if it was not measured.
    pub results: Option<ConfigurationResults>,
    pub context: StoredContext,
}

/// A flag whose value differs. `None` stands for the engine's default.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FlagChange {
    pub name: String,
    pub values: [Option<Value>; 2],
}

/// A metric of both sides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ComparedMetric {
    pub name: &'static str,
    pub spreads: [Option<MetricSpread>; 2],
    pub goal: Goal,
}

/// Whether the measurements support a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Significance {
    /// Both were measured repeatedly, and their ranges are apart.
    Apart,
    /// Both were measured repeatedly, and their ranges overlap.
    Overlap,
    /// At least one was measured once, so that its spread is unknown.
    MeasuredOnce,
    /// At least one of the two lacks the metric.
    Absent,
}

/// The comparison of the second side with the first.
#[derive(Clone, Debug)]
pub(crate) struct ConfigurationComparison {
    pub sides: [ComparedSide; 2],
    /// Flags with different values, by name.
    pub changes: Vec<FlagChange>,
    /// The number of flags that both set to the same value.
    pub equal_flags: usize,
    /// Every metric that at least one side has.
    pub metrics: Vec<ComparedMetric>,
    /// Reasons for which the numbers may not be comparable.
    pub warnings: Vec<String>,
}

impl ComparedSide {
    /// Reads the configuration of a trial, and all of its measurements in the trial's own context.
    pub(crate) async fn read(store: &Store, study: Study, scored: ScoredTrial) -> Result<Self, StoreError> {
        let number = scored.trial.proposal.number;
        let context = store.context_of(&study, number).await?.unwrap_or_default();
        let is_measured = scored.trial.outcome.measurement().is_some();
        let results = match store.measurements_of(&study, number).await?.filter(|_| is_measured) {
            Some(ranked) => Some(ConfigurationResults::read(store, &study, ranked).await?),
            None => None,
        };
        Ok(Self { study, scored, results, context })
    }

    pub(crate) fn number(&self) -> u32 {
        self.scored.trial.proposal.number
    }

    fn config(&self) -> &Config {
        &self.scored.trial.proposal.config
    }
}

impl ComparedMetric {
    /// Returns the change from the first to the second mean, in percent of the first.
    #[must_use]
    pub(crate) fn change_percent(&self) -> Option<f64> {
        let [Some(first), Some(second)] = self.spreads else { return None };
        let change = 100.0 * (second.mean - first.mean) / first.mean.abs();
        change.is_finite().then_some(change)
    }

    /// Returns whether the second mean is better; `None` if they are equal or one is absent.
    #[must_use]
    pub(crate) fn is_better(&self) -> Option<bool> {
        let [Some(first), Some(second)] = self.spreads else { return None };
        let is_higher = second.mean > first.mean;
        (is_higher || second.mean < first.mean).then_some(is_higher == (self.goal == Goal::Maximize))
    }

    #[must_use]
    pub(crate) fn significance(&self) -> Significance {
        match self.spreads {
            [Some(first), Some(second)] if first.measurements < 2 || second.measurements < 2 => {
                Significance::MeasuredOnce
            }
            [Some(first), Some(second)] if first.low > second.high || second.low > first.high => Significance::Apart,
            [Some(_), Some(_)] => Significance::Overlap,
            _ => Significance::Absent,
        }
    }
}

impl Significance {
    /// Returns whether the difference is significant; `None` if the measurements cannot show it.
    #[must_use]
    pub(crate) fn is_significant(self) -> Option<bool> {
        match self {
            Self::Apart => Some(true),
            Self::Overlap => Some(false),
            Self::MeasuredOnce | Self::Absent => None,
        }
    }

    /// Returns one short text for a column.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Apart => "yes",
            Self::Overlap => "no, ranges overlap",
            Self::MeasuredOnce => "unknown, measured once",
            Self::Absent => "",
        }
    }
}

impl ConfigurationComparison {
    #[must_use]
    pub(crate) fn of(sides: [ComparedSide; 2]) -> Self {
        let (changes, equal_flags) = flag_changes(sides.each_ref().map(ComparedSide::config));
        let spread = |side: &ComparedSide, name: &str| side.results.as_ref()?.metric(name);
        let compared = |name| {
            let spreads = sides.each_ref().map(|side| spread(side, name));
            spreads.iter().any(Option::is_some).then(|| ComparedMetric { name, spreads, goal: goal_of(name) })
        };
        // The median has a second name.
        let metrics = Measurement::names().filter(|name| !name.starts_with("p50_")).filter_map(compared).collect();
        let warnings = warnings(&sides);
        Self { sides, changes, equal_flags, metrics, warnings }
    }

    /// Returns the metrics of a short table: those of objective and limits first, then the usual ones.
    #[must_use]
    pub(crate) fn usual_metrics(&self) -> Vec<&ComparedMetric> {
        const USUAL: [&str; 15] = [
            "output_throughput",
            "request_throughput",
            "request_goodput",
            "mean_ttft_ms",
            "median_ttft_ms",
            "p99_ttft_ms",
            "mean_tpot_ms",
            "median_tpot_ms",
            "p99_tpot_ms",
            "mean_e2el_ms",
            "p99_e2el_ms",
            "completed",
            "failed",
            "kv_cache_usage_max",
            "energy_per_output_token_j",
        ];
        let objectives = self.sides.iter().filter_map(|side| side.study.objective());
        let mut names: Vec<String> = Vec::new();
        for objective in objectives {
            names.push(objective.metric);
            names.extend(objective.constraints.into_iter().map(|limit| limit.metric));
        }
        names.extend(USUAL.map(str::to_owned));
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names.iter().filter_map(|name| self.metrics.iter().find(|metric| metric.name == name)).collect()
    }
}

/// Returns the flags that differ, and the number of equal ones.
fn flag_changes([first, second]: [&Config; 2]) -> (Vec<FlagChange>, usize) {
    let names: BTreeSet<_> = first.iter().chain(second.iter()).map(|(name, _)| name).collect();
    let (equal, different): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| first.get(name) == second.get(name));
    let change = |name: &str| FlagChange {
        name: name.to_owned(),
        values: [first, second].map(|config| config.get(name).cloned()),
    };
    (different.into_iter().map(change).collect(), equal.len())
}

/// Returns the reasons for which the numbers of the two sides may not be comparable.
fn warnings(sides: &[ComparedSide; 2]) -> Vec<String> {
    let [first, second] = sides;
    let mut warnings = Vec::new();
    if first.study.id == second.study.id && first.context.is_earlier != second.context.is_earlier {
        let earlier = if first.context.is_earlier { first } else { second };
        warnings.push(format!("trial {} was measured before the study's context changed", earlier.number()));
    }
    if let (Some(stored), Some(now)) = (&first.context.context, &second.context.context) {
        warnings.extend(
            stored
                .changes(now)
                .iter()
                .map(|change| format!("{} differs: {}, {}", change.field, change.stored, change.now)),
        );
    }
    if first.study.id != second.study.id {
        let mut differences = Vec::new();
        differing_paths("", &first.study.definition, &second.study.definition, &mut differences);
        warnings.extend(differences);
    }
    for side in sides {
        if let Some(reason) = side.scored.trial.outcome.reason() {
            let (name, outcome) = (&side.study.name, side.scored.trial.outcome.name());
            warnings.push(format!("trial {} of {name} has no measurement: {outcome}, {reason}", side.number()));
        }
        let disturbed = side.results.iter().flat_map(ConfigurationResults::disturbed).map(|number| number.to_string());
        let disturbed: Vec<_> = disturbed.collect();
        if !disturbed.is_empty() {
            warnings.push(format!("disturbed measurements of {}: trial {}", side.study.name, disturbed.join(", ")));
        }
    }
    warnings
}

/// Collects the parts of two definitions that differ, with both values. The search space is left out: it does not
/// change the meaning of a measurement.
fn differing_paths(path: &str, first: &Json, second: &Json, found: &mut Vec<String>) {
    if path == "space.parameters" {
        return;
    }
    if let (Json::Object(a), Json::Object(b)) = (first, second) {
        let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
        for key in keys {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            differing_paths(&path, a.get(key).unwrap_or(&Json::Null), b.get(key).unwrap_or(&Json::Null), found);
        }
    } else if first != second {
        let shown = |json: &Json| if json.is_null() { "absent".to_owned() } else { json.to_string() };
        found.push(redact(&format!("{path} differs: {}, {}", shown(first), shown(second))).into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metric(name: &'static str, first: (f64, f64, usize), second: (f64, f64, usize)) -> ComparedMetric {
        let spread =
            |(low, high, measurements)| Some(MetricSpread { mean: f64::midpoint(low, high), low, high, measurements });
        ComparedMetric { name, spreads: [spread(first), spread(second)], goal: goal_of(name) }
    }

    #[test]
    fn a_difference_is_significant_only_between_repeated_measurements_that_are_apart() {
        let shown = |first, second| {
            let metric = metric("output_throughput", first, second);
            (metric.significance().is_significant(), metric.change_percent().map(f64::round), metric.is_better())
        };
        assert_eq!(shown((90.0, 110.0, 2), (140.0, 160.0, 3)), (Some(true), Some(50.0), Some(true)));
        assert_eq!(shown((90.0, 110.0, 2), (100.0, 120.0, 2)), (Some(false), Some(10.0), Some(true)));
        assert_eq!(shown((100.0, 100.0, 1), (140.0, 160.0, 3)), (None, Some(50.0), Some(true)));
        assert_eq!(shown((100.0, 100.0, 1), (100.0, 100.0, 1)), (None, Some(0.0), None));
        let slower = metric("p99_ttft_ms", (100.0, 100.0, 1), (150.0, 150.0, 1));
        assert_eq!((slower.is_better(), slower.significance().name()), (Some(false), "unknown, measured once"));
        let absent = ComparedMetric { spreads: [slower.spreads[0], None], ..slower };
        assert_eq!((absent.change_percent(), absent.significance()), (None, Significance::Absent));
        let from_nothing = metric("failed", (0.0, 0.0, 1), (3.0, 3.0, 1));
        assert_eq!((from_nothing.change_percent(), from_nothing.is_better()), (None, Some(false)));
    }

    #[test]
    fn flags_that_only_one_side_sets_differ_from_the_default() {
        let first = Config::new().with("a", 1_i64).with("b", true).with("c", "x");
        let second = Config::new().with("a", 1_i64).with("b", false).with("d", 2_i64);
        let (changes, equal) = flag_changes([&first, &second]);
        let names: Vec<_> = changes.iter().map(|change| (change.name.as_str(), change.values[1].is_some())).collect();
        assert_eq!((names, equal), (vec![("b", true), ("c", false), ("d", true)], 1));
    }

    #[test]
    fn different_definitions_are_named_by_their_parts() {
        let definition = |input_len: u32, goal: &str, high: u32| {
            json!({"workload": {"input_len": input_len, "kind": "random"}, "objective": {"goal": goal},
                   "space": {"parameters": {"a": high}, "fixed": {}}})
        };
        let mut found = Vec::new();
        differing_paths("", &definition(32, "maximize", 1), &definition(64, "minimize", 2), &mut found);
        assert_eq!(found, ["objective.goal differs: \"maximize\", \"minimize\"", "workload.input_len differs: 32, 64"]);
    }
}
