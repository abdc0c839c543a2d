//! Which processes belong to a launch, read from `/proc`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use procfs::process::{FDTarget, Process, all_processes};

use super::Marker;

/// Processes, zombies left out, of these sessions or whose marker satisfies `matches`.
///
/// Engines that set their process title overwrite their environment, so that neither criterion would do alone.
pub(super) fn members(sessions: &[i32], matches: impl Fn(&[u8]) -> bool) -> Vec<Process> {
    let Ok(processes) = all_processes() else { return Vec::new() };
    let own = std::process::id();
    processes
        .flatten()
        .filter(|process| u32::try_from(process.pid) != Ok(own))
        .filter(|process| {
            let Ok(stat) = process.stat() else { return false };
            let dead = matches!(stat.state, 'Z' | 'X');
            !dead && (sessions.contains(&stat.session) || marker_of(process).is_some_and(|marker| matches(&marker)))
        })
        .collect()
}

fn marker_of(process: &Process) -> Option<Vec<u8>> {
    let environment = process.environ().ok()?;
    environment.get(OsStr::new(Marker::VARIABLE)).map(|value| value.as_bytes().to_vec())
}

/// Whether one of these processes holds the socket with this inode.
pub(super) fn holds_socket(processes: &[Process], inode: u64) -> bool {
    processes.iter().any(|process| {
        process.fd().is_ok_and(|descriptors| {
            descriptors.flatten().any(|descriptor| matches!(descriptor.target, FDTarget::Socket(i) if i == inode))
        })
    })
}

/// The process that holds the socket with this inode, and its name; `None` where it cannot be seen.
pub(super) fn owner(inode: u64) -> Option<(i32, String)> {
    let mut processes = all_processes().ok()?.flatten();
    let owner = processes.find(|process| holds_socket(std::slice::from_ref(process), inode))?;
    let name = owner.stat().map_or_else(|_| "?".to_owned(), |stat| stat.comm);
    Some((owner.pid(), name))
}
