//! Monitoring of a launch from spawn to the end of its load: its processes live, it makes progress, and the host has
//! room for it.
//!
//! Reading is separate from deciding. `member` and `room` read and interpret `/proc`. `still`, `pulse` and `busy`
//! distinguish a hang from slowness.
//!
//! Three threads observe the launch, and neither the runtime nor the load waits for them:
//!
//! - One checks every 100 ms whether the vital processes exist.
//! - One checks the rest twice a second, and searches `/proc` for new processes.
//! - One queries the driver while the load is silent, or while a start shows no progress.

mod activity;
mod device_observer;
mod observed_process;
mod monitored_launches;
mod reply_monitor;
mod host_resources;
mod progress_monitor;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use self::activity::{BUSY_SHARE, LaunchActivity, SilenceLimit};
use self::device_observer::DeviceObserver;
use self::host_resources::{AvailableMemory, HostMemoryMonitor, full_disk, size};
use self::monitored_launches::{MONITORED_LAUNCHES, MonitoredLaunch};
use self::observed_process::{ObservedProcess, ProcessIdentity, WorkTotals, titled, vital};
use self::progress_monitor::{IDLE_SHARE, LaunchWork, LogProgress, ProgressMonitor};
use self::reply_monitor::{HangCheck, ReplySilence, SilenceStep};
use crate::engine::MetricsPage;
use crate::server::LaunchProcesses;
use crate::telemetry;
use crate::trial::{Failure, FailureKind};

pub(super) use self::activity::{StepEstimate, largest_step};
pub(super) use self::host_resources::MIN_DISK_SPACE;
pub(super) use self::reply_monitor::ReplyMonitor;

/// The interval between checks of the vital processes: their death is to be noticed within 200 ms.
const DEATH_POLL: Duration = Duration::from_millis(100);

/// The interval between checks of everything else.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The intervals between searches for new processes: many begin during a start, few later.
const START_SEARCH_INTERVAL: Duration = Duration::from_secs(1);
const LOAD_SEARCH_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest silence at the end of a load after which a failed health check counts as a hang.
const UNANSWERED_SILENCE: Duration = Duration::from_secs(1);

/// The parts of one launch that the watchdog monitors.
#[derive(Clone, Debug)]
pub(super) struct WatchScope {
    pub(super) processes: LaunchProcesses,
    pub(super) log: PathBuf,
    /// Directories whose disks must not fill up.
    pub(super) directories: Vec<PathBuf>,
    /// The time limit of a launch without a sign of life; zero means no limit.
    pub(super) stall: Duration,
    /// Estimate of the longest step of the load.
    pub(super) longest_step: StepEstimate,
    /// The GPUs that the engine computes on, if there are any.
    pub(super) devices: Option<telemetry::WatchedDevices>,
    /// Whether the engine computes elsewhere. Then its start has no time limit for silence on this host.
    pub(super) elsewhere: bool,
    /// The server's page of numbers, if it has one.
    pub(super) page: Option<MetricsPage>,
    /// The prefix of the titles of the engine's processes.
    pub(super) title: Option<&'static str>,
}

/// The longest time that a forked copy keeps the title and the command line of its parent before it runs another
/// program. Under `torch.compile` hundreds of compilers begin as such copies, and end soon.
const FORK_COPY_LIMIT: Duration = Duration::from_millis(50);

/// Clients that run programs in a container of this host, or on another host. Only the client is visible here.
const CONTAINER_CLIENTS: [&str; 3] = ["docker", "podman", "nerdctl"];
const REMOTE_CLIENTS: [&str; 4] = ["srun", "ssh", "kubectl", "mpirun"];

/// Returns whether a command runs its engine where neither its processes nor its disks are visible.
pub(super) fn computes_elsewhere(command: &[String]) -> bool {
    calls(command, &CONTAINER_CLIENTS) || computes_on_another_host(command)
}

/// Returns whether a command runs its engine on another host, so that its devices are not visible either.
pub(super) fn computes_on_another_host(command: &[String]) -> bool {
    calls(command, &REMOTE_CLIENTS)
}

fn calls(command: &[String], clients: &[&str]) -> bool {
    let name = |word: &String| word.rsplit('/').next().unwrap_or(word).to_owned();
    // The client may follow `sudo`, `env` or the like. A word after an option is no program.
    command.iter().take_while(|word| !word.starts_with('-')).any(|word| clients.contains(&name(word).as_str()))
}

