//! What is watched while a launch lives, from spawn to the end of its load: whether its processes live, whether it works,
//! and whether the host has room left for it.
//!
//! Reading is apart from deciding: `member` and `room` read and interpret `/proc`, `still` and `pulse` tell a hang
//! from slowness. Three threads look, and neither the runtime nor the load waits for them: one every 100 ms whether the vital
//! processes exist, one twice a second at the rest, which includes a scan of `/proc` for new processes, and one
//! asks the driver while the load is silent.

mod busy;
mod device;
mod member;
mod neighbour;
mod pulse;
mod room;
mod still;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use self::busy::{Activity, BUSY_SHARE, SilenceLimit};
use self::device::DeviceWitness;
use self::member::{Done, Member, Who, titled, vital};
use self::neighbour::{NEIGHBOURS, Neighbour};
use self::pulse::{Beat, Doubt, Step};
use self::room::{Memory, Room, full_disk, size};
use self::still::{IDLE_SHARE, Log, Start, Work};
use crate::engine::MetricsPage;
use crate::server::Processes;
use crate::telemetry;
use crate::trial::{Failure, FailureKind};

pub(super) use self::busy::{StepEstimate, largest_step};
pub(super) use self::pulse::Pulse;
pub(super) use self::room::LEAST_DISK;

/// How often the vital processes are looked at: their death is to be noticed within 200 ms.
const DEATH_POLL: Duration = Duration::from_millis(100);

/// How often everything else is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How often the processes are looked for anew: new ones come in a start, few come later.
const SEARCH_AT_START: Duration = Duration::from_secs(1);
const SEARCH_UNDER_LOAD: Duration = Duration::from_secs(5);

/// What a load must have ended with, for the silence of the health check thereafter to count as a part of it.
const UNANSWERED: Duration = Duration::from_secs(1);

/// What to watch of one launch.
#[derive(Clone, Debug)]
pub(super) struct WatchScope {
    pub(super) processes: Processes,
    pub(super) log: PathBuf,
    /// Whose disks must not fill up.
    pub(super) directories: Vec<PathBuf>,
    /// How long may there be no sign of life; zero: for ever.
    pub(super) stall: Duration,
    /// Estimate of the longest step of the load.
    pub(super) longest_step: StepEstimate,
    /// The GPUs that the engine computes on, if there are any.
    pub(super) devices: Option<telemetry::Devices>,
    /// Whether the engine computes elsewhere: then a start may be silent here for as long as it takes.
    pub(super) elsewhere: bool,
    /// The server's page of numbers, if it has one.
    pub(super) page: Option<MetricsPage>,
    /// The prefix of the titles of the engine's processes.
    pub(super) title: Option<&'static str>,
}

/// A process that forks to run another program has a copy with its title and its command line for so long at most: under
/// `torch.compile` hundreds of compilers begin as such copies, and end soon.
const RUN_ANOTHER: Duration = Duration::from_millis(50);

/// Programs that have others do the work, in a container of this host or on another host. Here only a client is seen.
const CONTAINER_CLIENTS: [&str; 3] = ["docker", "podman", "nerdctl"];
const REMOTE_CLIENTS: [&str; 4] = ["srun", "ssh", "kubectl", "mpirun"];

/// Whether a command has its engine run where neither its processes nor its disks are seen.
pub(super) fn computes_elsewhere(command: &[String]) -> bool {
    calls(command, &CONTAINER_CLIENTS) || computes_on_another_host(command)
}

/// Returns whether a command runs its engine on another host, so that its devices are not seen either.
pub(super) fn computes_on_another_host(command: &[String]) -> bool {
    calls(command, &REMOTE_CLIENTS)
}

fn calls(command: &[String], clients: &[&str]) -> bool {
    let name = |word: &String| word.rsplit('/').next().unwrap_or(word).to_owned();
    // Behind `sudo`, `env` or the like; what follows an option is no program.
    command.iter().take_while(|word| !word.starts_with('-')).any(|word| clients.contains(&name(word).as_str()))
}

