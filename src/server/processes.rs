//! The processes of a launch, for whoever watches them.

use procfs::process::Process;

use super::{Marker, Server, process};

/// The processes of one launch, found by its session and marker; valid for as long as the launch lives.
#[derive(Clone, Debug)]
pub struct Processes {
    session: i32,
    marker: Marker,
}

impl Processes {
    /// The ids of those that live now. Reads the whole of `/proc`: some milliseconds.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let members = process::members(&[self.session], |marker| marker == self.marker.value().as_bytes());
        members.iter().map(Process::pid).collect()
    }
}

impl Server {
    /// The processes of this launch.
    #[must_use]
    pub fn processes(&self) -> Processes {
        Processes { session: self.session, marker: self.marker.clone() }
    }
}
