//! The launches of a run: each goes from spawn to outcome, and is repeated if its environment has failed.

mod attempt;
mod command;
mod devices;
mod failure;
mod gate;
mod joint_report;
mod load_search;
mod load_test;
mod longest_step;
mod launches;
mod launch_draw;
mod remedy;
mod reply_check;
mod retry;

use std::time::Instant;

use self::attempt::LaunchAttempt;
use self::command::{placeholder_values, variables};
use self::gate::MemoryGate;
use self::launch_draw::draw_variables;
use self::longest_step::StepForecast;
use self::retry::RetryPolicy;
use super::context::RunContext;
use super::journal::Journal;
use super::preflighter::Preflighter;
use super::run::StudyRun;
use super::scheduler::PendingTrial;
use super::slots::SlotPlace;
use super::{StudyEnding, TrialPhase, TuneError, TunerEvent};
use crate::server::LeftBehind;
use crate::trial::{FailureKind, LaunchCommand, LaunchRecords, Trial};

pub use self::command::command_line;
pub(super) use self::devices::device_without_leftovers;
#[cfg(test)]
pub(super) use self::failure::alarm_failure;
pub(super) use self::failure::failed;
pub(super) use self::launches::{Launches, ProcessLaunches};
pub(super) use self::remedy::remedy;
pub(super) use self::retry::UnresolvedFailure;
pub use self::retry::{PauseEvidence, RetryPause};

/// The most repetitions of a launch in a row because its port was in use. Each repetition uses another port.
const MAX_PORT_COLLISIONS: usize = 3;

/// A trial and the slots that it is launched on.
pub(super) struct LaunchOrder {
    pub(super) pending: PendingTrial,
    pub(super) place: SlotPlace,
}

/// A finished trial that is not stored yet.
pub(super) struct EndedTrial {
    pub(super) trial: Trial,
    pub(super) records: LaunchRecords,
    /// Processes that could not be ended. The trial is stored first.
    pub(super) left_behind: Option<LeftBehind>,
}

impl From<Trial> for EndedTrial {
    /// Wraps a trial without a launch.
    fn from(trial: Trial) -> Self {
        Self { trial, records: LaunchRecords::default(), left_behind: None }
    }
}

/// The end of a trial's launches.
#[expect(clippy::large_enum_variant, reason = "one for each launch, and nearly all of them are outcomes")]
pub(super) enum LaunchEnd {
    Outcome(EndedTrial),
    /// The environment failed until the retries were exhausted.
    Unresolved(Box<UnresolvedFailure>),
    /// The run ends. The next run launches the trial again.
    RunEnded(StudyEnding),
}

/// A finished order with its result.
pub(super) struct EndedOrder {
    pub(super) order: LaunchOrder,
    pub(super) result: Result<LaunchEnd, TuneError>,
}

/// Launches trials. Several launches may run at a time.
pub(super) struct Launcher<'r> {
    run: &'r StudyRun<'r>,
    journal: &'r Journal<'r>,
    context: &'r RunContext<'r>,
    preflighter: &'r Preflighter<'r>,
    gate: MemoryGate<'r>,
    step_forecast: StepForecast<'r>,
}

impl<'r> Launcher<'r> {
    /// Creates the launcher. Reads the prefill speeds of earlier launches of the study.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub(super) async fn new(
        run: &'r StudyRun<'r>,
        journal: &'r Journal<'r>,
        context: &'r RunContext<'r>,
        preflighter: &'r Preflighter<'r>,
    ) -> Result<Self, TuneError> {
        let steps = StepForecast::recall(run).await?;
        Ok(Self { run, journal, context, preflighter, gate: MemoryGate::new(run, context), step_forecast: steps })
    }

    /// Executes an order, with all of its launches.
    pub(super) async fn execute(&self, mut order: LaunchOrder) -> EndedOrder {
        let result = self.launch(&order.pending, &mut order.place).await;
        EndedOrder { order, result }
    }

    /// Launches a configuration and measures it. If its environment fails it is launched again, until the retries are
    /// exhausted.
    async fn launch(&self, pending: &PendingTrial, place: &mut SlotPlace) -> Result<LaunchEnd, TuneError> {
        let run = self.run;
        let proposal = &pending.proposal;
        let (number, config) = (proposal.number, &proposal.config);
        let log = run.log_path(number);
        let mut collisions = 0;
        let mut patience = RetryPolicy::new(run, self.journal, pending);
        loop {
            if !self.gate.wait_for_memory(place, config).await {
                return Ok(LaunchEnd::RunEnded(StudyEnding::Interrupted));
            }
            // Taken in this order, the stored end of a trial (its begin plus its duration) is never later than the real
            // one.
            let (started_at, begin) = (run.time.timestamp(), Instant::now());
            let ports = place.ports().map_err(TuneError::Port)?;
            let mut variables = variables(run, place, &ports, config);
            let filling = placeholder_values(run, place, &ports, &log, &variables);
            let command = command_line(run.job, &run.installed, config, Some(&filling))?;
            let launch = LaunchCommand::redacted(
                &command,
                filling.fill_variables(run.job.launch_env(run.installed.device, config)),
            );
            // Neither the stored environment nor `{env}` contains these.
            variables.extend(draw_variables(run, number).await?);
            self.journal.begin(proposal, &launch, &started_at).await?;
            if let Some(placement) = place.placement(&ports) {
                run.store.store_placement(run.study.id, number, &placement).await?;
            }
            run.emit(TunerEvent::Phase { number, phase: TrialPhase::Starting });
            let baselines = self.gate.levels_before(place, config).await;
            let attempt = LaunchAttempt {
                launcher: self,
                config,
                place: &*place,
                placeholders: &filling,
                race: pending.race.as_deref(),
                expected_load: pending.expected_load,
            };
            let Some(report) = attempt.run(command.words, variables).await? else {
                return Ok(LaunchEnd::RunEnded(StudyEnding::Interrupted));
            };
            if report.left_behind.is_none() {
                self.gate.wait_for_release(place, baselines).await;
            }
            // Another process took the port first, so another port may work at once.
            let again_at_once = report.failed_with(FailureKind::PortInUse) && collisions < MAX_PORT_COLLISIONS;
            collisions = if again_at_once { collisions + 1 } else { 0 };
            if let Some(replies) = &report.records.replies {
                self.step_forecast.learn(config, replies);
            }
            let trial = Trial {
                proposal: proposal.clone(),
                launch,
                started_at,
                startup_s: report.ready.as_ref().map(|ready| ready.startup.as_secs_f64()),
                elapsed_s: begin.elapsed().as_secs_f64(),
                engine_version: report.ready.and_then(|ready| ready.version),
                log: Some(log.clone()),
                outcome: report.outcome.for_storage(),
                probe: None,
            };
            let ended = EndedTrial { trial, records: report.records, left_behind: report.left_behind };
            if let Some(end) = patience.decide(ended, again_at_once).await? {
                return Ok(end);
            }
        }
    }
}