/// Why a launch cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// A process has ended without which the engine cannot work.
    Death {
        /// Its name and number.
        who: String,
        /// How it ended, where its parent had not asked for that yet.
        status: Option<ExitStatus>,
    },
    /// No request was answered for too long while so many were under way.
    Silence { silent: Duration, in_flight: usize, reason: String },
    /// It is to be ended for another reason.
    End { kind: FailureKind, message: String },
}

impl Alarm {
    /// Whether the launch has to go at once, whatever it would still like to write.
    fn is_urgent(&self) -> bool {
        matches!(self, Self::End { kind: FailureKind::HostMemory, .. })
    }
}

/// How long the rest of an engine may take to end once one of its processes has died: there is nothing left to finish, and it
/// holds the device.
pub(super) const BEREAVED_GRACE: Duration = Duration::from_secs(2);

/// Watches a launch until it is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// What the load hears, from its observer.
    pub(super) pulse: Arc<Pulse>,
    raised: watch::Sender<Option<Alarm>>,
    /// Whether the load was ended for it.
    told: AtomicBool,
    limit: SilenceLimit,
    activity: Arc<Activity>,
    base_url: String,
    page: Option<MetricsPage>,
    /// Tells one thread that the server is ready. Both threads end when the other halves of these are gone.
    ready: Sender<()>,
    _living: [Sender<()>; 2],
}

impl Watchdog {
    /// Begins to watch a launch that was just started. A thread that cannot be started looks at nothing.
    pub(super) fn start(scope: WatchScope, base_url: String) -> Self {
        let raised = watch::Sender::new(None);
        let limit = SilenceLimit { stall: scope.stall, longest_step: scope.longest_step };
        let activity = Arc::<Activity>::default();
        let (ready, is_ready) = channel();
        let ((living, lives), (living_too, lives_too)) = (channel(), channel());
        let (pulse, told) = (Arc::<Pulse>::default(), AtomicBool::new(false));
        let vital = Arc::new(Mutex::new(Vec::new()));
        let deaths = (raised.clone(), Arc::clone(&vital));
        let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
        // Without a thread the leader is still awaited, and the timeouts hold.
        let _ = named("watchdog").spawn(move || watch_deaths(&deaths.0, &deaths.1, &lives));
        if let Some(devices) = scope.devices.clone() {
            let (activity, pulse) = (Arc::clone(&activity), Arc::clone(&pulse));
            let witness = DeviceWitness::new(devices, scope.processes.clone(), activity, pulse);
            let _ = named("watchdog-device").spawn(move || witness.run(&lives_too));
        }
        let page = scope.page.clone();
        let (looks, seen) = (raised.clone(), Arc::clone(&activity));
        let _ = named("watchdog-look").spawn(move || Look::new(scope, vital, seen).run(&looks, &is_ready));
        Self { pulse, raised, told, limit, activity, base_url, page, ready, _living: [living, living_too] }
    }

    /// Tells that the server is ready: whatever serves must not end from now on.
    pub(super) fn serve(&self) {
        // The thread that hears it may have ended with an alarm.
        let _ = self.ready.send(());
    }

    /// The alarm, where there was one.
    pub(super) fn raised(&self) -> Option<Alarm> {
        self.raised.borrow().clone()
    }

    /// Waits for an alarm, for ever where there is none. Safe to cancel.
    pub(super) async fn alarm(&self) -> Alarm {
        let mut raised = self.raised.subscribe();
        let found = raised.wait_for(Option::is_some).await.ok().and_then(|alarm| alarm.clone());
        match found {
            Some(alarm) => alarm,
            None => std::future::pending().await,
        }
    }

    /// The same while the load is driven: that nothing comes back any more is told as well.
    pub(super) async fn alarm_under_load(&self) -> Alarm {
        let alarm = tokio::select! {
            biased;
            alarm = self.alarm() => alarm,
            alarm = self.silence() => {
                raise(&self.raised, alarm.clone());
                alarm
            }
        };
        self.told.store(true, Ordering::Relaxed);
        alarm
    }

