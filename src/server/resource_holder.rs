//! Identification of the process that holds a port or device memory which a launch needs.

use std::fmt;
use std::os::unix::fs::MetadataExt;

use procfs::process::{Process, all_processes};

use super::process::{ProcessEntry, holds_socket};

/// A process that holds a port or a device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceHolder {
    pub pid: i32,
    /// The first word of its command line, or the name of its program.
    pub name: String,
    pub user: String,
    /// Whether a launch of `setpoint` has started it, according to its marker.
    pub ours: bool,
}

impl ResourceHolder {
    /// Reads a process from `/proc`. Returns `None` if it does not exist or is in another container.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let process = Process::new(pid).ok()?;
        let stat = process.stat().ok()?;
        let title = process.cmdline().ok().and_then(|words| words.into_iter().next()).filter(|title| !title.is_empty());
        let user = std::fs::metadata(format!("/proc/{pid}")).map_or_else(|_| "unknown".to_owned(), |at| user(at.uid()));
        let ours = ProcessEntry::from(&stat).marker().is_some();
        Some(Self { pid, name: title.unwrap_or(stat.comm), user, ours })
    }

    /// Returns the process that holds one of these sockets. Returns `None` if it is not visible: the descriptors of
    /// other users are hidden.
    pub(super) fn of_socket(inodes: &[u64]) -> Option<Self> {
        let holds = |process: &Process| {
            let process = std::slice::from_ref(process);
            inodes.iter().any(|inode| holds_socket(process, *inode))
        };
        Self::of(all_processes().ok()?.flatten().find(holds)?.pid)
    }
}

impl fmt::Display for ResourceHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, name, user, ours } = self;
        let origin = if *ours { "started by setpoint" } else { "not started by setpoint" };
        write!(f, "process {pid} ({name}) of user {user}, {origin}")
    }
}

/// Returns the name of a user from the local list of users only. A query to a network directory could block without
/// limit.
fn user(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    named(&users, uid).map_or_else(|| format!("number {uid}"), str::to_owned)
}

/// Finds the name of a user in text of the format `passwd(5)`.
fn named(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_holds_its_own_socket() -> Result<(), Box<dyn std::error::Error>> {
        let listener = std::net::TcpListener::bind((crate::server::HOST, 0))?;
        let inodes = crate::server::port::listening_inodes(listener.local_addr()?.port());
        let owner = ResourceHolder::of_socket(&inodes).ok_or("nobody holds it")?;
        assert_eq!(u32::try_from(owner.pid)?, std::process::id());
        assert!(!owner.ours && !owner.name.is_empty() && !owner.user.is_empty(), "{owner}");
        assert_eq!(ResourceHolder::of_socket(&[]), None);
        Ok(())
    }

    #[test]
    fn users_are_named_by_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\nada:x:1001:1001::/home/ada:/bin/sh\n";
        assert_eq!((named(users, 1001), named(users, 0), named(users, 7)), (Some("ada"), Some("root"), None));
    }
}
