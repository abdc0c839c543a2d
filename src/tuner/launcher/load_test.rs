//! The load on a ready server. It is driven, monitored, ended early if its outcome is certain, and checked for flaws.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::attempt::LaunchReport;
use super::devices::launch_devices;
use super::failure::{alarm_failure, crash, failed};
use super::joint_report::JointReport;
use crate::config::Config;
use crate::engine::MetricsPage;
use crate::job::{LoadJob, WorkloadPart, repeated_prompts, start_after};
use crate::load::{self, LoadPlan, LoadTarget, RunFlow};
use crate::metrics::{self, RaceTarget, RunPart, SummaryOptions, WindowRecorder, summarize};
use crate::server::Server;
use crate::stats::to_f64;
use crate::telemetry::{self, DeviceProcesses, LoadSpan, TelemetryScope, WatchedDevices};
use crate::trial::{
    FailureKind, LaunchRecords, Measurement, Outcome, Replies, SampleFlaw, ServerTelemetry, SetAsideMeasurement,
};
use crate::tuner::context::RunContext;
use crate::tuner::run::StudyRun;
use crate::tuner::slots::SlotPlace;
use crate::tuner::watchdog::Watchdog;
use crate::tuner::{TrialPhase, TuneError, TunerEvent};

/// The most samples on one server, until one has no flaw.
const MAX_SAMPLES: u64 = 2;

/// The observer's records of a load. The load's thread writes them until the run has ended.
#[derive(Default)]
struct LoadObservation {
    recorder: WindowRecorder,
    stop: Option<metrics::StopReason>,
}

/// The load on one ready server.
pub(super) struct LoadTest<'l> {
    pub(super) run: &'l StudyRun<'l>,
    pub(super) context: &'l RunContext<'l>,
    pub(super) config: &'l Config,
    /// The trial's number.
    pub(super) number: u32,
    pub(super) place: &'l SlotPlace,
    pub(super) watchdog: &'l Watchdog,
    pub(super) race: Option<&'l RaceTarget>,
    /// The expected value of the highest load.
    pub(super) expected_load: Option<f64>,
}

/// One workload of a load test.
struct WorkloadTest<'l> {
    part: WorkloadPart<'l>,
    plan: LoadPlan,
}