    /// Whether a load was ended for an alarm.
    pub(super) fn has_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// The failure of a server that lives, whose health check is silent, and which has not answered its last requests
    /// either; `None` where it has.
    pub(super) fn unanswered(&self, failure: &Failure) -> Option<Failure> {
        let silent = self.pulse.beat().silent;
        let message = format!("{}; no token for {silent:.1?}, and the health check does not answer", failure.message);
        (silent >= UNANSWERED).then_some(Failure { kind: FailureKind::Hang, message })
    }

    /// How long the launch may take to end, of what the study allows.
    pub(super) fn grace(&self, allowed: Duration) -> Duration {
        match self.raised() {
            Some(alarm) if alarm.is_urgent() => Duration::ZERO,
            Some(Alarm::Death { .. }) => allowed.min(BEREAVED_GRACE),
            _ => allowed,
        }
    }

    async fn counters(&self) -> Option<Vec<(&'static str, f64)>> {
        telemetry::ask(&self.base_url, self.page.as_ref()?).await
    }

    async fn silence(&self) -> Alarm {
        if self.limit.stall.is_zero() {
            std::future::pending::<()>().await;
        }
        let mut doubt = Doubt::new(self.limit.stall);
        loop {
            let beat = self.pulse.beat();
            // While the page is asked for, the load may hear something.
            if doubt.step(beat.silent) == Step::Ask && doubt.answer(beat.silent, self.counters().await) {
                let now = self.pulse.beat();
                if now.silent >= beat.silent {
                    let Beat { silent, in_flight } = now;
                    if let Some(reason) = self.limit.exceeded(silent, self.activity.idleness()) {
                        return Alarm::Silence { silent, in_flight, reason };
                    }
                    doubt.postpone(silent);
                }
            }
            tokio::time::sleep(DEATH_POLL).await;
        }
    }
}

/// Looks at the vital processes until one has ended, or nobody wants to know any more.
fn watch_deaths(raised: &watch::Sender<Option<Alarm>>, vital: &Mutex<Vec<Who>>, lives: &Receiver<()>) {
    while lives.recv_timeout(DEATH_POLL) == Err(RecvTimeoutError::Timeout) {
        let vital = vital.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((who, end)) = vital.iter().find_map(|who| Some((who, who.end()?))) {
            raise(raised, Alarm::Death { who: who.to_string(), status: end.status });
            return;
        }
    }
}

/// The first alarm counts: others only follow from it.
fn raise(raised: &watch::Sender<Option<Alarm>>, alarm: Alarm) {
    raised.send_if_modified(|found| {
        let first = found.is_none();
        if first {
            *found = Some(alarm);
        }
        first
    });
}

/// Everything that is looked at twice a second.
struct Look {
    scope: WatchScope,
    vital: Arc<Mutex<Vec<Who>>>,
    pids: Vec<i32>,
    searched: Option<Instant>,
    serving: bool,
    /// Whether those that serve were found. What is started later may end as it likes.
    settled: bool,
    log: Log,
    done: Done,
    /// The number of looks at which a process waited for its storage or a device computed.
    witnessed: u64,
    start: Start,
    /// Activity once the server is ready.
    under_load: Start,
    activity: Arc<Activity>,
    memory: Memory,
    neighbour: Neighbour<'static>,
}

impl Look {
    fn new(scope: WatchScope, vital: Arc<Mutex<Vec<Who>>>, activity: Arc<Activity>) -> Self {
        let stall = if scope.elsewhere { Duration::ZERO } else { scope.stall };
        Self {
            vital,
            pids: Vec::new(),
            searched: None,
            serving: false,
            settled: false,
            log: Log::new(&scope.log),
            done: Done::default(),
            witnessed: 0,
            start: Start::new(stall, IDLE_SHARE),
            under_load: Start::new(scope.stall, BUSY_SHARE),
            activity,
            memory: Memory::default(),
            neighbour: NEIGHBOURS.enter(),
            scope,
        }
    }

