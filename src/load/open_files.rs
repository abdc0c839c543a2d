//! Limit of open files for concurrent loads. A limit that suffices for one load may be too low for several.

use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::LoadError;

/// Files that the process has open apart from its loads.
const FILES_OUTSIDE_LOADS: u64 = 32;

/// Files that each load needs beside its connections: its own, and those of the launch under load.
const FILES_PER_LOAD: u64 = 32;

/// Number of files reserved by running loads.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<u64>);

/// Reservations of this process. The limit is per process.
pub(super) static OPEN_FILES: OpenFiles = OpenFiles(Mutex::new(0));

/// A reservation, released when dropped.
#[derive(Debug)]
pub(super) struct ReservedFiles<'f> {
    files: &'f OpenFiles,
    count: u64,
}

impl OpenFiles {
    /// Raises the limit of open files if this load and the running ones may need more. `most` is the maximum number of
    /// this load's connections, if known.
    ///
    /// # Errors
    /// If the limit cannot be raised far enough.
    pub(super) fn reserve(&self, most: Option<u64>) -> Result<ReservedFiles<'_>, LoadError> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| LoadError::System(error.into()))?;
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = most.unwrap_or(0).saturating_add(FILES_PER_LOAD);
        let needed = reserved.saturating_add(count).saturating_add(FILES_OUTSIDE_LOADS);
        if most.is_some() && needed > hard {
            return Err(LoadError::Files { needed, limit: hard });
        }
        // The connections of an open loop depend on the server's speed, so the limit is raised to its maximum.
        if soft < hard && (most.is_none() || needed > soft) {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(|error| LoadError::System(error.into()))?;
        }
        *reserved = reserved.saturating_add(count);
        Ok(ReservedFiles { files: self, count })
    }
}

impl Drop for ReservedFiles<'_> {
    fn drop(&mut self) {
        let mut reserved = self.files.0.lock().unwrap_or_else(PoisonError::into_inner);
        *reserved = reserved.saturating_sub(self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_at_the_same_time_need_the_files_of_all_of_them() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let (files, most) = (OpenFiles::default(), hard / 2 - FILES_OUTSIDE_LOADS - FILES_PER_LOAD);
        let one = files.reserve(Some(most)).unwrap();
        let two = files.reserve(Some(most)).unwrap();
        let refused = files.reserve(Some(most)).unwrap_err();
        let needed = 3 * (most + FILES_PER_LOAD) + FILES_OUTSIDE_LOADS;
        assert!(matches!(refused, LoadError::Files { needed: n, limit } if (n, limit) == (needed, hard)), "{refused}");
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, hard, "two are above half of it");
        drop(one);
        let three = files.reserve(Some(most)).unwrap();
        drop((two, three));
        assert_eq!(*files.0.lock().unwrap(), 0);
    }

    #[test]
    fn a_load_that_is_too_large_is_refused_and_an_open_loop_uses_the_available_files() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let files = OpenFiles::default();
        assert!(matches!(files.reserve(Some(hard)), Err(LoadError::Files { limit, .. }) if limit == hard));
        assert!(files.reserve(None).is_ok());
    }
}
