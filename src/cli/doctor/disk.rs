//! Checks the free space of the folders that trials and engines write to.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use super::CheckResult;
use crate::cli::GlobalOptions;
use crate::facts::hub_cache;
use crate::server::log_directory;
use crate::stats::{GIB, gib_text};
use crate::store::database_path;

/// The space and the access that a folder needs.
struct FolderNeeds {
    /// Fewer free bytes fail.
    least: u64,
    /// Fewer free bytes warn.
    enough: u64,
    /// The hint of the warning.
    scarce: &'static str,
    /// The hint if the folder cannot be written. `None` if that does not matter.
    unwritable: Option<&'static str>,
}

const STUDY_DATA: FolderNeeds = FolderNeeds {
    least: GIB,
    enough: 5 * GIB,
    scarce: "a night of trials needs about 5 GiB",
    unwritable: Some("name another database with --db"),
};

const SHARED_MEMORY: FolderNeeds = FolderNeeds {
    least: 0,
    // Docker's default is 64 MiB.
    enough: GIB,
    scarce: "engines on several devices need more: start the container with `--ipc=host` or a larger `--shm-size`",
    unwritable: Some("make it writable: engines with several processes need it"),
};

const MODEL_CACHE: FolderNeeds = FolderNeeds {
    least: 0,
    enough: 10 * GIB,
    scarce: "the download of a model may need more than 10 GiB",
    unwritable: None,
};

pub(super) fn check(global: &GlobalOptions) -> Vec<CheckResult> {
    let database = database_path(&global.db);
    let mut findings = vec![space("disk", &folder_of(&database), &STUDY_DATA)];
    let logs = log_directory(&database, "");
    if logs.is_dir() {
        findings.push(space("logs", &logs, &STUDY_DATA));
    }
    let shared = Path::new("/dev/shm");
    findings.push(if shared.is_dir() {
        space("shared", shared, &SHARED_MEMORY)
    } else {
        CheckResult::warn("shared", "there is no /dev/shm", "engines with several processes need it")
    });
    findings.extend(model_cache().map(|cache| space("models", &cache, &MODEL_CACHE)));
    findings
}

/// Returns the absolute folder of a file. Neither needs to exist.
fn folder_of(file: &Path) -> PathBuf {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    absolute.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

/// Returns the folder of downloaded models, if it exists.
fn model_cache() -> Option<PathBuf> {
    hub_cache(|name| std::env::var(name).ok()).filter(|cache| cache.is_dir())
}

/// Checks a folder.
fn space(what: &'static str, folder: &Path, needs: &FolderNeeds) -> CheckResult {
    let shown = folder.display();
    if !folder.is_dir() {
        return CheckResult::fail(
            what,
            format!("{shown} does not exist"),
            "create it, or name another database with --db",
        );
    }
    if access(folder, AccessFlags::W_OK).is_err()
        && let Some(hint) = needs.unwritable
    {
        return CheckResult::fail(what, format!("{shown} cannot be written"), hint);
    }
    match statvfs(folder) {
        Err(error) => CheckResult::warn(what, format!("{shown}: the free space is unknown: {error}"), "see `df`"),
        Ok(stat) => space_result(what, &shown.to_string(), stat.blocks_available() * stat.fragment_size(), needs),
    }
}

fn space_result(what: &'static str, shown: &str, free: u64, needs: &FolderNeeds) -> CheckResult {
    let text = format!("{shown}: {} free", gib_text(free));
    if free < needs.least {
        return CheckResult::fail(what, text, format!("free at least {}", gib_text(needs.least)));
    }
    CheckResult::expect(free >= needs.enough, what, text, needs.scarce)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cli::doctor::CheckState;

    #[test]
    fn a_full_disk_fails_and_a_tight_one_warns() {
        let states = [GIB / 2, 2 * GIB, 50 * GIB].map(|free| space_result("database", "/", free, &STUDY_DATA).state);
        assert_eq!(states, [CheckState::Fail, CheckState::Warn, CheckState::Ok]);
    }

    #[test]
    fn the_hints_on_shared_memory_and_models_do_not_name_the_database() {
        for needs in [SHARED_MEMORY, MODEL_CACHE] {
            let scarce = space_result("shared", "/dev/shm", 0, &needs);
            assert_eq!(scarce.state, CheckState::Warn);
            let hints = [scarce.hint.as_deref(), needs.unwritable];
            assert!(hints.iter().flatten().all(|hint| !hint.contains("--db") && !hint.contains("night")), "{hints:?}");
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
        // The administrator may write to any folder.
        if access(directory.path(), AccessFlags::W_OK).is_err() {
            let finding = space("shared", directory.path(), &SHARED_MEMORY);
            assert_eq!((finding.state, finding.hint.as_deref()), (CheckState::Fail, SHARED_MEMORY.unwritable));
        }
    }

    #[test]
    fn a_missing_folder_is_named() {
        let needs = FolderNeeds { least: 0, enough: 0, ..STUDY_DATA };
        let finding = space("database", Path::new("/nonexistent"), &needs);
        assert_eq!((finding.state, finding.text.as_str()), (CheckState::Fail, "/nonexistent does not exist"));
        assert_eq!(space("database", &std::env::temp_dir(), &needs).state, CheckState::Ok);
    }
}
