//! The processes of a launch, for whoever watches them.

use std::path::Path;
use std::sync::Arc;

use procfs::process::Process;

use super::{Family, Server, port, process};

/// The processes of one launch; valid for as long as the launch lives.
#[derive(Clone, Debug)]
pub struct Processes {
    family: Arc<Family>,
    port: u16,
}

impl Processes {
    /// The ids of those that live now. Reads one line of each process of the machine, and the environment of those that are
    /// new: some milliseconds.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.family.members_quickly().iter().map(|member| member.pid).collect()
    }

    /// Those of `pids` that listen on the launch's port.
    #[must_use]
    pub fn listening(&self, pids: &[i32]) -> Vec<i32> {
        let inodes = port::listeners(self.port);
        let listens = |pid: i32| {
            Process::new(pid).is_ok_and(|process| {
                inodes.iter().any(|inode| process::holds_socket(std::slice::from_ref(&process), *inode))
            })
        };
        pids.iter().copied().filter(|pid| listens(*pid)).collect()
    }
}

impl Server {
    /// The processes of this launch.
    #[must_use]
    pub fn processes(&self) -> Processes {
        Processes { family: Arc::clone(&self.family), port: self.port }
    }

    /// Where this launch's output goes.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        self.log.path()
    }
}
