//! The processes of a launch, for whoever watches them.

use std::sync::Arc;

use super::{Family, Server};

/// The processes of one launch; valid for as long as the launch lives.
#[derive(Clone, Debug)]
pub struct Processes {
    family: Arc<Family>,
}

impl Processes {
    /// The ids of those that live now. Reads one line of each process of the machine, and the environment of those that are
    /// new: some milliseconds.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        self.family.members_quickly().iter().map(|member| member.pid).collect()
    }
}

impl Server {
    /// The processes of this launch.
    #[must_use]
    pub fn processes(&self) -> Processes {
        Processes { family: Arc::clone(&self.family) }
    }
}
