//! Live looks on the server of a measured launch: the server waits for orders, and takes one after the other.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::sync::mpsc;

use super::attempt::{LaunchAttempt, LaunchReport};
use super::command::first_request;
use super::failure::failed;
use super::load_test::LoadTest;
use super::{EndedTrial, LaunchEvent};
use crate::config::Value;
use crate::metrics::RaceTarget;
use crate::server::{LiveControl, ReadyServer, Server};
use crate::trial::{FailureKind, LaunchCommand, LaunchRecords, LiveKnob, Measurement, Outcome, Proposal, Trial};
use crate::tuner::TuneError;
use crate::tuner::watchdog::Watchdog;

/// A live look that a waiting server is to take.
pub(in crate::tuner) struct LookOrder {
    pub(in crate::tuner) proposal: Proposal,
    /// The command of a launch of this configuration.
    pub(in crate::tuner) launch: LaunchCommand,
    /// The values of the server's knobs; `None` is the launched value.
    pub(in crate::tuner) settings: BTreeMap<&'static str, Option<Value>>,
    /// The value that its load must be able to reach, if it races.
    pub(in crate::tuner) race: Option<Box<RaceTarget>>,
    /// The expected value of the highest load, in a study that searches for it.
    pub(in crate::tuner) expected_load: Option<f64>,
}

/// The connection of a launch to the loop, through which its server receives looks.
pub(in crate::tuner) struct ServerLink {
    /// Ends when the loop releases the server.
    pub(in crate::tuner) orders: mpsc::UnboundedReceiver<LookOrder>,
    pub(in crate::tuner) events: mpsc::UnboundedSender<LaunchEvent>,
}

impl ServerLink {
    /// Sends an event. The receiver lives as long as the loop, which also polls this launch.
    fn send(&self, event: LaunchEvent) {
        let _ = self.events.send(event);
    }
}

/// A measured server that offers live looks.
pub(super) struct LookServer<'l> {
    pub(super) attempt: &'l LaunchAttempt<'l>,
    pub(super) server: &'l mut Server,
    pub(super) watchdog: &'l Watchdog,
    pub(super) control: &'l mut LiveControl,
    pub(super) knobs: Vec<LiveKnob>,
}

impl LookServer<'_> {
    /// Reports the measurement of the launch, and takes looks until the loop releases the server or the server ends.
    ///
    /// # Errors
    /// If a load cannot be driven. The measurement has been reported.
    pub(super) async fn serve(
        mut self,
        ended: EndedTrial,
        ready: &ReadyServer,
        link: &mut ServerLink,
    ) -> Result<(), TuneError> {
        let agreement = ended
            .trial
            .outcome
            .measurement()
            .and_then(|measurement| measurement.server.get(Measurement::GREEDY_AGREEMENT).copied());
        link.send(LaunchEvent::Measured { ended: Box::new(ended), knobs: std::mem::take(&mut self.knobs) });
        loop {
            let order = tokio::select! {
                biased;
                order = link.orders.recv() => order,
                _ = self.server.wait_for_exit() => None,
                _ = self.watchdog.alarm() => None,
            };
            let Some(order) = order else { return Ok(()) };
            let mut looked = self.look(order, ready).await?;
            if let (Outcome::Measured(measurement), Some(agreement)) = (&mut looked.trial.outcome, agreement) {
                // The flags of the guard are no knobs, so that the replies are those of the launch.
                measurement.server.insert(Measurement::GREEDY_AGREEMENT.to_owned(), agreement);
            }
            let is_measured = looked.trial.outcome.measurement().is_some();
            link.send(LaunchEvent::Looked { ended: Box::new(looked), is_usable: is_measured });
            if !is_measured && (self.watchdog.raised().is_some() || !self.server.is_healthy().await) {
                return Ok(());
            }
        }
    }

    /// Sets the knobs and drives the load.
    async fn look(&mut self, order: LookOrder, ready: &ReadyServer) -> Result<EndedTrial, TuneError> {
        let run = self.attempt.launcher.run;
        let LookOrder { proposal, launch, settings, race, expected_load } = order;
        let (started_at, begin) = (run.time.timestamp(), Instant::now());
        let request = (first_request(run.job), ready.model.as_str());
        let report = if let Err(error) = self.control.set(self.server, &settings, request).await {
            let outcome = failed(FailureKind::Unsupported, format!("the live knobs were not set: {error}"));
            LaunchReport::new(outcome, LaunchRecords::default())
        } else {
            let test = LoadTest {
                run,
                context: self.attempt.launcher.context,
                config: &proposal.config,
                number: proposal.number,
                place: self.attempt.place,
                watchdog: self.watchdog,
                race: race.as_deref(),
                expected_load,
            };
            test.run(self.server, &ready.model).await?
        };
        let trial = Trial {
            proposal,
            launch,
            started_at,
            startup_s: None,
            elapsed_s: begin.elapsed().as_secs_f64(),
            engine_version: ready.version.clone(),
            // The log is that of the launch.
            log: None,
            outcome: report.outcome.for_storage(),
            probe: None,
        };
        Ok(EndedTrial { trial, records: report.records, left_behind: None })
    }
}