    fn run(mut self, raised: &watch::Sender<Option<Alarm>>, is_ready: &Receiver<()>) {
        loop {
            if let Some(alarm) = self.look() {
                raise(raised, alarm);
                return;
            }
            match is_ready.recv_timeout(LOOK) {
                Ok(()) => (self.serving, self.searched) = (true, None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) -> Option<Alarm> {
        let now = Instant::now();
        let every = if self.serving { SEARCH_UNDER_LOAD } else { SEARCH_AT_START };
        let search = self.searched.is_none_or(|last| now.saturating_duration_since(last) >= every);
        if search {
            self.pids = self.scope.processes.pids();
            self.searched = Some(now);
        }
        let members: Vec<_> = self.pids.iter().filter_map(|pid| Member::read(*pid, self.scope.title)).collect();
        if search {
            self.find_vital(&members);
        }
        let is_still = !self.serving && !self.start.still().is_zero();
        self.activity.set_start_still(is_still);
        // Threads are looked at only if nothing else moves: an engine has hundreds.
        let waits = members.iter().any(|member| member.waits || is_still && member.has_waiting_thread());
        self.witnessed += u64::from(waits || is_still && self.activity.has_busy_device());
        let work = self.done.add(&members, self.log.look(now), self.witnessed);
        if !self.serving
            && let Some(still) = self.start.look(now, work)
        {
            let last = self.log.last(now);
            let message = format!(
                "the start shows no sign of work for {still:.1?}: no processor time, no reading, no device at work, no log; {last}"
            );
            return Some(Alarm::End { kind: FailureKind::Hang, message });
        }
        // Lines of its log and bytes are no sign of a step: a server that waits writes its statistics, too.
        if self.serving && !self.scope.elsewhere {
            self.under_load.look(now, Work { cpu: work.cpu, ..Work::default() });
            self.activity.set_processes(self.under_load.still());
        }
        let largest = members.iter().max_by_key(|member| member.resident);
        let resident = members.iter().map(|member| member.resident).sum();
        let rooms = Room::read(largest.map(|member| member.who.pid));
        self.neighbour.tell(resident, &rooms);
        let is_to_end = |room: &str| self.neighbour.is_to_end(now, room);
        if let Some(reason) = self.memory.look(now, &rooms, resident, self.serving, is_to_end) {
            let of = largest.map(|member| format!("{} with {}", member.who, size(member.resident)));
            let of = of.unwrap_or_else(|| "none".to_owned());
            let message = format!("{reason}; the largest process of the launch: {of}; all of them: {}", size(resident));
            return Some(Alarm::End { kind: FailureKind::HostMemory, message });
        }
        let message = full_disk(&self.scope.directories)?;
        Some(Alarm::End { kind: FailureKind::Disk, message })
    }

    /// Those that were vital and are gone stay in the list: the other thread is to see that they are gone.
    fn find_vital(&mut self, members: &[Member]) {
        let found = if self.serving && !self.settled {
            self.settled = true;
            let listening = self.scope.processes.listening(&self.pids);
            vital(members, &listening)
        } else {
            titled(members)
        };
        let known = self.vital.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_known = |who: &Who| known.iter().any(|known| (known.pid, known.start) == (who.pid, who.start));
        let new: Vec<_> = found.into_iter().filter(|who| !is_known(who)).collect();
        if new.is_empty() {
            return;
        }
        std::thread::sleep(RUN_ANOTHER);
        let before = |who: &Who| members.iter().find(|member| member.who == *who);
        let stays =
            new.into_iter().filter(|who| before(who).is_some_and(|member| member.stays_what_it_is(self.scope.title)));
        self.vital.lock().unwrap_or_else(PoisonError::into_inner).extend(stays);
    }
}
