//! Job control: the terminal is given back before the process stops, and taken again when it continues.

use std::sync::Arc;

use nix::sys::signal::{Signal, kill, raise};
use nix::unistd::Pid;
use procfs::process::{Process, Stat, all_processes};
use tokio::signal::unix::{SignalKind, signal};

use super::link::ViewLink;

/// Follows SIGTSTP and SIGCONT. SIGTSTP then no longer stops the process by itself, so this task does it if the view does
/// not own the terminal.
///
/// # Errors
/// If a handler cannot be installed.
pub(super) fn follow_job_control(link: &Arc<ViewLink>) -> std::io::Result<()> {
    let mut stops = signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?;
    let mut continues = signal(SignalKind::from_raw(Signal::SIGCONT as i32))?;
    let watched = Arc::clone(link);
    tokio::spawn(async move {
        while stops.recv().await.is_some() {
            if watched.is_shown() {
                watched.ask_to_suspend();
            } else {
                stop_process();
            }
        }
    });
    let watched = Arc::clone(link);
    tokio::spawn(async move {
        while continues.recv().await.is_some() {
            watched.note_resumed();
        }
    });
    Ok(())
}

/// Stops the other processes of the terminal's foreground job, as the terminal does for Ctrl-Z.
pub(super) fn stop_job() {
    // Without further processes the signal reaches this one only, whose handler ignores it.
    let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
}

/// Stops this process until it is continued. In a job that no shell could continue it does nothing, as the kernel does for
/// SIGTSTP.
pub(super) fn stop_process() {
    if !is_orphaned() {
        // It cannot fail: the signal is valid.
        let _ = raise(Signal::SIGSTOP);
    }
}

fn own_stat() -> Option<Stat> {
    Process::myself().and_then(|process| process.stat()).ok()
}

/// Returns whether this process belongs to the job that owns its terminal. Others may neither read from it nor change its
/// mode. A process without a controlling terminal has no such limits.
pub(super) fn is_in_foreground() -> bool {
    own_stat().is_none_or(|stat| stat.tpgid <= 0 || stat.tpgid == stat.pgrp)
}

/// Returns whether no process outside of this job, but within its session, is the parent of one of its processes (POSIX:
/// an orphaned process group).
fn is_orphaned() -> bool {
    let (Some(own), Ok(processes)) = (own_stat(), all_processes()) else { return true };
    let members = processes.flatten().filter_map(|process| process.stat().ok()).filter(|stat| stat.pgrp == own.pgrp);
    let has_parent = |member: Stat| {
        let parent = Process::new(member.ppid).and_then(|process| process.stat());
        parent.is_ok_and(|parent| parent.session == own.session && parent.pgrp != own.pgrp)
    };
    !members.into_iter().any(has_parent)
}