/// The reason why a launch cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatchdogAlarm {
    /// A process without which the engine cannot work has ended.
    Death {
        /// Its name and number.
        who: String,
        /// Its exit status, if its parent had not collected it yet.
        status: Option<ExitStatus>,
    },
    /// The `in_flight` requests received no token for too long.
    Silence { silent: Duration, in_flight: usize, reason: String },
    /// The launch is to be ended for another reason.
    EndLaunch { kind: FailureKind, message: String },
}

impl WatchdogAlarm {
    /// Returns whether the launch has to end at once, without time to finish its output.
    fn is_urgent(&self) -> bool {
        matches!(self, Self::EndLaunch { kind: FailureKind::HostMemory, .. })
    }
}

/// The grace period for the rest of an engine once one of its processes has died. There is nothing left to finish, and
/// it occupies the device.
pub(super) const DEAD_ENGINE_GRACE: Duration = Duration::from_secs(2);

/// Watches a launch until it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// The observations of the load, written by its observer.
    pub(super) reply_monitor: Arc<ReplyMonitor>,
    raised: watch::Sender<Option<WatchdogAlarm>>,
    /// Whether `alarm_under_load` has returned an alarm, so that the load was ended for it.
    has_ended_load: AtomicBool,
    limit: SilenceLimit,
    activity: Arc<LaunchActivity>,
    base_url: String,
    page: Option<MetricsPage>,
    /// Notifies the thread of `PeriodicChecks` that the server is ready. The threads end when this sender and those of `_living`
    /// are dropped.
    ready: Sender<()>,
    _living: [Sender<()>; 2],
}

impl Watchdog {
    /// Begins to monitor a launch that was just started. If a thread cannot be started, its checks are missing.
    pub(super) fn start(scope: WatchScope, base_url: String) -> Self {
        let raised = watch::Sender::new(None);
        let limit = SilenceLimit { stall: scope.stall, longest_step: scope.longest_step };
        let activity = Arc::<LaunchActivity>::default();
        let (ready, is_ready) = channel();
        let ((living, lives), (living_too, lives_too)) = (channel(), channel());
        let (pulse, told) = (Arc::<ReplyMonitor>::default(), AtomicBool::new(false));
        let vital = Arc::new(Mutex::new(Vec::new()));
        let deaths = (raised.clone(), Arc::clone(&vital));
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        // Without these threads the leader is still awaited, and the timeouts hold.
        let _ = named("watchdog").spawn(move || watch_deaths(&deaths.0, &deaths.1, &lives));
        if let Some(devices) = scope.devices.clone() {
            let (activity, pulse) = (Arc::clone(&activity), Arc::clone(&pulse));
            let witness = DeviceObserver::new(devices, scope.processes.clone(), activity, pulse);
            let _ = named("watchdog-device").spawn(move || witness.run(&lives_too));
        }
        let page = scope.page.clone();
        let (looks, seen) = (raised.clone(), Arc::clone(&activity));
        let _ = named("watchdog-look").spawn(move || PeriodicChecks::new(scope, vital, seen).run(&looks, &is_ready));
        Self {
            reply_monitor: pulse,
            raised,
            has_ended_load: told,
            limit,
            activity,
            base_url,
            page,
            ready,
            _living: [living, living_too],
        }
    }

    /// Declares the server ready: its serving processes must not end from now on.
    pub(super) fn mark_ready(&self) {
        // The receiving thread may have ended with an alarm.
        let _ = self.ready.send(());
    }

    /// Returns the alarm, if there was one.
    pub(super) fn raised(&self) -> Option<WatchdogAlarm> {
        self.raised.borrow().clone()
    }

    /// Waits for an alarm; never returns if there is none. Safe to cancel.
    pub(super) async fn alarm(&self) -> WatchdogAlarm {
        let mut raised = self.raised.subscribe();
        let found = raised.wait_for(Option::is_some).await.ok().and_then(|alarm| alarm.clone());
        match found {
            Some(alarm) => alarm,
            None => std::future::pending().await,
        }
    }

    /// Like `alarm`, but under load, when a silent server also raises an alarm.
    pub(super) async fn alarm_under_load(&self) -> WatchdogAlarm {
        let alarm = tokio::select! {
            biased;
            alarm = self.alarm() => alarm,
            alarm = self.silence() => {
                raise(&self.raised, alarm.clone());
                alarm
            }
        };
        self.has_ended_load.store(true, Ordering::Relaxed);
        alarm
    }

