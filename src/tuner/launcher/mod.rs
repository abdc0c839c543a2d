//! The launches of a run: each goes from spawn to outcome, and is repeated if its environment has failed.

mod attempt;
mod command;
mod devices;
mod failure;
mod fast_starts;
mod gate;
mod joint_report;
mod load_search;
mod load_test;
mod look;
mod longest_step;
mod launches;
mod launch_draw;
mod remedy;
mod reply_check;
mod retry;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use self::attempt::{AttemptEnd, LaunchAttempt, LaunchReport, LookOffer};
use self::command::{placeholder_values, variables};
use self::fast_starts::FastStarts;
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
use crate::server::{LIVE_EXTENSION, LeftBehind, LiveControl};
use crate::trial::{FailureKind, LaunchCommand, LaunchRecords, LiveKnob, Trial};

pub use self::command::command_line;
pub(super) use self::devices::device_without_leftovers;
#[cfg(test)]
pub(super) use self::failure::alarm_failure;
pub(super) use self::failure::failed;
pub(super) use self::launches::{Launches, ProcessLaunches};
pub(super) use self::look::{LookOrder, ServerLink};
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
    /// The run ends. The next run launches the trial again, unless it was reported.
    RunEnded(StudyEnding),
    /// The measurement and the live looks were reported before the server ended.
    Reported {
        left_behind: Option<LeftBehind>,
    },
}

/// Something that a launch reports to the loop.
#[expect(clippy::large_enum_variant, reason = "one for each launch and look")]
pub(super) enum LaunchEvent {
    /// A launch is measured, and its server waits for live looks at these knobs.
    Measured { ended: Box<EndedTrial>, knobs: Vec<LiveKnob> },
    /// A live look has ended. `is_usable` is whether it was measured.
    Looked { ended: Box<EndedTrial>, is_usable: bool },
    /// A launch has ended with all of its processes.
    Ended(EndedOrder),
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
    fast_starts: FastStarts,
    /// Whether a launch with the helper for live looks became ready.
    has_live_server: AtomicBool,
    /// Whether the helper refuses this engine, so that further launches are plain.
    refuses_live_looks: AtomicBool,
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
        let gate = MemoryGate::new(run, context);
        let [has_live_server, refuses_live_looks] = [false, false].map(AtomicBool::new);
        Ok(Self {
            run,
            journal,
            context,
            preflighter,
            gate,
            step_forecast: steps,
            fast_starts: FastStarts::new(run.job.fast_starts),
            has_live_server,
            refuses_live_looks,
        })
    }

    /// Executes an order, with all of its launches. `link` passes live looks to its server.
    pub(super) async fn execute(&self, mut order: LaunchOrder, mut link: ServerLink) -> EndedOrder {
        let result = Box::pin(self.launch(&order.pending, &mut order.place, &mut link)).await;
        EndedOrder { order, result }
    }

    /// Launches a configuration and measures it. If its environment fails it is launched again, until the retries are
    /// exhausted.
    async fn launch(
        &self,
        pending: &PendingTrial,
        place: &mut SlotPlace,
        link: &mut ServerLink,
    ) -> Result<LaunchEnd, TuneError> {
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
            let control = self.live_control(pending, &log);
            let mut command = command_line(run.job, &run.installed, config, Some(&filling))?;
            if let Some(control) = &control {
                command = command.with_helper(control.arguments());
                let known = |name: &str| {
                    let own = variables.get(name).or_else(|| run.job.engine.env.get(name)).cloned();
                    own.or_else(|| std::env::var(name).ok())
                };
                variables.extend(control.variable(known));
            }
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
                origin: &proposal.origin,
                config,
                place: &*place,
                placeholders: &filling,
                race: pending.race.as_deref(),
                expected_load: pending.expected_load,
            };
            let is_prepared = control.is_some();
            let to_trial = |report: LaunchReport| {
                if report.ready.is_some() {
                    self.has_live_server.fetch_or(is_prepared, Ordering::Relaxed);
                    self.fast_starts.learn_ready(report.is_fast);
                }
                if let Some(replies) = &report.records.replies {
                    self.step_forecast.learn(config, replies);
                }
                let trial = Trial {
                    proposal: proposal.clone(),
                    launch: LaunchCommand { is_fast: report.is_fast, ..launch.clone() },
                    started_at: started_at.clone(),
                    startup_s: report.ready.as_ref().map(|ready| ready.startup.as_secs_f64()),
                    elapsed_s: begin.elapsed().as_secs_f64(),
                    engine_version: report.ready.and_then(|ready| ready.version),
                    log: Some(log.clone()),
                    outcome: report.outcome.for_storage(),
                    probe: None,
                };
                EndedTrial { trial, records: report.records, left_behind: report.left_behind }
            };
            let offer = control.map(|control| LookOffer { control, link: &mut *link, to_trial: &to_trial });
            let report = match attempt.run(command.words, variables, offer).await? {
                Some(AttemptEnd::Report(report)) => report,
                Some(AttemptEnd::Reported { left_behind }) => {
                    if left_behind.is_none() {
                        self.gate.wait_for_release(place, baselines).await;
                    }
                    return Ok(LaunchEnd::Reported { left_behind });
                }
                None => return Ok(LaunchEnd::RunEnded(StudyEnding::Interrupted)),
            };
            if report.left_behind.is_none() {
                self.gate.wait_for_release(place, baselines).await;
            }
            if self.fast_starts.may_have_failed(&report, self.context) {
                continue;
            }
            if is_prepared && self.may_have_failed_by_helper(&report) {
                continue;
            }
            // Another process took the port first, so another port may work at once.
            let again_at_once = report.failed_with(FailureKind::PortInUse) && collisions < MAX_PORT_COLLISIONS;
            collisions = if again_at_once { collisions + 1 } else { 0 };
            let ended = to_trial(report);
            if let Some(end) = patience.decide(ended, again_at_once).await? {
                return Ok(end);
            }
        }
    }

    /// Returns the helper for live looks on the server of a launch. `None` for a plain launch.
    fn live_control(&self, pending: &PendingTrial, log: &std::path::Path) -> Option<LiveControl> {
        let helper = pending
            .live_helper
            .filter(|helper| (helper.accepts)(&self.run.with_engine_args(&pending.proposal.config)))?;
        if self.refuses_live_looks.load(Ordering::Relaxed) {
            return None;
        }
        match LiveControl::create(helper, &log.with_extension(LIVE_EXTENSION)) {
            Ok(control) => Some(control),
            Err(error) => {
                self.refuse_live_looks(&error.to_string());
                None
            }
        }
    }

    /// Makes all further launches plain ones.
    fn refuse_live_looks(&self, why: &str) {
        self.refuses_live_looks.store(true, Ordering::Relaxed);
        self.context.notice_once(format!("no live looks: {why}; the study continues with plain launches"));
    }

    /// Returns whether a prepared launch failed during its start, and none has become ready so far. The helper may be the
    /// cause, so that the same trial is launched again without it.
    fn may_have_failed_by_helper(&self, report: &LaunchReport) -> bool {
        let kinds = [FailureKind::StartupExit, FailureKind::InvalidArgument, FailureKind::Unsupported];
        let is_suspect = report.ready.is_none()
            && report.left_behind.is_none()
            && kinds.into_iter().any(|kind| report.failed_with(kind))
            && !self.has_live_server.load(Ordering::Relaxed);
        if is_suspect {
            self.refuse_live_looks("the first launch with the helper failed during its start");
        }
        is_suspect
    }
}
