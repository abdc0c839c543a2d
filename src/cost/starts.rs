//! The start history of a study, and the expected cost of a further launch: its start and its load, in seconds.

use std::collections::BTreeSet;

use crate::config::Config;
use crate::rule::Facts;
use crate::stats::median;
use crate::trial::{Outcome, PhaseTime, Startup, Trial};
use crate::twin::{DevicePreset, StartConditions, StartupModel, WarmState};

/// The part of a finished launch that predictions of further launches learn from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObservedLaunch {
    /// The trial's own configuration, without the study's arguments.
    pub(crate) config: Config,
    /// Phases that have ended.
    pub(crate) phases: Vec<PhaseTime>,
    /// Seconds until the server was ready; `None` if it never was.
    pub(crate) startup_s: Option<f64>,
    /// Seconds from readiness to the end of the launch; `None` if the launch has no measurement.
    pub(crate) load_s: Option<f64>,
}

impl ObservedLaunch {
    #[must_use]
    pub(crate) fn new(trial: &Trial, startup: Startup) -> Self {
        let (mut phases, startup_s) = (startup.phases, trial.startup_s);
        if startup_s.is_none() {
            // The start failed in its last phase, so the time of that is not the time of a whole phase.
            phases.pop();
        }
        let is_measured = matches!(trial.outcome, Outcome::Measured(_));
        let load_s = startup_s.filter(|_| is_measured).map(|start| trial.elapsed_s - start);
        Self { config: trial.proposal.config.clone(), phases, startup_s, load_s }
    }

    /// Returns whether the start has completed a phase. A server that was ready has completed all of its phases, also
    /// those that its log does not contain.
    fn has_completed(&self, phase: &str) -> bool {
        self.startup_s.is_some() || self.phases.iter().any(|time| time.phase == phase)
    }
}

/// The facts, the device and the arguments that all launches of a study share.
#[derive(Clone, Debug)]
pub(crate) struct LaunchContext<'a> {
    pub(crate) facts: Facts<'a>,
    /// The twin's preset of the device.
    pub(crate) preset: &'static DevicePreset,
    /// The study's own arguments.
    pub(crate) arguments: Config,
}

/// The phase times of earlier starts, and the caches that they have filled.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartHistory {
    pub(crate) model: StartupModel,
    /// Keys of compiled code.
    compiled: BTreeSet<String>,
    weights_loaded: bool,
    /// Number of launches that the model learned from.
    learned_launches: usize,
}

impl StartHistory {
    /// Learns from launches in their order. Launches that the twin cannot simulate are skipped.
    #[must_use]
    pub(crate) fn learn(context: &LaunchContext<'_>, launches: &[ObservedLaunch]) -> Self {
        let mut history = Self::default();
        for launch in launches {
            let Some((conditions, key)) = history.conditions(context, &launch.config) else { continue };
            history.model.learn(&conditions, &launch.phases);
            history.learned_launches += 1;
            history.weights_loaded |= launch.has_completed("weights");
            if conditions.uses_compilation && launch.has_completed("compile") {
                history.compiled.insert(key);
            }
        }
        history
    }

    /// Returns which caches are warm for a launch of this configuration.
    #[must_use]
    pub(crate) fn warm_state(&self, context: &LaunchContext<'_>, config: &Config) -> WarmState {
        self.conditions(context, config).map_or_else(WarmState::default, |(conditions, _)| conditions.warm)
    }

    /// Returns the conditions of this configuration's start, and the key of its compiled code.
    fn conditions(&self, context: &LaunchContext<'_>, config: &Config) -> Option<(StartConditions, String)> {
        let LaunchContext { facts, preset, arguments } = context;
        let config = config.merged(arguments);
        let engine = facts.engine?;
        let resolved = engine.resolve(&config, facts);
        let key = engine.compile_key(&config, facts, &resolved);
        let warm = WarmState { page_cache: self.weights_loaded, compile_cache: self.compiled.contains(&key) };
        let launch = engine.memory_launch(&config, facts, &resolved);
        Some((StartConditions::new(facts.model, &launch, preset, warm).ok()?, key))
    }
}

/// The launches of a study so far, as the data for the cost of further ones.
#[derive(Clone, Debug)]
pub(crate) struct LaunchCostData {
    pub(crate) preset: &'static DevicePreset,
    /// In the order of the launches.
    pub(crate) launches: Vec<ObservedLaunch>,
}

impl LaunchCostData {
    /// Returns a function that estimates the seconds of a launch from its configuration. The load is the median of the
    /// study's own loads. Returns `None` before anything is measured, and if the twin cannot simulate this engine's
    /// start.
    pub(crate) fn cost<'a>(&self, facts: Facts<'a>, arguments: &Config) -> Option<impl Fn(&Config) -> f64 + use<'a>> {
        let context = LaunchContext { facts, preset: self.preset, arguments: arguments.clone() };
        let history = StartHistory::learn(&context, &self.launches);
        if history.learned_launches == 0 {
            return None;
        }
        let median_start_s = median(self.launches.iter().filter_map(|launch| launch.startup_s))?;
        let median_load_s = median(self.launches.iter().filter_map(|launch| launch.load_s))?;
        Some(move |config: &Config| {
            let conditions = history.conditions(&context, config);
            let start_s = conditions.map(|(conditions, _)| typical_start_s(&history.model, &conditions));
            median_load_s + start_s.unwrap_or(median_start_s)
        })
    }
}

