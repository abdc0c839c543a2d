//! The processes of a launch at one observation: their identity, their work so far, and their importance for the
//! engine.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use procfs::FromRead;
use procfs::process::{Io, Process, Stat};

use super::progress_monitor::LaunchWork;

/// A process, identified by its number and its start, since a number may be used again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessIdentity {
    pub(super) pid: i32,
    /// Ticks since the machine started.
    pub(super) start: u64,
    /// The name for people: its title, or the name of its program.
    pub(super) name: String,
}

impl ProcessIdentity {
    /// Returns the end of the process, if it has ended. Reads one file, which takes microseconds.
    pub(super) fn end(&self) -> Option<ObservedExit> {
        let text = match std::fs::read(format!("/proc/{}/stat", self.pid)) {
            Ok(text) => text,
            // It ended before or during the read. Other errors, such as too many open files, are no evidence of its
            // end.
            Err(error) => {
                let gone = error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_PROCESS);
                return gone.then_some(ObservedExit { status: None });
            }
        };
        let stat = Stat::from_read(&*text).ok()?;
        if stat.starttime != self.start {
            return Some(ObservedExit { status: None });
        }
        // The kernel shows the exit status to users who may trace the process, until its parent has collected it.
        matches!(stat.state, 'Z' | 'X').then(|| ObservedExit { status: stat.exit_code.map(ExitStatus::from_raw) })
    }
}

/// The end of a process, with its status if that was visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObservedExit {
    pub(super) status: Option<ExitStatus>,
}

/// `ESRCH`: the error of a read in `/proc` whose process has ended meanwhile.
const NO_PROCESS: i32 = nix::errno::Errno::ESRCH as i32;

impl std::fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// The state of a thread that waits for storage: disks, network file systems, and devices as well.
const UNINTERRUPTIBLE: char = 'D';

/// A process at one observation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedProcess {
    pub(super) identity: ProcessIdentity,
    pub(super) parent: i32,
    pub(super) command: Vec<String>,
    pub(super) cpu: Duration,
    /// Bytes read from disks and written to them.
    pub(super) bytes: u64,
    /// Bytes returned by read calls. They include files on other hosts, which `bytes` does not count.
    pub(super) read: u64,
    /// Whether its first thread waits in the kernel and cannot be interrupted, as for storage.
    pub(super) waits: bool,
    /// Resident bytes.
    pub(super) resident: u64,
    /// Whether it has a title of the engine's own processes.
    pub(super) is_titled: bool,
}

impl ObservedProcess {
    /// Reads a process; `None` if it has ended. `title` is the prefix of the titles of the engine's processes.
    pub(super) fn read(pid: i32, title: Option<&str>) -> Option<Self> {
        let process = Process::new(pid).ok()?;
        let command = process.cmdline().unwrap_or_default();
        Some(Self::of(&process.stat().ok()?, process.io().ok().as_ref(), command, title))
    }

    /// Builds a member. `io` is `None` if the kernel does not show it to this user.
    fn of(stat: &Stat, io: Option<&Io>, command: Vec<String>, title: Option<&str>) -> Self {
        let ticks = procfs::ticks_per_second().max(1);
        let titled = titled_name(&command, &stat.comm, title);
        Self {
            is_titled: titled.is_some(),
            identity: ProcessIdentity {
                pid: stat.pid,
                start: stat.starttime,
                name: titled.unwrap_or_else(|| stat.comm.clone()),
            },
            parent: stat.ppid,
            command,
            cpu: Duration::from_millis((stat.utime + stat.stime).saturating_mul(1000) / ticks),
            bytes: io.map_or(0, |io| io.read_bytes + io.write_bytes),
            read: io.map_or(0, |io| io.rchar),
            waits: stat.state == UNINTERRUPTIBLE,
            resident: stat.rss * procfs::page_size(),
        }
    }

    /// Returns whether one of its threads waits uninterruptibly. Reads one file for each thread.
    pub(super) fn has_waiting_thread(&self) -> bool {
        let tasks = Process::new(self.identity.pid).and_then(|process| process.tasks());
        let waits = |stat: Stat| stat.state == UNINTERRUPTIBLE;
        self.waits || tasks.is_ok_and(|tasks| tasks.flatten().any(|task| task.stat().is_ok_and(waits)))
    }

    /// Returns whether it still is the same program, or has got a title since.
    pub(super) fn is_same_program(&self, title: Option<&str>) -> bool {
        let now = Self::read(self.identity.pid, title).filter(|now| now.identity.start == self.identity.start);
        now.is_some_and(|now| now.command == self.command || now.is_titled)
    }
}

/// Returns the title of a process. The title is in the command line, or in the program's name if only that could be
/// set. The engine sets it late in the start of a process.
fn titled_name(command: &[String], comm: &str, title: Option<&str>) -> Option<String> {
    let first = command.first().map(String::as_str).unwrap_or_default();
    let found = [first, comm].into_iter().find(|text| title.is_some_and(|title| text.starts_with(title)))?;
    Some(found.split(' ').next().unwrap_or(found).to_owned())
}