    /// Returns whether a load was ended for an alarm.
    pub(super) fn has_ended_load(&self) -> bool {
        self.has_ended_load.load(Ordering::Relaxed)
    }

    /// Returns the failure of a living server whose health check fails. Returns `None` if the server has
    /// answered its last requests.
    pub(super) fn unanswered(&self, failure: &Failure) -> Option<Failure> {
        let silent = self.reply_monitor.reply_silence().silent;
        let message = format!("{}; no token for {silent:.1?}, and the health check fails", failure.message);
        (silent >= UNANSWERED_SILENCE).then_some(Failure { kind: FailureKind::Hang, message })
    }

    /// Returns the grace period of the launch, at most the one that the study allows.
    pub(super) fn grace(&self, allowed: Duration) -> Duration {
        match self.raised() {
            Some(alarm) if alarm.is_urgent() => Duration::ZERO,
            Some(WatchdogAlarm::Death { .. }) => allowed.min(DEAD_ENGINE_GRACE),
            _ => allowed,
        }
    }

    async fn counters(&self) -> Option<Vec<(&'static str, f64)>> {
        telemetry::read_page(&self.base_url, self.page.as_ref()?).await
    }

    async fn silence(&self) -> WatchdogAlarm {
        if self.limit.stall.is_zero() {
            std::future::pending::<()>().await;
        }
        let mut check = HangCheck::new(self.limit.stall);
        loop {
            let beat = self.reply_monitor.reply_silence();
            // The load may receive tokens while the page is requested.
            if check.step(beat.silent) == SilenceStep::RequestPage
                && check.compare_page(beat.silent, self.counters().await)
            {
                let now = self.reply_monitor.reply_silence();
                if now.silent >= beat.silent {
                    let ReplySilence { silent, in_flight } = now;
                    if let Some(reason) = self.limit.hang_reason(silent, self.activity.idleness()) {
                        return WatchdogAlarm::Silence { silent, in_flight, reason };
                    }
                    check.postpone(silent);
                }
            }
            tokio::time::sleep(DEATH_POLL).await;
        }
    }
}

/// Checks the vital processes until one has ended, or the watchdog is dropped.
fn watch_deaths(
    raised: &watch::Sender<Option<WatchdogAlarm>>,
    vital: &Mutex<Vec<ProcessIdentity>>,
    lives: &Receiver<()>,
) {
    while lives.recv_timeout(DEATH_POLL) == Err(RecvTimeoutError::Timeout) {
        let vital = vital.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((who, end)) = vital.iter().find_map(|who| Some((who, who.end()?))) {
            raise(raised, WatchdogAlarm::Death { who: who.to_string(), status: end.status });
            return;
        }
    }
}

/// Raises an alarm unless there is one: later alarms are consequences of the first.
fn raise(raised: &watch::Sender<Option<WatchdogAlarm>>, alarm: WatchdogAlarm) {
    raised.send_if_modified(|found| {
        let first = found.is_none();
        if first {
            *found = Some(alarm);
        }
        first
    });
}

/// The checks that are made twice a second.
struct PeriodicChecks {
    scope: WatchScope,
    vital: Arc<Mutex<Vec<ProcessIdentity>>>,
    /// The launch's processes at the last search.
    pids: Vec<i32>,
    /// Time of the last search for processes; `None` if one is due.
    searched: Option<Instant>,
    /// Whether the server is ready.
    serving: bool,
    /// Whether the serving processes were found. Processes that start later are not vital unless they have a title.
    found_serving: bool,
    log: LogProgress,
    /// The work of all processes so far, including those that have ended.
    total_work: WorkTotals,
    /// The number of observations with a process that waited for its storage, or with a busy device.
    wait_observations: u64,
    start: ProgressMonitor,
    /// Activity once the server is ready.
    under_load: ProgressMonitor,
    activity: Arc<LaunchActivity>,
    memory: HostMemoryMonitor,
    monitored: MonitoredLaunch<'static>,
}

impl PeriodicChecks {
    fn new(scope: WatchScope, vital: Arc<Mutex<Vec<ProcessIdentity>>>, activity: Arc<LaunchActivity>) -> Self {
        let stall = if scope.elsewhere { Duration::ZERO } else { scope.stall };
        Self {
            vital,
            pids: Vec::new(),
            searched: None,
            serving: false,
            found_serving: false,
            log: LogProgress::new(&scope.log),
            total_work: WorkTotals::default(),
            wait_observations: 0,
            start: ProgressMonitor::new(stall, IDLE_SHARE),
            under_load: ProgressMonitor::new(scope.stall, BUSY_SHARE),
            activity,
            memory: HostMemoryMonitor::default(),
            monitored: MONITORED_LAUNCHES.enter(),
            scope,
        }
    }