/// Returns the typical seconds of a start: the sum of the medians of its phases. The mean of a phase without data is up
/// to 3.5 times as long as its median.
#[must_use]
pub(crate) fn typical_start_s(model: &StartupModel, conditions: &StartConditions) -> f64 {
    model.predict(conditions).parts.iter().map(|part| part.median_s).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Device, EngineVersion, ModelShape};

    fn config(name: &str, value: impl Into<crate::config::Value>) -> Config {
        Config::new().with(name, value)
    }

    /// A launch that has completed `phases`. `startup_s` is `None` if it never served.
    fn started(config: &Config, phases: &[(&str, f64)], startup_s: Option<f64>) -> ObservedLaunch {
        let time =
            |(phase, duration_s): &(&str, f64)| PhaseTime { phase: (*phase).to_owned(), duration_s: *duration_s };
        let load_s = startup_s.map(|_| 60.0);
        ObservedLaunch { config: config.clone(), phases: phases.iter().map(time).collect(), startup_s, load_s }
    }

    const WHOLE: [(&str, f64); 5] =
        [("import", 12.0), ("weights", 30.0), ("compile", 50.0), ("kv_cache", 3.0), ("graphs", 9.0)];

    /// Calls `test` with the context of launches on an H100.
    fn with_context<T>(test: impl FnOnce(&LaunchContext<'_>) -> T) -> T {
        let sizes = serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 151_936,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
        });
        let model = ModelShape::from_json(&sizes);
        let facts =
            Facts::new(crate::engines::vllm::VLLM_RULES, &model, EngineVersion::V0_32, Device::gpu_of(80 << 30));
        test(&LaunchContext { facts, preset: DevicePreset::find("h100").unwrap(), arguments: Config::new() })
    }

    /// Returns the expected costs of the configurations `of` after the launches `after`.
    fn cost(after: &[ObservedLaunch], of: &[&Config]) -> Option<Vec<f64>> {
        with_context(|context| {
            let launches = LaunchCostData { preset: context.preset, launches: after.to_vec() };
            let cost = launches.cost(context.facts, &context.arguments)?;
            Some(of.iter().map(|config| cost(config)).collect())
        })
    }

    #[test]
    fn starts_that_share_compiled_code_are_expected_to_cost_less() {
        let (own, shares, not) = (Config::new(), config("gpu-memory-utilization", 0.8), config("max-num-seqs", 64_i64));
        let first = started(&own, &WHOLE, Some(104.0));
        let costs = cost(std::slice::from_ref(&first), &[&own, &shares, &not]).unwrap();
        assert!((costs[0] - costs[1]).abs() < 1e-9, "both find what the first has compiled: {costs:?}");
        assert!(costs[2] > costs[1] + 20.0, "{costs:?}");
        assert!((60.0..200.0).contains(&costs[1]), "its load takes 60 s: {costs:?}");
        let costs = cost(&[first, started(&not, &WHOLE, Some(104.0))], &[&shares, &not]).unwrap();
        assert!((costs[0] / costs[1] - 1.0).abs() < 0.1, "both are compiled: {costs:?}");
    }

    #[test]
    fn a_start_that_failed_leaves_what_it_had_compiled() {
        let (own, other) = (Config::new(), config("max-num-seqs", 64_i64));
        let first = started(&own, &WHOLE, Some(104.0));
        let after =
            |failed: &[(&str, f64)]| cost(&[first.clone(), started(&other, failed, None)], &[&other]).unwrap()[0];
        let (loaded, compiled) = (after(&WHOLE[..2]), after(&WHOLE[..3]));
        assert!(compiled < loaded - 20.0, "{compiled} and {loaded}");
    }

    #[test]
    fn a_start_that_failed_before_its_weights_has_not_loaded_them() {
        let own = Config::new();
        let warm_after = |phases: &[(&str, f64)], startup_s| {
            with_context(|context| {
                StartHistory::learn(context, &[started(&own, phases, startup_s)]).warm_state(context, &own).page_cache
            })
        };
        assert!(!warm_after(&WHOLE[..1], None), "only the import has ended");
        assert!(warm_after(&WHOLE[..2], None));
        assert!(warm_after(&[], Some(104.0)), "a server that was ready has loaded its weights");
    }

    #[test]
    fn without_measurements_there_is_no_expectation() {
        let own = Config::new();
        assert_eq!(cost(&[], &[&own]), None);
        assert_eq!(cost(&[started(&own, &WHOLE[..2], None)], &[&own]), None);
    }

    #[test]
    fn of_a_failed_start_the_last_phase_did_not_end() {
        let outcome = Outcome::Rejected(crate::trial::Rejection { rule: String::new(), message: String::new() });
        let trial = Trial::example(3, "auto", outcome);
        let phases = started(&trial.proposal.config, &WHOLE, None).phases;
        let of = |startup_s| {
            ObservedLaunch::new(
                &Trial { startup_s, ..trial.clone() },
                Startup { phases: phases.clone(), ..Startup::default() },
            )
        };
        assert_eq!((of(None).phases.len(), of(Some(1.0)).phases.len()), (4, 5));
    }
}
