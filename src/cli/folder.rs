//! Folders that appear whole or not at all.

use std::path::Path;

use super::failure::{CommandFailure, INVALID};
use crate::export::ExportedFile;

/// Writes a folder beside the target and renames it, so that no half of it is ever visible under its name.
///
/// # Errors
/// If the target is a file or a folder with content, or cannot be written. Then nothing is left behind.
pub(super) fn write_folder(path: &Path, files: &[ExportedFile]) -> Result<(), CommandFailure> {
    let is_taken = match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.symlink_metadata().is_ok(),
    };
    if is_taken {
        let message = format!("{} exists and is not an empty folder", path.display());
        return Err(CommandFailure::new(INVALID, message).with_hint("name a new folder with -o"));
    }
    let failed = |error: std::io::Error| {
        CommandFailure::unexpected(format!("cannot write {}: {error}", path.display()))
            .with_hint("name another folder with -o")
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    std::fs::create_dir(&part).map_err(failed)?;
    let written = files
        .iter()
        .try_for_each(|file| std::fs::write(part.join(&file.name), &file.content))
        .and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| {
        // The folder is this command's own. If it cannot be removed either, the first error is the one to report.
        let _ = std::fs::remove_dir_all(&part);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_written_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| ExportedFile { name: name.to_owned(), content: "x".to_owned() };
        let target = directory.path().join("run");
        write_folder(&target, &[file("a.txt"), file("b.txt")]).unwrap();
        assert_eq!(std::fs::read_to_string(target.join("b.txt")).unwrap(), "x");
        let again = format!("{:?}", write_folder(&target, &[file("c.txt")]).unwrap_err());
        assert!(again.contains("exists and is not an empty folder"), "{again}");
        let broken = directory.path().join("broken");
        write_folder(&broken, &[file("a.txt"), file("absent/b.txt")]).unwrap_err();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "only the first folder is there");
        let empty = directory.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        write_folder(&empty, &[file("a.txt")]).unwrap();
        assert!(empty.join("a.txt").is_file());
    }
}
