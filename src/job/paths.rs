//! Resolution of the relative paths in a study file.

use std::path::{Path, PathBuf};

/// Search path of a study file: its directory first, then the working directory.
#[derive(Debug)]
pub(super) struct StudyPaths {
    study_directory: PathBuf,
}

impl StudyPaths {
    pub(super) fn of(study_file: &Path) -> Self {
        Self { study_directory: study_file.parent().unwrap_or(Path::new("")).to_owned() }
    }

    /// Returns the absolute path of an existing file or directory. It is absolute so that exported commands work from
    /// any directory.
    pub(super) fn find(&self, relative: &str) -> Option<PathBuf> {
        let path =
            [self.study_directory.join(relative), PathBuf::from(relative)].into_iter().find(|path| path.exists())?;
        let path = std::path::absolute(path).ok()?;
        // The last component stays as it is: the Python of a virtual environment is a link that must not be followed.
        match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
            (Some(parent), Some(name)) => Some(parent.join(name)),
            _ => Some(path),
        }
    }
}
