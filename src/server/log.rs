//! The file that receives what an engine writes: bounded on disk, with its beginning and its end kept.
//!
//! Causes stand at the beginning, deaths at the end. A file needs nobody to drain it, so it can never block the engine,
//! and it outlives the tuner. It is opened for appending; whoever looks now and then releases the middle of one that has
//! grown too large (`fallocate(2)`, `FALLOC_FL_PUNCH_HOLE`). The hole keeps its length and takes no space.
//!
//! Between two looks a flood can write what the disk takes in that time; the looks become frequent while there is one.
//! A file system without holes (`EOPNOTSUPP`, on NFS before 4.2 for instance) has the file cut behind its beginning and
//! its end written anew. What the engine writes during those milliseconds is lost, and no count knows of it.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::private_files::{private_options, restrict, write_private};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

/// Bytes that are kept of the beginning.
const HEAD: u64 = 4 << 20;

/// Bytes that are kept of the end.
pub(super) const TAIL: u64 = 4 << 20;

/// Bytes up to which a log is kept whole; nothing is left out of a shorter one.
pub(super) const MOST: u64 = HEAD + TAIL + (8 << 20);

/// File systems release whole blocks. A multiple of all common sizes.
const BLOCK: u64 = 64 << 10;

/// A log that is being written to.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    file: File,
    /// Bytes that were cut out where holes are not to be had.
    cut: Mutex<u64>,
}

impl Log {
    /// An empty log, whatever was there.
    pub(super) fn create(path: &Path) -> std::io::Result<Self> {
        let file = private_options().read(true).append(true).create(true).open(path)?;
        restrict(path)?;
        file.set_len(0)?;
        Ok(Self { path: path.to_owned(), file, cut: Mutex::default() })
    }