impl LoadTest<'_> {
    /// Drives the load of each workload in turn and reduces them to one outcome. The first one without a measurement ends
    /// the test.
    ///
    /// # Errors
    /// If a load cannot be driven.
    pub(super) async fn run(&self, server: &mut Server, model: &str) -> Result<LaunchReport, TuneError> {
        if let Some(goal) = &self.run.job.objective.load_goal {
            return self.search_load(server, model, goal).await;
        }
        let (mut asked, mut joint) = (BTreeMap::new(), JointReport::default());
        for part in self.run.job.parts_in_turn() {
            // Sessions of an earlier workload with the same requests are in the server's cache.
            let earlier = asked.entry(part.group).or_insert(0);
            let report = self.run_part(server, model, part, self.run.job.seed, earlier).await?;
            let Some(name) = part.name else { return Ok(report) };
            if let Some(failed) = joint.add(name, report) {
                return Ok(failed);
            }
        }
        Ok(joint.into_report(self.run.job))
    }

    /// Drives the load of one workload. `arrival_seed` is that of the arrivals, and `asked` is the number of sessions that the server has already served.
    ///
    /// A sample is void if the load generator was the bottleneck. It is disturbed if others used the engine's GPUs, or
    /// if the GPUs were slowed down. A flawed sample is repeated once with other prompts, if there are any. A second
    /// void sample is not used. A second disturbed sample is used, and stays marked as disturbed.
    pub(super) async fn run_part(
        &self,
        server: &mut Server,
        model: &str,
        part: WorkloadPart<'_>,
        arrival_seed: u64,
        asked: &mut u64,
    ) -> Result<LaunchReport, TuneError> {
        let workload = &*part.workload.source;
        let mut test = WorkloadTest { part, plan: part.load.plan(arrival_seed) };
        *asked = start_after(&mut test.plan, workload, *asked);
        let (mut known, mut set_aside) = (Vec::new(), Vec::new());
        for again in 1.. {
            let mut sample = self.sample(server, model, &test, &mut known).await?;
            let Some(FlawedSample { flaw, reasons }) = find_flaw(&sample.outcome) else {
                sample.records.set_aside = set_aside;
                return Ok(sample);
            };
            // Prompts in the server's cache would make the second sample incomparable.
            let mut next = test.plan.clone();
            let after = start_after(&mut next, workload, *asked);
            let is_last = again == MAX_SAMPLES || repeated_prompts(&next, workload).is_some();
            let number = self.number;
            match flaw {
                SampleFlaw::ClientBound if is_last => {}
                SampleFlaw::ClientBound => self.run.emit(TunerEvent::SampleVoided { number, reasons: reasons.clone() }),
                SampleFlaw::Disturbed => {
                    let (reasons, is_repeated) = (reasons.clone(), !is_last);
                    self.run.emit(TunerEvent::Disturbed { number, reasons, is_repeated });
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
            (test.plan, *asked) = (next, after);
        }
        unreachable!("the loop ends by returning")
    }

    /// Drives the load once. `known` lists other processes on the devices, as earlier samples have found them.
    async fn sample(
        &self,
        server: &mut Server,
        model: &str,
        test: &WorkloadTest<'_>,
        known: &mut Vec<DeviceProcesses>,
    ) -> Result<LaunchReport, TuneError> {
        let (halt, halted) = watch::channel(false);
        let WorkloadTest { part: WorkloadPart { workload, load, .. }, plan } = test;
        let target = self.target(server, model, load);
        let telemetry = telemetry::ServerWatch::start(self.telemetry_scope(server, known));
        let seen = Arc::new(Mutex::new(LoadObservation::default()));
        let follow = self.load_observer(&seen, telemetry.mark(), load);
        let run = tokio::select! {
            biased;
            status = server.wait_for_exit() => {
                let _ = halt.send(true);
                // The last levels of cache and memory help to explain the crash.
                let telemetry = telemetry.stop().await.record(None, 0);
                return Ok(report(Outcome::Failed(crash(server, status)), telemetry, None));
            }
            alarm = self.watchdog.alarm_under_load() => {
                let _ = halt.send(true);
                let telemetry = telemetry.stop().await.record(None, 0);
                let outcome = Outcome::Failed(alarm_failure(server, alarm, true).await);
                return Ok(report(outcome, telemetry, None));
            }
            run = load::drive(target, Arc::clone(&workload.source), plan.clone(), follow, halted) => run?,
        };
        let telemetry = telemetry.stop().await;
        known.clone_from(&telemetry.known);
        let LoadObservation { recorder, stop } =
            std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
        let options = SummaryOptions {
            goodput: load.goodput.clone(),
            // An early end aborts requests, and a window over the whole load would lack them.
            window: if stop.is_some() { RunPart::Steady } else { load.window },
            plan: Some(plan),
            recorder: Some(&recorder),
        };
        let mut measurement = summarize(&run, &options);
        if let (Some(stop), Some(window)) = (&stop, &mut measurement.window) {
            window.reason = format!("ended early: {stop}; {}", window.reason);
            window.saved_s = load.saved_s(run.ended.duration_since(run.began), run.records.len());
            window.overloaded = stop.is_overload();
        }
        let tokens = measurement.total_output_tokens;
        Ok(match metrics::outcome(measurement, &run, load.max_error_rate) {
            Outcome::Measured(mut measurement) => {
                // Clients and server are measured in the same part of the run: energy is divided by its tokens.
                let part = LoadSpan::measured(run.began..run.ended, measurement.window.as_ref());
                let record = telemetry.record(Some(part), tokens);
                measurement.server.clone_from(&record.summary);
                measurement.disturbed.clone_from(&record.disturbed);
                if let Some(price) = self.price_per_hour() {
                    measurement.add_cost(price);
                }
                self.notice_absent(&measurement, &telemetry.notes);
                let replies = Some(metrics::replies(&run, plan, &*workload.source));
                report(Outcome::Measured(measurement), record, replies)
            }
            // The cause of a failure may have begun before the window.
            outcome => report(outcome, telemetry.record(None, tokens), None),
        })
    }

    /// Returns the price of all devices of the launch for an hour.
    fn price_per_hour(&self) -> Option<f64> {
        let run = self.run;
        let devices = || run.facts().devices_needed(&run.with_engine_args(self.config));
        run.job.objective.price_per_hour.map(|price| price * to_f64(devices()))
    }

    fn target(&self, server: &Server, model: &str, load: &LoadJob) -> LoadTarget {
        let job = self.run.job;
        let api_key = job.engine.api_key().map(|key| load::BearerKey(key.to_owned()));
        let (api, dialect) = (load.api, job.engine.dialect);
        LoadTarget { api, dialect, api_key, own_server: true, ..LoadTarget::new(server.base_url(), model) }
    }

    /// Returns the observer of a load. The load's thread calls it. It reports progress, feeds the watchdog, and records
    /// arrivals in `seen`. It ends the load as soon as the outcome is certain.
    fn load_observer(
        &self,
        seen: &Arc<Mutex<LoadObservation>>,
        mark: telemetry::WindowMark,
        load: &LoadJob,
    ) -> impl FnMut(load::LoadEvent<'_>) -> RunFlow + Send + use<> {
        let (observer, seen, pulse) =
            (Arc::clone(&self.run.observer), Arc::clone(seen), Arc::clone(&self.watchdog.reply_monitor));
        let (job, number) = (self.run.job, self.number);
        let mut watch = metrics::LoadWatch::new(load.watch_options(&job.objective, self.race.cloned()));
        let (mut done, mut of, mut rate) = (0, 0, load::OutputRate::default());
        move |event: load::LoadEvent<'_>| {
            let enter = |phase| observer(TunerEvent::Phase { number, phase });
            let has_new_rate = rate.follow(&event);
            let tokens_per_s = rate.tokens_per_s();
            match event {
                load::LoadEvent::Phase { phase, total } => {
                    (done, of) = (0, usize::try_from(total.unwrap_or(0)).unwrap_or(usize::MAX));
                    match phase {
                        load::LoadPhase::Prepare => {}
                        load::LoadPhase::Warmup => enter(TrialPhase::WarmingUp),
                        load::LoadPhase::Measure => {
                            mark.request_sample();
                            enter(TrialPhase::Measuring);
                        }
                    }
                }
                load::LoadEvent::Ended { .. } => {
                    done += 1;
                    observer(TunerEvent::Progress { number, done, total: of, tokens_per_s });
                }
                load::LoadEvent::Tick(_) | load::LoadEvent::WarmupTick(_) if has_new_rate => {
                    observer(TunerEvent::Progress { number, done, total: of, tokens_per_s });
                }
                load::LoadEvent::Tick(_) | load::LoadEvent::WarmupTick(_) => {}
            }
            pulse.on(&event, Instant::now());
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.recorder.on(&event);
            seen.stop = watch.on(&event);
            if seen.stop.is_some() { RunFlow::End } else { RunFlow::Continue }
        }
    }

    /// Reports why a value is missing that the objective or a limit needs.
    fn notice_absent(&self, measurement: &Measurement, notes: &[String]) {
        let objective = &self.run.job.objective;
        // The highest load is no metric of a single probe.
        let own = Some(objective.metric.as_str()).filter(|_| objective.load_goal.is_none());
        for name in own.into_iter().chain(objective.limits().map(|limit| limit.metric.as_str())) {
            if measurement.metric(name).is_none() {
                let notes = if notes.is_empty() { "no source reports it".to_owned() } else { notes.join("; ") };
                let text = format!("{name}, the objective or a constraint, cannot be measured: {notes}");
                self.context.notice_once(text);
            }
        }
        let value = measurement.metric(&objective.metric).filter(|value| *value <= 0.0);
        if let Some(value) = value.filter(|_| objective.joint.is_some()) {
            let name = &objective.metric;
            self.context.notice_once(format!("{name} is {value} on a workload, and its ratio needs a value above 0"));
        }
    }

    /// Returns the sources that telemetry reads during the load.
    fn telemetry_scope(&self, server: &Server, known: &[DeviceProcesses]) -> TelemetryScope {
        let devices = launch_devices(self.run, self.place, self.config);
        let page = self.run.job.engine.engine.metrics();
        TelemetryScope {
            base_url: page.as_ref().map(|_| server.plain_url()),
            page: page.unwrap_or_else(MetricsPage::usual),
            processes: Some(server.processes()),
            host: true,
            gpus: devices.map(|devices| WatchedDevices { known: known.to_vec(), ..devices }),
            interval: telemetry::DEFAULT_INTERVAL,
        }
    }
}

