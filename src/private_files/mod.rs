//! Files with access for their owner only: commands, logs and results of a study may be confidential.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use procfs::process::Process;

/// The permission bits of the owner. All other bits are removed.
const OWNER_PERMISSIONS: u32 = 0o700;

/// Returns the user of this process.
pub(crate) fn user() -> Option<u32> {
    Process::myself().and_then(|process| process.uid()).ok()
}

/// Returns options that create a file for its owner only, independent of the umask.
pub(crate) fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Writes a file that only its owner can access from the first byte on.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = private_options().write(true).create(true).truncate(true).open(path)?;
    restrict(path)?;
    std::io::Write::write_all(&mut file, bytes)
}

/// Creates a directory for its owner only, together with missing parents.
///
/// # Errors
/// If the directory cannot be created.
pub(crate) fn create_private_directory(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(OWNER_PERMISSIONS).create(path)?;
    // The directory may be a user's link to another disk.
    restrict(&path.canonicalize()?)
}

/// Removes the permissions of other users from a file or directory of this user. It leaves links, files of other users,
/// absent files and file systems without permissions unchanged.
///
/// # Errors
/// If the permissions cannot be changed for another reason.
pub(crate) fn restrict(path: &Path) -> std::io::Result<()> {
    let Ok(data) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let mode = data.mode() & 0o7777;
    if data.is_symlink() || Some(data.uid()) != user() || mode & !OWNER_PERMISSIONS == 0 {
        return Ok(());
    }
    match std::fs::set_permissions(path, Permissions::from_mode(mode & OWNER_PERMISSIONS)) {
        Err(error)
            if matches!(error.raw_os_error(), Some(nix::libc::EPERM | nix::libc::EOPNOTSUPP | nix::libc::EROFS)) =>
        {
            Ok(())
        }
        changed => changed,
    }
}

/// Applies `restrict` to each file in a directory.
///
/// # Errors
/// If the directory cannot be read, or permissions cannot be changed.
pub(crate) fn restrict_files(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        restrict(&entry?.path())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn files_and_directories_are_their_owners_alone() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("a.logs/study");
        create_private_directory(&inner).unwrap();
        assert_eq!([mode(&inner), mode(inner.parent().unwrap())], [0o700, 0o700]);
        let file = inner.join("new");
        write_private(&file, b"x").unwrap();
        assert_eq!(mode(&file), 0o600);
        for path in [&file, &inner] {
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        restrict_files(&inner).unwrap();
        create_private_directory(&inner).unwrap();
        assert_eq!([mode(&file), mode(&inner)], [0o700, 0o700]);
        let link = inner.join("link");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        restrict(&link).unwrap();
        assert_eq!(mode(Path::new("/etc")) & 0o055, 0o055, "a link is not followed");
        restrict(&inner.join("absent")).unwrap();
    }
}
