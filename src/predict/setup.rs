//! Resolves a configuration to the settings, memory and step time of the engine that would run it.

use std::time::Duration;

use super::TwinQuestion;
use super::client::WireTime;
use crate::engine::SimulatedLaunch;
use crate::rule;
use crate::stats::to_f64;
use crate::trial::Rejection;
use crate::twin::{
    MemoryPlan, Parallel, Scheduling, Settings, SettingsError, Speculation, StartConditions, StepTime, TwinEngine,
};

/// Latency of a request to the simulated engine's HTTP server over the loopback interface.
const SIMULATED_REQUEST: Duration = Duration::from_micros(200);
/// Latency of a token from that server.
const SIMULATED_TOKEN: Duration = Duration::from_micros(100);

/// The input of a run on the twin.
#[derive(Clone, Debug)]
pub(super) struct TwinSetup {
    pub(super) settings: Settings,
    pub(super) memory: MemoryPlan,
    /// Number of engines that share the load.
    pub(super) replicas: usize,
    /// Step time before calibration, with all factors at 1.
    pub(super) prior: StepTime,
    pub(super) wire: WireTime,
    /// Seconds of the device's clock per second of the clients' clock.
    pub(super) time_scale: f64,
    /// Properties of the start. `None` for the simulated engine, and if the start cannot be estimated.
    pub(super) start: Option<StartConditions>,
    /// The price of all devices of the launch for an hour, if the study has prices.
    pub(super) price_per_hour: Option<f64>,
}

impl TwinSetup {
    /// Creates the engines, without requests. Each has a seed of its own for the acceptance of drafts.
    ///
    /// # Errors
    /// If some request within `max_model_len` could never run.
    pub(super) fn engines(&self) -> Result<Vec<TwinEngine>, SettingsError> {
        let engine = |seed: u64| {
            let speculation = self.settings.scheduling.speculation.map(|of| Speculation { seed, ..of });
            let scheduling = Scheduling { speculation, ..self.settings.scheduling.clone() };
            TwinEngine::new(Settings { scheduling, ..self.settings.clone() })
        };
        (0..).take(self.replicas).map(engine).collect()
    }

    /// Resolves a configuration.
    ///
    /// # Errors
    /// If the engine would reject the configuration by a rule, or if its start would fail (rule `ENGINE`).
    pub(super) fn resolve(question: &TwinQuestion<'_>) -> Result<Self, Rejection> {
        let TwinQuestion { job, config, version, device, .. } = question;
        let config = &job.with_arguments(config, *version);
        let facts = job.facts(*version, device.facts, question.host);
        if let Some(finding) = rule::rejection(config, &facts) {
            return Err(Rejection { rule: finding.rule.to_owned(), message: finding.message });
        }
        let engine = |message: String| Rejection { rule: "ENGINE".to_owned(), message };
        let known = job.engine.engine.rules().zip(job.engine.engine.twin());
        let (rules, twin) = known.ok_or_else(|| engine("the twin does not model this engine".to_owned()))?;
        let resolved = rules.resolve(config, &facts);
        let simulated = simulated(question);
        let acceptance = question.acceptance.or(simulated.map(|simulated| simulated.acceptance));
        let settings = twin.settings(config, &resolved, &facts, device.preset, acceptance);
        let (settings, memory) = settings.map_err(|shortage| engine(shortage.to_string()))?;
        TwinEngine::new(settings.clone()).map_err(|error| engine(error.to_string()))?;
        let prior = StepTime::on_devices(&job.model.shape, device.preset, &settings, Parallel::of(&settings.resolved));
        let prior = prior.map_err(|error| engine(error.to_string()))?;
        let prior =
            if simulated.is_some_and(|simulated| !simulated.front_end) { prior.without_frontend() } else { prior };
        let launch = rules.memory_launch(config, &facts, &resolved);
        let start = StartConditions::new(&job.model.shape, &launch, device.preset, question.warm);
        let start = start.ok().filter(|_| job.engine.engine.runs_model());
        let pace = simulated.map_or(1.0, |simulated| simulated.time_scale);
        Ok(Self {
            settings,
            memory,
            replicas: twin.replicas(config, &resolved),
            prior,
            wire: wire(simulated),
            time_scale: pace,
            start,
            price_per_hour: job.objective.price_per_hour.map(|price| price * to_f64(facts.devices_needed(config))),
        })
    }
}

/// Returns the simulation's settings if the study's engine is the simulated one.
fn simulated(question: &TwinQuestion<'_>) -> Option<SimulatedLaunch> {
    let engine = &question.job.engine;
    engine.engine.simulated(&engine.args)
}

/// Returns the network latency, which the costs of the front end do not include. 0 for real engines.
fn wire(simulated: Option<SimulatedLaunch>) -> WireTime {
    simulated.map_or(WireTime::default(), |SimulatedLaunch { time_scale, .. }| WireTime {
        request: SIMULATED_REQUEST.mul_f64(time_scale),
        token: SIMULATED_TOKEN.mul_f64(time_scale),
    })
}