    /// For the engine.
    pub(super) fn writer(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// Device and inode, by which the file is recognised among what a process holds open.
    pub(super) fn id(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|file| (file.dev(), file.ino()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Releases the middle where the file takes too much of the disk; whether it did.
    pub(super) fn bound(&self) -> std::io::Result<bool> {
        let file = self.file.metadata()?;
        // `st_blocks` counts in 512 bytes, whatever the file system's block (`stat(2)`).
        if file.len() <= MOST || file.blocks() * 512 <= MOST {
            return Ok(false);
        }
        let end = (file.len() - TAIL) / BLOCK * BLOCK;
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let offset = |bytes: u64| i64::try_from(bytes).map_err(std::io::Error::other);
        match fallocate(&self.file, mode, offset(HEAD)?, offset(end - HEAD)?) {
            Ok(()) => Ok(true),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.cut(file.len()).map(|()| true),
            Err(error) => Err(error.into()),
        }
    }

    /// Shortens the file to its beginning and its end. It is open for appending: the engine goes on behind that.
    fn cut(&self, length: u64) -> std::io::Result<()> {
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let end = tail(&self.file, length)?;
        let left_out = *cut + length - HEAD - end.len() as u64;
        self.file.set_len(HEAD)?;
        let mut text = gap(left_out);
        text.extend(end);
        (&self.file).write_all(&text)?;
        // The line that tells of an earlier cut counts with what it told of, which nobody will miss.
        *cut = left_out;
        Ok(())
    }

    /// Adds a line of the tuner's own.
    pub(super) fn note(&self, text: &str) {
        // A log that cannot be written to has lost the engine's words as well.
        let _ = (&self.file).write_all(format!("[setpoint: {text}]\n").as_bytes());
    }

    /// Rewrites a log with a hole as its beginning, a line that says how much was left out, and its end, so that a person
    /// can read it. Only once nobody writes to it any more.
    pub(super) fn compact(&self) -> std::io::Result<()> {
        let length = self.file.metadata()?.len();
        if length <= MOST {
            return Ok(());
        }
        let mut name = self.path.clone().into_os_string();
        name.push(".compact");
        let written = write_private(Path::new(&name), &excerpt(&self.file, length)?);
        written.and_then(|()| std::fs::rename(&name, &self.path)).inspect_err(|_| {
            // The disk may be full; the log with the hole is still whole.
            let _ = std::fs::remove_file(&name);
        })
    }
}

/// The text of a log, or its two ends with a line between them where it is longer than 16 MiB; empty where it cannot be
/// read.
#[must_use]
pub fn read_log(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        excerpt(&file, length)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Never reads what [`Log::bound`] may have released: that is only ever between the two ends.
fn excerpt(file: &File, length: u64) -> std::io::Result<Vec<u8>> {
    if length <= MOST {
        return read_at(file, 0, length);
    }
    let mut bytes = read_at(file, 0, HEAD)?;
    bytes.truncate(memchr::memrchr(b'\n', &bytes).map_or(bytes.len(), |end| end + 1));
    let end = tail(file, length)?;
    bytes.extend(gap(length - bytes.len() as u64 - end.len() as u64));
    bytes.extend(end);
    Ok(bytes)
}

/// The last whole lines of a file of this length.
fn tail(file: &File, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = read_at(file, length.saturating_sub(TAIL), TAIL.min(length))?;
    // One line without an end is better than nothing.
    bytes.drain(..memchr::memchr(b'\n', &bytes).map_or(0, |end| end + 1));
    Ok(bytes)
}

fn gap(left_out: u64) -> Vec<u8> {
    format!("\n[setpoint: {left_out} bytes are left out here]\n").into_bytes()
}

/// Up to `length` bytes. A flood may have moved the hole over them in the meantime: nothing is read of it.
pub(super) fn read_at(file: &File, offset: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(std::io::Error::other)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    if memchr::memchr(0, &bytes).is_some() {
        bytes.retain(|byte| *byte != 0);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOD: u64 = 64 << 20;

    fn flooded(directory: &Path) -> Log {
        let log = Log::create(&directory.join("log")).unwrap();
        let mut engine = log.writer().unwrap();
        engine.write_all(b"the first line\n").unwrap();
        let chunk = "a line of the flood\n".repeat(1 << 14);
        while engine.metadata().unwrap().len() < FLOOD {
            engine.write_all(chunk.as_bytes()).unwrap();
            log.bound().unwrap();
        }
        engine.write_all(b"the last line\n").unwrap();
        log
    }

    fn allocated(path: &Path) -> u64 {
        std::fs::metadata(path).unwrap().blocks() * 512
    }

    fn has_its_ends(text: &str) {
        assert!(text.starts_with("the first line\na line of the flood\n"));
        assert!(text.ends_with("a line of the flood\nthe last line\n"));
        let told: Vec<_> = text.lines().filter(|line| line.contains("setpoint")).collect();
        let [told] = told[..] else { panic!("{told:?}") };
        let left_out: u64 = told.split(' ').find_map(|word| word.parse().ok()).unwrap();
        let around = text.len() as u64 - told.len() as u64 - 2;
        assert!(left_out + around >= FLOOD && around < MOST, "{told}, {around} bytes around it");
        assert!(text.lines().all(|line| line.is_empty() || line == told || line.contains("the")), "a torn line");
    }

    #[test]
    fn a_flood_stays_bounded_on_disk_and_keeps_its_ends() {
        let directory = tempfile::tempdir().unwrap();
        let log = flooded(directory.path());
        // A file system may have allocated ahead of what is written.
        assert!(allocated(log.path()) <= MOST + (2 << 20), "{} bytes", allocated(log.path()));
        has_its_ends(&read_log(log.path()));
        log.compact().unwrap();
        assert!(log.path().metadata().unwrap().len() < MOST);
        has_its_ends(&std::fs::read_to_string(log.path()).unwrap());
        has_its_ends(&read_log(log.path()));
    }

    #[test]
    fn where_holes_are_not_to_be_had_the_ends_are_kept_all_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::create(&directory.path().join("log")).unwrap();
        let mut engine = log.writer().unwrap();
        engine.write_all(b"the first line\n").unwrap();
        let (chunk, mut written) = ("a line of the flood\n".repeat(1 << 14), 0);
        while written < FLOOD {
            engine.write_all(chunk.as_bytes()).unwrap();
            written += chunk.len() as u64;
            let length = engine.metadata().unwrap().len();
            if length > MOST {
                log.cut(length).unwrap();
            }
        }
        engine.write_all(b"the last line\n").unwrap();
        assert!(allocated(log.path()) <= MOST + (2 << 20));
        let text = read_log(log.path());
        // The beginning ends where it was cut, so only its first line is sure to be whole.
        assert!(text.starts_with("the first line\na line of the flood\n"));
        assert!(text.ends_with("a line of the flood\nthe last line\n"));
        assert!(text.contains("bytes are left out here]\n"));
    }

    #[test]
    fn a_short_log_is_kept_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::create(&directory.path().join("log")).unwrap();
        log.writer().unwrap().write_all("naïve\n".as_bytes()).unwrap();
        log.note("a word");
        assert!(!log.bound().unwrap());
        log.compact().unwrap();
        assert_eq!(read_log(log.path()), "naïve\n[setpoint: a word]\n");
        assert_eq!(read_log(&directory.path().join("none")), "");
    }
}