/// Part of the command line of processes that `multiprocessing` spawns: engines and workers of releases without titles.
const SPAWN_MODULE: &str = "multiprocessing.spawn";

/// Returns the processes that are vital at any time: those with a title.
pub(super) fn titled(members: &[ObservedProcess]) -> Vec<ProcessIdentity> {
    members.iter().filter(|member| member.is_titled).map(|member| member.identity.clone()).collect()
}

/// Returns the processes that are vital once the server is ready:
///
/// - those with a title, and those that listen.
/// - processes that the listeners have forked (equal command lines), or that `multiprocessing` has spawned.
/// - all ancestors of these, up to the launch's leader.
///
/// Other processes may end: shells start `sleep` to wait, Python keeps a `resource_tracker`, and `PyTorch` ends its
/// idle pool of compilers.
pub(super) fn vital(members: &[ObservedProcess], listening: &[i32]) -> Vec<ProcessIdentity> {
    let by_pid: BTreeMap<i32, &ObservedProcess> = members.iter().map(|member| (member.identity.pid, member)).collect();
    let serving: Vec<&ObservedProcess> = listening.iter().filter_map(|pid| by_pid.get(pid).copied()).collect();
    let spawned = |member: &ObservedProcess| {
        member.command.iter().any(|word| word.contains(SPAWN_MODULE)) && by_pid.contains_key(&member.parent)
    };
    let forked = |member: &ObservedProcess| serving.iter().any(|server| server.command == member.command);
    let mut vital = BTreeSet::new();
    for member in members {
        let needed = listening.contains(&member.identity.pid) || member.is_titled || spawned(member) || forked(member);
        let mut next = needed.then_some(member);
        // Follows the parents up to the leader. A process that is already in the set has its ancestors there.
        while let Some(found) = next
            && vital.insert(found.identity.clone())
        {
            next = by_pid.get(&found.parent).copied();
        }
    }
    vital.into_iter().collect()
}

/// The work of processes since the launch, including those that have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkTotals(BTreeMap<(i32, u64), (Duration, u64, u64)>);

