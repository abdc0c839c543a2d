//! The lock of a study: one tuner at a time.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::private_files::{private_options, restrict};

/// The reason why a study cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another tuner works on this study: process {holder} holds {}", path.display())]
    Held { path: PathBuf, holder: String },
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// The time for which a lock that another process holds may be that of an observer.
const OBSERVED_FOR: Duration = Duration::from_millis(200);

/// A lock that is held until it is dropped. The kernel releases it when the process dies, also by SIGKILL.
#[derive(Debug)]
pub struct StudyLock {
    _file: Flock<File>,
}

impl StudyLock {
    /// Locks the file at `path`, and writes the id of this process into it. Observers that ask for the [`holder`] lock the
    /// file for an instant, so a held lock is tried again for a moment.
    ///
    /// # Errors
    /// If another process holds the lock, or the file cannot be written.
    pub fn acquire(path: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: path.to_owned(), source };
        let file = private_options().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        restrict(path).map_err(io)?;
        let begin = Instant::now();
        let mut locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        while begin.elapsed() < OBSERVED_FOR {
            let Err((file, Errno::EWOULDBLOCK)) = locked else { break };
            std::thread::sleep(OBSERVED_FOR / 20);
            locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        }
        match locked {
            Ok(mut file) => {
                file.set_len(0).map_err(io)?;
                writeln!(file, "{}", std::process::id()).map_err(io)?;
                Ok(Self { _file: file })
            }
            Err((file, Errno::EWOULDBLOCK)) => {
                Err(LockError::Held { path: path.to_owned(), holder: read_holder(file) })
            }
            Err((_, error)) => Err(io(error.into())),
        }
    }
}

/// Returns the id of the process that holds a lock, as written in the file; `None` if it is free.
#[must_use]
pub fn holder(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    // A shared lock, so that two concurrent callers do not report each other.
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((file, Errno::EWOULDBLOCK)) => Some(read_holder(file)),
        Ok(_) | Err(_) => None,
    }
}

fn read_holder(mut file: File) -> String {
    let mut holder = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut holder));
    holder.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_with_the_process_that_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let first = StudyLock::acquire(&path).unwrap();
        let error = StudyLock::acquire(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("process {} holds", std::process::id())), "{error}");
        assert_eq!(holder(&path), Some(std::process::id().to_string()));
        drop(first);
        assert_eq!((holder(&path), holder(&directory.path().join("none"))), (None, None));
        StudyLock::acquire(&path).unwrap();
    }
}
