//! Advice for the user after a failure of the environment.

use std::path::PathBuf;

use crate::trial::{Failure, FailureKind};
use crate::tuner::run::StudyRun;
use crate::tuner::watchdog::MIN_DISK_SPACE;

/// Returns the next step for the user after a failure of the environment.
pub(in crate::tuner) fn remedy(run: &StudyRun<'_>, failure: &Failure) -> String {
    // The directories that an engine and the tuner write to.
    let places = [run.log_directory(), std::env::temp_dir(), PathBuf::from("/dev/shm")];
    let what = match failure.kind {
        FailureKind::DeviceBusy => {
            "use `nvidia-smi` to find the processes that hold the device, and end them".to_owned()
        }
        FailureKind::DeviceLost => {
            "check with `nvidia-smi` and `dmesg` (Xid lines) that the device, its driver and its fabric \
                                    manager work; reset the device or restart the machine"
                .to_owned()
        }
        FailureKind::PortInUse => {
            "use `ss -ltnp` to find the listening processes, and end the leftover ones".to_owned()
        }
        FailureKind::ModelUnavailable => format!(
            "make the model {:?} readable here: check its path or name, the cache (HF_HOME) and the token (HF_TOKEN)",
            run.job.model.argument
        ),
        FailureKind::Network => "check the network, name resolution and NCCL_SOCKET_IFNAME".to_owned(),
        FailureKind::Disk => match scarce(&places) {
            Some(scarce) => format!("free some space: {scarce}"),
            None => "free some space, inodes or open files (`df -h`, `df -i`, `ulimit -n`)".to_owned(),
        },
        FailureKind::Killed => {
            "find the sender of the signal: the kernel (`journalctl -k`), a limit of the scheduler or container, \
             another user"
                .to_owned()
        }
        FailureKind::WrongServer => {
            "use `ss -ltnp` to find the program that answers on the port, and the log for its model name: \
                                     a wrapper or a configuration of the engine may set --served-model-name or --port"
                .to_owned()
        }
        FailureKind::RequestErrors if failure.message.contains("another API key") => {
            "check in the log with which API key the engine was started: a wrapper or a configuration of the engine \
             may set it"
                .to_owned()
        }
        _ => "check the log for a change of this machine".to_owned(),
    };
    format!("{what}; then run the same command again to resume the study")
}

/// Lists the places that run short: less than a twentieth of the space or the files is free, or less space than a
/// launch needs.
fn scarce(places: &[PathBuf]) -> Option<String> {
    let full = places.iter().filter_map(|place| {
        let space = nix::sys::statvfs::statvfs(place).ok()?;
        let is_low = |free: u64, all: u64, least: u64| all > 0 && free < least.max(all / 20);
        let least = MIN_DISK_SPACE / space.fragment_size().max(1);
        let low = is_low(space.blocks_available(), space.blocks(), least)
            || is_low(space.files_available(), space.files(), 0);
        let free = (space.blocks_available() * space.fragment_size()) >> 20;
        low.then(|| format!("{} has {free} MiB and {} files left", place.display(), space.files_available()))
    });
    let full: Vec<_> = full.collect();
    (!full.is_empty()).then(|| full.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_virtual_file_system_is_not_reported_as_full() {
        assert_eq!(scarce(&[PathBuf::from("/proc"), PathBuf::from("/no/such/place")]), None);
    }
}
