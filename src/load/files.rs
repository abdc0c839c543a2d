//! Open files of the loads that are driven at the same time: what is enough for one may be too few for several.

use std::sync::{Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::LoadError;

/// Files that the program has open anyway.
const OTHERS: u64 = 32;

/// Files that go with each load beside its connections: its own, and those of the launch that it is driven on.
const OF_EACH: u64 = 32;

/// Files that running loads may have open.
#[derive(Debug, Default)]
pub(super) struct Files(Mutex<u64>);

/// Of this process, whose limit it is.
pub(super) static FILES: Files = Files(Mutex::new(0));

/// Given back when dropped.
#[derive(Debug)]
pub(super) struct Reserved<'f> {
    files: &'f Files,
    count: u64,
}

impl Files {
    /// Raises the limit of open files where this load and those that are under way may need more of them. `most`: its
    /// connections, where their number is known.
    ///
    /// # Errors
    /// When the limit cannot be raised as far.
    pub(super) fn reserve(&self, most: Option<u64>) -> Result<Reserved<'_>, LoadError> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|error| LoadError::System(error.into()))?;
        let mut reserved = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = most.unwrap_or(0).saturating_add(OF_EACH);
        let needed = reserved.saturating_add(count).saturating_add(OTHERS);
        if most.is_some() && needed > hard {
            return Err(LoadError::Files { needed, limit: hard });
        }
        // How many an open loop needs is the server's to say.
        if soft < hard && (most.is_none() || needed > soft) {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(|error| LoadError::System(error.into()))?;
        }
        *reserved = reserved.saturating_add(count);
        Ok(Reserved { files: self, count })
    }
}

impl Drop for Reserved<'_> {
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
        let (files, most) = (Files::default(), hard / 2 - OTHERS - OF_EACH);
        let one = files.reserve(Some(most)).unwrap();
        let two = files.reserve(Some(most)).unwrap();
        let refused = files.reserve(Some(most)).unwrap_err();
        let needed = 3 * (most + OF_EACH) + OTHERS;
        assert!(matches!(refused, LoadError::Files { needed: n, limit } if (n, limit) == (needed, hard)), "{refused}");
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0, hard, "two are above half of it");
        drop(one);
        let three = files.reserve(Some(most)).unwrap();
        drop((two, three));
        assert_eq!(*files.0.lock().unwrap(), 0);
    }

    #[test]
    fn one_load_that_is_too_large_is_refused_and_an_open_loop_takes_what_there_is() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let files = Files::default();
        assert!(matches!(files.reserve(Some(hard)), Err(LoadError::Files { limit, .. }) if limit == hard));
        assert!(files.reserve(None).is_ok());
    }
}
