//! Checks the free space of the folders that trials and engines write to.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use super::{Finding, State};
use crate::cli::Global;
use crate::facts::hub_cache;
use crate::server::log_directory;
use crate::stats::{GIB, gib_text};
use crate::store::database_path;

pub(super) fn look(global: &Global) -> Vec<Finding> {
    let database = database_path(&global.db);
    let mut findings = vec![space("disk", &folder_of(&database), GIB, 5 * GIB, true)];
    let logs = log_directory(&database, "");
    if logs.is_dir() {
        findings.push(space("logs", &logs, GIB, 5 * GIB, true));
    }
    let shared = Path::new("/dev/shm");
    findings.push(if shared.is_dir() {
        let mut finding = space("shared", shared, 0, GIB, true);
        if finding.state == State::Warn {
            // Docker's default is 64 MiB.
            finding.hint = Some(
                "engines on several devices need more: start the container with `--ipc=host` or a larger `--shm-size`"
                    .into(),
            );
        }
        finding
    } else {
        Finding::warn("shared", "there is no /dev/shm", "engines with several processes need it")
    });
    findings.extend(model_cache().map(|cache| space("models", &cache, 0, 10 * GIB, false)));
    findings
}

/// Returns the absolute folder of a file. Neither must exist.
fn folder_of(file: &Path) -> PathBuf {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    absolute.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

/// Returns the folder of downloaded models, if it exists.
fn model_cache() -> Option<PathBuf> {
    hub_cache(|name| std::env::var(name).ok()).filter(|cache| cache.is_dir())
}

/// Checks a folder. Less than `least` free bytes fail, less than `enough` warn. If `written`, the folder must be
/// writable.
fn space(what: &'static str, folder: &Path, least: u64, enough: u64, written: bool) -> Finding {
    let shown = folder.display();
    if !folder.is_dir() {
        return Finding::fail(what, format!("{shown} does not exist"), "create it, or name another database with --db");
    }
    if written && access(folder, AccessFlags::W_OK).is_err() {
        return Finding::fail(what, format!("{shown} cannot be written"), "name another database with --db");
    }
    match statvfs(folder) {
        Err(error) => Finding::warn(what, format!("{shown}: the free space is unknown: {error}"), "see `df`"),
        Ok(stat) => judged(what, &shown.to_string(), stat.blocks_available() * stat.fragment_size(), least, enough),
    }
}

fn judged(what: &'static str, shown: &str, free: u64, least: u64, enough: u64) -> Finding {
    let text = format!("{shown}: {} free", gib_text(free));
    if free < least {
        return Finding::fail(what, text, format!("free at least {}", gib_text(least)));
    }
    Finding::expect(free >= enough, what, text, &format!("a night of trials needs about {}", gib_text(enough)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_fails_and_a_tight_one_warns() {
        let states = [GIB / 2, 2 * GIB, 50 * GIB].map(|free| judged("database", "/", free, GIB, 5 * GIB).state);
        assert_eq!(states, [State::Fail, State::Warn, State::Ok]);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let finding = space("database", Path::new("/nonexistent"), 0, 0, true);
        assert_eq!((finding.state, finding.text.as_str()), (State::Fail, "/nonexistent does not exist"));
        assert_eq!(space("database", &std::env::temp_dir(), 0, 0, true).state, State::Ok);
    }
}
