//! Where the relative paths of a study file lead.

use std::path::{Path, PathBuf};

/// A relative path is looked for beside the study file first, then in the working directory.
#[derive(Debug)]
pub(super) struct Paths {
    beside: PathBuf,
}

impl Paths {
    pub(super) fn of(study_file: &Path) -> Self {
        Self { beside: study_file.parent().unwrap_or(Path::new("")).to_owned() }
    }

    /// The path at which `relative` exists, or nothing.
    pub(super) fn find(&self, relative: &str) -> Option<PathBuf> {
        [self.beside.join(relative), PathBuf::from(relative)].into_iter().find(|path| path.exists())
    }
}