impl WorkTotals {
    /// Adds an observation and returns all work so far. `log` counts the changes of the log. `witnessed` counts the
    /// observations with a process that waited for its storage, or with a busy device.
    pub(super) fn add(&mut self, members: &[ObservedProcess], log: u64, witnessed: u64) -> LaunchWork {
        for member in members {
            self.0.insert((member.identity.pid, member.identity.start), (member.cpu, member.bytes, member.read));
        }
        let mut work = LaunchWork { wait_observations: witnessed, log, ..LaunchWork::default() };
        for (cpu, bytes, read) in self.0.values() {
            work.cpu += *cpu;
            work.bytes += bytes;
            work.read += read;
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TITLE: Option<&str> = Some("VLLM::");

    fn name(command: &[String], comm: &str) -> String {
        titled_name(command, comm, TITLE).unwrap_or_else(|| comm.to_owned())
    }

    fn member(pid: i32, parent: i32, command: &str) -> ObservedProcess {
        let command: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let is_titled = titled_name(&command, &command[0], TITLE).is_some();
        let who = ProcessIdentity { pid, start: 1, name: name(&command, &command[0]) };
        ObservedProcess {
            is_titled,
            identity: who,
            parent,
            command,
            cpu: Duration::ZERO,
            bytes: 0,
            read: 0,
            waits: false,
            resident: 0,
        }
    }

    fn pids(who: &[ProcessIdentity]) -> Vec<i32> {
        who.iter().map(|who| who.pid).collect()
    }

    #[test]
    fn engines_and_workers_are_vital_and_helpers_that_may_end_are_not() {
        let server = "python3 vllm serve m --port 1";
        let members = [
            member(10, 1, "sh -c conda"),
            member(11, 10, "conda run vllm"),
            member(12, 11, server),
            member(13, 12, "VLLM::EngineCore"),
            member(14, 13, "VLLM::Worker_TP0"),
            member(15, 12, "python3 -c from multiprocessing.resource_tracker import main;main(9)"),
            member(16, 13, "python3 torch/_inductor/compile_worker/__main__.py"),
            member(17, 10, "sleep 1"),
        ];
        assert_eq!(pids(&vital(&members, &[12])), [10, 11, 12, 13, 14]);
        assert_eq!(pids(&titled(&members)), [13, 14]);
    }

    #[test]
    fn forked_and_spawned_processes_without_titles_are_vital() {
        let server = "python3 vllm serve m";
        let members = [
            member(12, 1, server),
            member(13, 12, server),
            member(
                14,
                12,
                "python3 -c from multiprocessing.spawn import spawn_main; spawn_main(3) --multiprocessing-fork",
            ),
            member(15, 12, "python3 -c from multiprocessing.resource_tracker import main;main(9)"),
        ];
        assert_eq!(pids(&vital(&members, &[12])), [12, 13, 14]);
        assert!(titled(&members).is_empty());
        assert!(pids(&vital(&members, &[])).contains(&14), "the listener may be nobody's that is known");
    }

    #[test]
    fn a_title_is_in_the_command_line_or_in_the_name() {
        assert_eq!(name(&["VLLM::Worker_TP0 ".to_owned()], "python3"), "VLLM::Worker_TP0");
        assert_eq!(name(&["python3".to_owned()], "VLLM::EngineCor"), "VLLM::EngineCor");
        assert_eq!(name(&["/usr/bin/python3".to_owned()], "vllm"), "vllm");
        assert_eq!(name(&[], "kthread"), "kthread");
    }

    #[test]
    fn a_process_with_another_start_time_has_ended() {
        let own = i32::try_from(std::process::id()).unwrap();
        let read = ObservedProcess::read(own, TITLE).unwrap();
        assert!(read.resident > 0 && read.identity.end().is_none(), "{read:?}");
        let unseen = Some(ObservedExit { status: None });
        assert_eq!(ProcessIdentity { start: read.identity.start + 1, ..read.identity.clone() }.end(), unseen);
        assert_eq!(ProcessIdentity { pid: i32::MAX, ..read.identity }.end(), unseen);
    }

    #[test]
    fn the_work_of_ended_processes_stays_counted() {
        let busy = |pid, seconds| {
            let cpu = Duration::from_secs(seconds);
            ObservedProcess { cpu, bytes: seconds, read: seconds * 10, ..member(pid, 1, "a") }
        };
        let mut done = WorkTotals::default();
        done.add(&[busy(1, 5), busy(2, 7)], 0, 0);
        let expected = LaunchWork { cpu: Duration::from_secs(13), bytes: 13, read: 130, wait_observations: 2, log: 3 };
        assert_eq!(done.add(&[busy(1, 6)], 3, 2), expected);
    }

    /// A worker that reads its weights from NFS by read calls: it waits, and the bytes do not count as read from a
    /// disk.
    const ON_NFS: (&str, &str) = (
        "4711 (VLLM::Worker_TP0) D 4702 4650 4650 0 -1 4194560 913042 0 12 0 1893 412 0 0 20 0 96 0 8870123 61203456000 402133 \
         18446744073709551615 1 1 0 0 0 0 0 16781312 17642 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0",
        "rchar: 4831838208\nwchar: 120441\nsyscr: 9241\nsyscw: 381\nread_bytes: 0\nwrite_bytes: 4096\n\
         cancelled_write_bytes: 0\n",
    );

    fn recorded((stat, io): (&str, &str)) -> ObservedProcess {
        let io = Io::from_read(io.as_bytes()).unwrap();
        ObservedProcess::of(
            &Stat::from_read(stat.as_bytes()).unwrap(),
            Some(&io),
            vec!["VLLM::Worker_TP0".to_owned()],
            TITLE,
        )
    }

    #[test]
    fn a_process_that_reads_from_a_network_file_system_waits_and_has_read() {
        let member = recorded(ON_NFS);
        assert_eq!((member.bytes, member.read, member.waits), (4096, 4_831_838_208, true));
        assert_eq!((member.identity.pid, member.parent, member.identity.start), (4711, 4702, 8_870_123));
        let interruptible = ON_NFS.0.replace(") D ", ") S ");
        assert!(!recorded((&interruptible, ON_NFS.1)).waits);
        let unreadable = ObservedProcess::of(&Stat::from_read(ON_NFS.0.as_bytes()).unwrap(), None, Vec::new(), TITLE);
        assert_eq!((unreadable.bytes, unreadable.read, unreadable.waits), (0, 0, true));
    }

    #[test]
    fn this_process_does_not_wait_for_storage_for_long() {
        let own = ObservedProcess::read(i32::try_from(std::process::id()).unwrap(), TITLE).unwrap();
        // Other tests may write at this moment.
        let idle = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            !own.has_waiting_thread()
        });
        assert!(idle, "{own:?}");
    }

    proptest! {
        /// In any tree, even a malformed one, only members are vital, and each comes with its known ancestors.
        #[test]
        fn vital_processes_come_with_their_ancestors(parents in prop::collection::vec(0i32..12, 1..12), listening in prop::collection::vec(0i32..12, 0..3)) {
            let members: Vec<_> = parents.iter().enumerate()
                .map(|(pid, parent)| member(i32::try_from(pid).unwrap(), *parent, &format!("program {pid}"))).collect();
            let found = pids(&vital(&members, &listening));
            for pid in &found {
                let parent = parents[usize::try_from(*pid).unwrap()];
                prop_assert!(usize::try_from(parent).unwrap() >= parents.len() || found.contains(&parent));
            }
            for pid in listening.iter().filter(|pid| usize::try_from(**pid).unwrap() < parents.len()) {
                prop_assert!(found.contains(pid));
            }
        }
    }
}
