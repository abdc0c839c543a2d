//! The load on a server that is ready: driven, watched, ended early where its outcome is certain, and judged.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::{LaunchReport, crash, failed};
use crate::config::Config;
use crate::engine::MetricsPage;
use crate::job::{follow, repeated};
use crate::load::{self, Arrival, Flow, LoadError, Plan, Run, Target};
use crate::metrics::{self, Options, Part, Recorder, Until, WatchOptions, summarize};
use crate::server::Server;
use crate::telemetry::{self, DeviceProcesses, Devices, Scope};
use crate::trial::{
    FailureKind, LaunchRecords, Measurement, Outcome, Replies, SampleFlaw, ServerTelemetry, SetAsideMeasurement,
};
use crate::tuner::slots::Place;
use crate::tuner::watchdog::{Pulse, Vitals, conclude};
use crate::tuner::{Event, Phase, TuneError, Tuner};

/// How often a load is driven on one server until the sample is sound.
const SAMPLES: u64 = 2;

/// What the observer keeps, on the load's thread until the run has ended.
#[derive(Default)]
struct Seen {
    recorder: Recorder,
    stop: Option<metrics::Stop>,
}

impl Tuner<'_> {
    /// Drives the load and reduces it to an outcome. A sample is void if the load generator was the bottleneck. It is
    /// disturbed if others used the engine's GPUs, or if these were slowed down. Both are taken once more with other prompts,
    /// if there are any. One that is void again is not used; one that is disturbed again keeps its mark.
    pub(in crate::tuner) async fn sample(
        &self,
        server: &mut Server,
        (model, config): (&str, &Config),
        (place, vitals): (&Place, &Vitals),
    ) -> Result<LaunchReport, TuneError> {
        let workload = &*self.job.workload.built;
        let mut plan = self.job.load.plan(self.job.seed);
        let mut asked = follow(&mut plan, workload, 0);
        let (mut known, mut set_aside) = (Vec::new(), Vec::new());
        for again in 1.. {
            let mut sample = self.sample_once(server, (model, config), &plan, (place, vitals), &mut known).await?;
            let Some(Flawed { flaw, reasons }) = flawed(&sample.outcome) else {
                sample.records.set_aside = set_aside;
                return Ok(sample);
            };
            asked = follow(&mut plan, workload, asked);
            // Prompts that the server has in its cache would make the second sample another one.
            let is_last = again == SAMPLES || repeated(&plan, workload).is_some();
            let number = place.trial;
            match flaw {
                SampleFlaw::ClientBound if is_last => {}
                SampleFlaw::ClientBound => (self.observer)(Event::Void { number, reasons: reasons.clone() }),
                SampleFlaw::Disturbed => {
                    let (reasons, is_repeated) = (reasons.clone(), !is_last);
                    (self.observer)(Event::Disturbed { number, reasons, is_repeated });
                }
            }
            if is_last && flaw == SampleFlaw::Disturbed {
                sample.records.set_aside = set_aside;
                return Ok(sample);
            }
            if let Outcome::Measured(measurement) = sample.outcome {
                set_aside.push(SetAsideMeasurement { flaw, measurement });
            }
            if is_last {
                let records = LaunchRecords { replies: None, set_aside, ..sample.records };
                return Ok(LaunchReport::new(failed(FailureKind::ClientBound, reasons), records));
            }
        }
        unreachable!("the loop ends by returning")
    }

    async fn sample_once(
        &self,
        server: &mut Server,
        (model, config): (&str, &Config),
        plan: &Plan,
        (place, vitals): (&Place, &Vitals),
        known: &mut Vec<DeviceProcesses>,
    ) -> Result<LaunchReport, TuneError> {
        let (halt, halted) = watch::channel(false);
        let base_url = server.base_url();
        let telemetry = telemetry::Watch::start(self.watched(server, config, (place, known)));
        let seen = Arc::new(Mutex::new(Seen::default()));
        let run = tokio::select! {
            biased;
            status = server.exited() => {
                let _ = halt.send(true);
                // How full cache and memory were says why it died.
                let telemetry = telemetry.stop().await.record(None, 0);
                return Ok(report(Outcome::Failed(crash(server, status)), telemetry, None));
            }
            alarm = vitals.alarm_under_load() => {
                let _ = halt.send(true);
                let telemetry = telemetry.stop().await.record(None, 0);
                let outcome = Outcome::Failed(conclude(server, alarm, true).await);
                return Ok(report(outcome, telemetry, None));
            }
            run = self.drive(
                place.trial, Target::new(base_url, model), plan, (&seen, &vitals.pulse), telemetry.mark(), halted,
            ) => run?,
        };
        let telemetry = telemetry.stop().await;
        known.clone_from(&telemetry.known);
        let Seen { recorder, stop } = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        let load = &self.job.load;
        let options = Options {
            goodput: load.goodput.clone(),
            // What was given up when the run was ended would be missing from the whole.
            window: if stop.is_some() { Part::Steady } else { load.window },
            plan: Some(plan),
            recorder: Some(&recorder),
        };
        let mut measurement = summarize(&run, &options);
        if let (Some(stop), Some(window)) = (&stop, &mut measurement.window) {
            window.reason = format!("ended early: {stop}; {}", window.reason);
        }
        let tokens = measurement.total_output_tokens;
        Ok(match metrics::outcome(measurement, &run, self.job.load.max_error_rate) {
            Outcome::Measured(mut measurement) => {
                let record = telemetry.record(Some(run.began..run.ended), tokens);
                measurement.server.clone_from(&record.summary);
                measurement.disturbed.clone_from(&record.disturbed);
                self.notice_absent(&measurement, &telemetry.notes);
                let replies = Some(metrics::replies(&run, plan, &*self.job.workload.built));
                report(Outcome::Measured(measurement), record, replies)
            }
            // What led to a failure may have begun before the window.
            outcome => report(outcome, telemetry.record(None, tokens), None),
        })
    }

    async fn drive(
        &self,
        number: u32,
        target: Target,
        plan: &Plan,
        (seen, pulse): (&Arc<Mutex<Seen>>, &Arc<Pulse>),
        mark: telemetry::Mark,
        halted: watch::Receiver<bool>,
    ) -> Result<Run, LoadError> {
        let (observer, seen) = (Arc::clone(&self.observer), Arc::clone(seen));
        let pulse = Arc::clone(pulse);
        let mut watch = metrics::Watch::new(self.watch_options(plan));
        let (mut done, mut of) = (0, 0);
        let follow = move |event: load::Event<'_>| {
            let phase_is = |phase| observer(Event::Phase { number, phase });
            match event {
                load::Event::Phase { phase, total } => {
                    (done, of) = (0, usize::try_from(total.unwrap_or(0)).unwrap_or(usize::MAX));
                    match phase {
                        load::Phase::Prepare => {}
                        load::Phase::Warmup => phase_is(Phase::WarmingUp),
                        load::Phase::Measure => {
                            mark.now();
                            phase_is(Phase::Measuring);
                        }
                    }
                }
                load::Event::Ended { .. } => {
                    done += 1;
                    observer(Event::Progress { number, done, total: of });
                }
                load::Event::Tick(_) | load::Event::Warming(_) => {}
            }
            pulse.on(&event, Instant::now());
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.recorder.on(&event);
            seen.stop = watch.on(&event);
            if seen.stop.is_some() { Flow::End } else { Flow::Continue }
        };
        let api_key = self.job.engine.api_key().map(|key| load::ApiKey(key.to_owned()));
        let own_server = true;
        let target = Target { api: self.job.load.api, dialect: self.job.engine.dialect, api_key, own_server, ..target };
        load::drive(target, Arc::clone(&self.job.workload.built), plan.clone(), follow, halted).await
    }

    /// What ends a run before its end.
    fn watch_options(&self, plan: &Plan) -> WatchOptions {
        let (load, objective) = (&self.job.load, &self.job.objective);
        WatchOptions {
            until: load.until.map(|relative| Until { metric: objective.metric.clone(), relative }),
            error_rate_limit: Some(load.max_error_rate),
            limits: objective.constraints.clone(),
            goodput: load.goodput.clone(),
            open_loop: !matches!(load.arrival, Arrival::Closed | Arrival::AtOnce),
            total: plan.requests,
            concurrency: plan.concurrency,
            ..WatchOptions::default()
        }
    }

    /// Reports why a value is missing that the objective or a limit needs.
    fn notice_absent(&self, measurement: &Measurement, notes: &[String]) {
        let objective = &self.job.objective;
        let limits = objective.constraints.iter().map(|constraint| constraint.metric.as_str());
        for name in std::iter::once(objective.metric.as_str()).chain(limits) {
            if measurement.metric(name).is_none() {
                let notes = if notes.is_empty() { "nothing reports it".to_owned() } else { notes.join("; ") };
                self.notice_once(format!("{name}, which the study judges by, cannot be measured: {notes}"));
            }
        }
    }

    /// What to watch while the load is driven.
    fn watched(&self, server: &Server, config: &Config, (place, known): (&Place, &[DeviceProcesses])) -> Scope {
        let devices = self.devices(place, config);
        let page = self.job.engine.engine.metrics();
        Scope {
            base_url: page.as_ref().map(|_| server.plain_url()),
            page: page.unwrap_or_else(MetricsPage::usual),
            processes: Some(server.processes()),
            host: true,
            gpus: devices.map(|devices| Devices { known: known.to_vec(), ..devices }),
            interval: telemetry::INTERVAL,
        }
    }
}

