//! The processes of a launch, for whoever watches them.

use std::path::Path;

use procfs::process::Process;

use super::{Marker, Server, port, process};

/// The processes of one launch, found by its session and marker; valid for as long as the launch lives.
#[derive(Clone, Debug)]
pub struct Processes {
    session: i32,
    marker: Marker,
    port: u16,
}

impl Processes {
    /// The ids of those that live now. Reads the whole of `/proc`: some milliseconds.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let members = process::members(&[self.session], |marker| marker == self.marker.value().as_bytes());
        members.iter().map(Process::pid).collect()
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
        Processes { session: self.session, marker: self.marker.clone(), port: self.port }
    }

    /// Where this launch's output goes.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }
}