/// Builds the report of one load. The server's start is added later.
fn report(outcome: Outcome, telemetry: ServerTelemetry, replies: Option<Replies>) -> LaunchReport {
    LaunchReport::new(outcome, LaunchRecords { telemetry: Some(telemetry), replies, ..LaunchRecords::default() })
}

/// A flaw of a measurement, with its reasons.
#[derive(Debug, PartialEq)]
struct FlawedSample {
    flaw: SampleFlaw,
    reasons: String,
}

/// Returns the flaw of a measurement. A bottleneck of the load generator takes precedence over a disturbance.
fn find_flaw(outcome: &Outcome) -> Option<FlawedSample> {
    let measurement = outcome.measurement()?;
    let flawed = |flaw, reasons: &[String]| Some(FlawedSample { flaw, reasons: reasons.join("; ") });
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
            find_flaw(&Outcome::Measured(Measurement { client, disturbed, ..Measurement::default() }))
        };
        let of = |flaw, reasons: &str| Some(FlawedSample { flaw, reasons: reasons.to_owned() });
        let sound = ClientReport { valid: true, ..ClientReport::default() };
        let busy = ClientReport { reasons: vec!["busy".to_owned(), "late".to_owned()], ..ClientReport::default() };
        assert_eq!((sample(None, &[]), sample(Some(sound.clone()), &[])), (None, None));
        assert_eq!(sample(Some(busy), &["hot"]), of(SampleFlaw::ClientBound, "busy; late"));
        assert_eq!(sample(Some(sound), &["hot", "used"]), of(SampleFlaw::Disturbed, "hot; used"));
        assert_eq!(find_flaw(&failed(FailureKind::Crash, "gone".to_owned())), None);
    }
}
