//! A configuration as the engine would start with it: settings, devices, step time.

use std::time::Duration;

use super::Question;
use super::allocate::allocate;
use super::client::Wire;
use super::simulated::Simulated;
use crate::config::Config;
use crate::rule::{self, Effective};
use crate::trial::Rejection;
use crate::twin::{Engine, MemoryPlan, Parallel, Scheduling, Settings, StepTime};

/// Between a client and what the simulated engine simulates, and back: its own HTTP server on the loopback interface.
const SIMULATED_REQUEST: Duration = Duration::from_micros(200);
const SIMULATED_TOKEN: Duration = Duration::from_micros(100);

/// What is needed to run a load on the twin.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) settings: Settings,
    pub(super) memory: MemoryPlan,
    pub(super) parallel: Parallel,
    /// Engines that share the load.
    pub(super) replicas: usize,
    /// With all factors at 1.
    pub(super) prior: StepTime,
    pub(super) wire: Wire,
    /// How many times as fast as the device's clock the clients' goes.
    pub(super) pace: f64,
}

impl Setup {
    /// Resolves a configuration.
    ///
    /// # Errors
    /// Why the engine would not serve it: the rule with its words, or what only a start finds out.
    pub(super) fn resolve(question: &Question<'_>) -> Result<Self, Rejection> {
        let Question { job, config, version, device, .. } = question;
        let config = &job.with_arguments(config, *version);
        let facts = job.facts(*version, device.facts, question.host);
        if let Some(finding) = rule::rejection(config, &facts) {
            return Err(Rejection { rule: finding.rule.to_owned(), message: finding.message });
        }
        let engine = |message: String| Rejection { rule: "ENGINE".to_owned(), message };
        let effective = Effective::resolve(config, &facts);
        let simulated = simulated(question);
        let mut scheduling = Scheduling::resolve(config, *version, device.preset.cpu, question.acceptance);
        if simulated.is_some() {
            // As it does not simulate them.
            scheduling = Scheduling { pipeline_stages: 1, stream_interval: 1, ..scheduling };
        }
        let allocated = allocate(&effective, config, &facts, device.preset, scheduling);
        let (settings, memory) = allocated.map_err(|shortage| engine(shortage.to_string()))?;
        Engine::new(settings.clone()).map_err(|error| engine(error.to_string()))?;
        let parallel = match simulated {
            None => Parallel {
                tensor: narrow(effective.tensor_parallel_size),
                pipeline: narrow(effective.pipeline_parallel_size),
            },
            Some(_) => Parallel::NONE,
        };
        let prior = StepTime::on_several(&job.model.shape, device.preset, &settings, parallel);
        let prior = prior.map_err(|error| engine(error.to_string()))?;
        let prior =
            if simulated.is_some_and(|simulated| !simulated.front_end) { prior.without_frontend() } else { prior };
        let pace = simulated.map_or(1.0, |simulated| simulated.time_scale);
        Ok(Self {
            settings,
            memory,
            parallel,
            replicas: replicas(config, simulated),
            prior,
            wire: wire(simulated),
            pace,
        })
    }
}

/// What is simulated, where the study's engine is the simulated one.
fn simulated(question: &Question<'_>) -> Option<Simulated> {
    let engine = &question.job.engine;
    (engine.engine.kind() == "sim").then(|| Simulated::read(&engine.args)).flatten()
}

fn replicas(config: &Config, simulated: Option<Simulated>) -> usize {
    let asked = config.get_i64("data-parallel-size").and_then(|size| usize::try_from(size).ok());
    if simulated.is_some() { 1 } else { asked.unwrap_or(1).max(1) }
}

/// What the step time's front end does not hold.
fn wire(simulated: Option<Simulated>) -> Wire {
    simulated.map_or(Wire::default(), |Simulated { time_scale, .. }| Wire {
        request: SIMULATED_REQUEST.mul_f64(time_scale),
        token: SIMULATED_TOKEN.mul_f64(time_scale),
    })
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
