//! A handle on the processes of a launch, for code that observes them.

use std::path::Path;
use std::sync::Arc;

use procfs::process::Process;

use super::{LaunchMembers, Server, port, process};

/// The processes of one launch; valid for as long as the launch lives.
#[derive(Clone, Debug)]
pub struct LaunchProcesses {
    members: Arc<LaunchMembers>,
    port: u16,
}

impl LaunchProcesses {
    /// Returns the ids of the processes that live now. Reads one line for each process of the machine, and the
    /// environment of each new one, in a few milliseconds.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.members.members_quickly().iter().map(|member| member.pid).collect()
    }

    /// Returns those of `pids` that listen on the launch's port.
    #[must_use]
    pub fn listening(&self, pids: &[i32]) -> Vec<i32> {
        let inodes = port::listening_inodes(self.port);
        let listens = |pid: i32| {
            Process::new(pid).is_ok_and(|process| {
                inodes.iter().any(|inode| process::holds_socket(std::slice::from_ref(&process), *inode))
            })
        };
        pids.iter().copied().filter(|pid| listens(*pid)).collect()
    }
}

impl Server {
    /// Returns a handle on the processes of this launch.
    #[must_use]
    pub fn processes(&self) -> LaunchProcesses {
        LaunchProcesses { members: Arc::clone(&self.members), port: self.port }
    }

    /// Returns the path of this launch's log.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        self.log.path()
    }
}