/// The report of one load; the server's start is added later.
fn report(outcome: Outcome, telemetry: ServerTelemetry, replies: Option<Replies>) -> LaunchReport {
    LaunchReport::new(outcome, LaunchRecords { telemetry: Some(telemetry), replies, ..LaunchRecords::default() })
}

/// A flaw of a measurement, with its reasons.
#[derive(Debug, PartialEq)]
struct Flawed {
    flaw: SampleFlaw,
    reasons: String,
}

/// Returns the flaw of a measurement; a bottleneck of the load generator is the graver one.
fn flawed(outcome: &Outcome) -> Option<Flawed> {
    let measurement = outcome.measurement()?;
    let flawed = |flaw, reasons: &[String]| Some(Flawed { flaw, reasons: reasons.join("; ") });
    match &measurement.client {
        Some(client) if !client.valid => flawed(SampleFlaw::ClientBound, &client.reasons),
        _ if !measurement.disturbed.is_empty() => flawed(SampleFlaw::Disturbed, &measurement.disturbed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::ClientReport;

    #[test]
    fn a_sample_is_flawed_if_the_load_generator_was_the_bottleneck_or_others_used_the_devices() {
        let sample = |client: Option<ClientReport>, disturbed: &[&str]| {
            let disturbed = disturbed.iter().map(|&reason| reason.to_owned()).collect();
            flawed(&Outcome::Measured(Measurement { client, disturbed, ..Measurement::default() }))
        };
        let of = |flaw, reasons: &str| Some(Flawed { flaw, reasons: reasons.to_owned() });
        let sound = ClientReport { valid: true, ..ClientReport::default() };
        let busy = ClientReport { reasons: vec!["busy".to_owned(), "late".to_owned()], ..ClientReport::default() };
        assert_eq!((sample(None, &[]), sample(Some(sound.clone()), &[])), (None, None));
        assert_eq!(sample(Some(busy), &["hot"]), of(SampleFlaw::ClientBound, "busy; late"));
        assert_eq!(sample(Some(sound), &["hot", "used"]), of(SampleFlaw::Disturbed, "hot; used"));
        assert_eq!(flawed(&failed(FailureKind::Crash, "gone".to_owned())), None);
    }
}