    fn run(mut self, raised: &watch::Sender<Option<WatchdogAlarm>>, is_ready: &Receiver<()>) {
        loop {
            if let Some(alarm) = self.check() {
                raise(raised, alarm);
                return;
            }
            match is_ready.recv_timeout(CHECK_INTERVAL) {
                Ok(()) => (self.serving, self.searched) = (true, None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn check(&mut self) -> Option<WatchdogAlarm> {
        let now = Instant::now();
        let every = if self.serving { LOAD_SEARCH_INTERVAL } else { START_SEARCH_INTERVAL };
        let search = self.searched.is_none_or(|last| now.saturating_duration_since(last) >= every);
        if search {
            self.pids = self.scope.processes.pids();
            self.searched = Some(now);
        }
        let members: Vec<_> =
            self.pids.iter().filter_map(|pid| ObservedProcess::read(*pid, self.scope.title)).collect();
        if search {
            self.find_vital(&members);
        }
        let is_still = !self.serving && !self.start.stillness().is_zero();
        self.activity.set_start_still(is_still);
        // Threads are read only if nothing else moves: an engine has hundreds.
        let waits = members.iter().any(|member| member.waits || is_still && member.has_waiting_thread());
        self.wait_observations += u64::from(waits || is_still && self.activity.has_busy_device());
        let work = self.total_work.add(&members, self.log.look(now), self.wait_observations);
        if !self.serving
            && let Some(still) = self.start.look(now, work)
        {
            let last = self.log.last(now);
            let message = format!(
                "the start shows no sign of work for {still:.1?}: no processor time, no reads, no busy device, no log \
                 line; {last}"
            );
            return Some(WatchdogAlarm::EndLaunch { kind: FailureKind::Hang, message });
        }
        // Log lines and bytes are no sign of a step: a waiting server writes its statistics, too.
        if self.serving && !self.scope.elsewhere {
            self.under_load.look(now, LaunchWork { cpu: work.cpu, ..LaunchWork::default() });
            self.activity.set_processes(self.under_load.stillness());
        }
        let largest = members.iter().max_by_key(|member| member.resident);
        let resident = members.iter().map(|member| member.resident).sum();
        let rooms = AvailableMemory::read(largest.map(|member| member.identity.pid));
        self.monitored.tell(resident, &rooms);
        let is_to_end = |room: &str| self.monitored.is_to_end(now, room);
        if let Some(reason) = self.memory.check(now, &rooms, resident, self.serving, is_to_end) {
            let of = largest.map(|member| format!("{} with {}", member.identity, size(member.resident)));
            let of = of.unwrap_or_else(|| "none".to_owned());
            let message =
                format!("{reason}; the largest process of the launch: {of}; all its processes: {}", size(resident));
            return Some(WatchdogAlarm::EndLaunch { kind: FailureKind::HostMemory, message });
        }
        let message = full_disk(&self.scope.directories)?;
        Some(WatchdogAlarm::EndLaunch { kind: FailureKind::Disk, message })
    }

    /// Adds new vital processes to the list. Those that are gone stay in it, so that the other thread notices their
    /// end.
    fn find_vital(&mut self, members: &[ObservedProcess]) {
        let found = if self.serving && !self.found_serving {
            self.found_serving = true;
            let listening = self.scope.processes.listening(&self.pids);
            vital(members, &listening)
        } else {
            titled(members)
        };
        let known = self.vital.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_known =
            |who: &ProcessIdentity| known.iter().any(|known| (known.pid, known.start) == (who.pid, who.start));
        let new: Vec<_> = found.into_iter().filter(|who| !is_known(who)).collect();
        if new.is_empty() {
            return;
        }
        std::thread::sleep(FORK_COPY_LIMIT);
        let before = |who: &ProcessIdentity| members.iter().find(|member| member.identity == *who);
        let stays =
            new.into_iter().filter(|who| before(who).is_some_and(|member| member.is_same_program(self.scope.title)));
        self.vital.lock().unwrap_or_else(PoisonError::into_inner).extend(stays);
    }
}
