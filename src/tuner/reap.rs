//! Clean-up after killed tuners: finds their processes, separates them from those of living tuners, and ends them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LockError, StudyLock, holder};
use crate::server::{self, Leftover, PendingStop, ProcessOrigin};

/// Time limit of a stop command: a container gets ten seconds of grace from `docker stop`.
pub(super) const STOP_COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// The state of a process that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftoverFate {
    /// It belongs to a study that a living tuner runs, the process of this id. It is not touched.
    Running(String),
    /// No tuner uses it.
    LeftBehind,
    Ended,
    /// It survived SIGKILL.
    Survived,
}

/// A process of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLeftover {
    pub leftover: Leftover,
    pub fate: LeftoverFate,
}

/// The result of a clean-up.
#[derive(Debug, Default)]
pub struct ReapSummary {
    pub processes: Vec<FoundLeftover>,
    /// Stop commands that a killed tuner had not run, and their results.
    pub stop_commands: Vec<(Vec<String>, Result<(), String>)>,
}

/// Finds the processes of launches that `of` accepts, and determines whether a tuner uses them. Touches nothing.
#[must_use]
pub fn find_leftovers(of: impl Fn(&ProcessOrigin) -> bool) -> Vec<FoundLeftover> {
    let mut holders: BTreeMap<PathBuf, Option<String>> = BTreeMap::new();
    let fate = |leftover: Leftover| {
        let directory = leftover.origin.directory();
        let held = holders.entry(directory).or_insert_with_key(|directory| holder(&directory.join("lock")));
        FoundLeftover { fate: held.clone().map_or(LeftoverFate::LeftBehind, LeftoverFate::Running), leftover }
    };
    server::leftovers(of).into_iter().map(fate).collect()
}

/// Ends the processes of launches that `of` accepts and no tuner uses, and runs their outstanding stop commands.
/// `folders` are further study folders that may contain such commands. The function holds a study's lock meanwhile, so
/// that no tuner starts the study.
///
/// # Errors
/// If a lock is free but cannot be taken.
pub async fn reap(
    of: impl Fn(&ProcessOrigin) -> bool,
    folders: &[PathBuf],
    grace: Duration,
) -> Result<ReapSummary, LockError> {
    let mut reaped = ReapSummary::default();
    let found = server::leftovers(&of);
    let mut studies: BTreeMap<PathBuf, Vec<Leftover>> =
        folders.iter().map(|folder| (folder.clone(), Vec::new())).collect();
    for leftover in found {
        studies.entry(leftover.origin.directory()).or_default().push(leftover);
    }
    for (directory, leftovers) in studies {
        let all =
            |fate: &LeftoverFate| leftovers.iter().map(|leftover| (leftover.clone(), fate.clone())).collect::<Vec<_>>();
        // A missing folder needs no lock: no tuner can use the study without it.
        let lock = directory.is_dir().then(|| StudyLock::acquire(&directory.join("lock"))).transpose();
        let _lock = match lock {
            Err(LockError::Held { holder, .. }) => {
                let running = all(&LeftoverFate::Running(holder));
                reaped.processes.extend(running.into_iter().map(|(leftover, fate)| FoundLeftover { leftover, fate }));
                continue;
            }
            lock => lock?,
        };
        for owed in PendingStop::of(&directory) {
            let command = owed.command.clone();
            reaped.stop_commands.push((command, owed.run(STOP_COMMAND_LIMIT).await));
        }
        let of_study = |origin: &ProcessOrigin| origin.directory() == directory && of(origin);
        let ended = if let Ok(ended) = server::end_processes(of_study, grace).await {
            // Processes that a stop command has ended since then are reported as well.
            merged(all(&LeftoverFate::Ended), ended, |_| LeftoverFate::Ended)
        } else {
            // These processes have survived SIGKILL.
            let left = server::leftovers(of_study);
            let fate = |pid| {
                if left.iter().any(|left| left.pid == pid) { LeftoverFate::Survived } else { LeftoverFate::Ended }
            };
            merged(all(&LeftoverFate::Ended), left.clone(), fate)
        };
        reaped.processes.extend(ended);
    }
    Ok(reaped)
}

/// Merges two lists of processes, each process once.
fn merged(
    first: Vec<(Leftover, LeftoverFate)>,
    later: Vec<Leftover>,
    fate: impl Fn(i32) -> LeftoverFate,
) -> Vec<FoundLeftover> {
    let mut by_pid: BTreeMap<i32, FoundLeftover> = BTreeMap::new();
    for leftover in first.into_iter().map(|(leftover, _)| leftover).chain(later) {
        let fate = fate(leftover.pid);
        by_pid.insert(leftover.pid, FoundLeftover { leftover, fate });
    }
    by_pid.into_values().collect()
}

/// Returns the folders of all studies of a database.
#[must_use]
pub fn study_folders(database: &Path) -> Vec<PathBuf> {
    let logs = server::log_directory(database, "");
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}
