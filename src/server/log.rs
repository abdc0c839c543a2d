//! The file that receives the output of an engine, bounded on disk: only its beginning and its end are kept.
//!
//! Causes are at the beginning, deaths at the end. Unlike a pipe, a file cannot block the engine if nobody reads it,
//! and it outlives the tuner. The file is opened for appending. A periodic check releases the middle of a file that has
//! grown too large (`fallocate(2)`, `FALLOC_FL_PUNCH_HOLE`). The hole keeps its length and takes no space.
//!
//! Between two checks a flood can write as much as the disk accepts in that time; the checks become more frequent
//! during a flood. If the file system has no holes (`EOPNOTSUPP`, for instance on NFS before 4.2), the file is
//! truncated behind its beginning and its end is written again. Output that the engine writes during those milliseconds
//! is lost and not counted.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::private_files::{private_options, restrict, write_private};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

/// The number of bytes kept at the beginning.
const HEAD_BYTES: u64 = 4 << 20;

/// The number of bytes kept at the end.
pub(super) const TAIL_BYTES: u64 = 4 << 20;

/// The largest size in bytes of a log that is kept whole.
pub(super) const MAX_WHOLE_BYTES: u64 = HEAD_BYTES + TAIL_BYTES + (8 << 20);

/// The granularity of a release, a multiple of all common block sizes: file systems release whole blocks only.
const BLOCK: u64 = 64 << 10;

/// A log in use.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// The number of bytes that were cut out on a file system without holes.
    cut: Mutex<u64>,
}

impl LogFile {
    /// Creates an empty log, replacing an existing one.
    pub(super) fn create(path: &Path) -> std::io::Result<Self> {
        let file = private_options().read(true).append(true).create(true).open(path)?;
        restrict(path)?;
        file.set_len(0)?;
        Ok(Self { path: path.to_owned(), file, cut: Mutex::default() })
    }

    /// Returns a handle for the engine to write to.
    pub(super) fn writer(&self) -> std::io::Result<File> {
        self.file.try_clone()
    }

    /// Returns device and inode, which identify the file among the open files of a process.
    pub(super) fn id(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|file| (file.dev(), file.ino()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Releases the middle if the file takes too much space on disk. Returns whether it did.
    pub(super) fn limit_size(&self) -> std::io::Result<bool> {
        let file = self.file.metadata()?;
        // `st_blocks` is in units of 512 bytes, independent of the file system's block size (`stat(2)`).
        if file.len() <= MAX_WHOLE_BYTES || file.blocks() * 512 <= MAX_WHOLE_BYTES {
            return Ok(false);
        }
        let end = (file.len() - TAIL_BYTES) / BLOCK * BLOCK;
        let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let offset = |bytes: u64| i64::try_from(bytes).map_err(std::io::Error::other);
        match fallocate(&self.file, mode, offset(HEAD_BYTES)?, offset(end - HEAD_BYTES)?) {
            Ok(()) => Ok(true),
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => self.cut(file.len()).map(|()| true),
            Err(error) => Err(error.into()),
        }
    }

    /// Shortens the file to its beginning and its end. The engine continues behind that, because it appends.
    fn cut(&self, length: u64) -> std::io::Result<()> {
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let end = tail(&self.file, length)?;
        let left_out = *cut + length - HEAD_BYTES - end.len() as u64;
        self.file.set_len(HEAD_BYTES)?;
        let mut text = gap(left_out);
        text.extend(end);
        (&self.file).write_all(&text)?;
        // The line that reports an earlier cut was cut out as well, and counts as output here. The error is negligible.
        *cut = left_out;
        Ok(())
    }

    /// Adds a line from the tuner.
    pub(super) fn note(&self, text: &str) {
        // If the log cannot be written to, the engine's output is lost as well.
        let _ = (&self.file).write_all(format!("[setpoint: {text}]\n").as_bytes());
    }

    /// Rewrites a log with a hole for human readers: its beginning, a line with the number of omitted bytes, and its
    /// end. To be called only after the last writer has ended.
    pub(super) fn compact(&self) -> std::io::Result<()> {
        let length = self.file.metadata()?.len();
        if length <= MAX_WHOLE_BYTES {
            return Ok(());
        }
        let mut name = self.path.clone().into_os_string();
        name.push(".compact");
        let written = write_private(Path::new(&name), &excerpt(&self.file, length)?);
        written.and_then(|()| std::fs::rename(&name, &self.path)).inspect_err(|_| {
            // The disk may be full. The log with the hole is still complete.
            let _ = std::fs::remove_file(&name);
        })
    }
}

/// Returns the text of a log. If it is longer than 16 MiB, returns its two ends with a line between them. If it cannot
/// be read, the text is empty.
#[must_use]
pub fn read_log(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        excerpt(&file, length)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// Reads the two ends only, since [`LogFile::limit_size`] may have released the part between them.
fn excerpt(file: &File, length: u64) -> std::io::Result<Vec<u8>> {
    if length <= MAX_WHOLE_BYTES {
        return read_at(file, 0, length);
    }
    let mut bytes = read_at(file, 0, HEAD_BYTES)?;
    bytes.truncate(memchr::memrchr(b'\n', &bytes).map_or(bytes.len(), |end| end + 1));
    let end = tail(file, length)?;
    bytes.extend(gap(length - bytes.len() as u64 - end.len() as u64));
    bytes.extend(end);
    Ok(bytes)
}

/// Returns the last whole lines of a file of this length.
fn tail(file: &File, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = read_at(file, length.saturating_sub(TAIL_BYTES), TAIL_BYTES.min(length))?;
    // If there is no line end at all, the partial line is kept.
    bytes.drain(..memchr::memchr(b'\n', &bytes).map_or(0, |end| end + 1));
    Ok(bytes)
}

fn gap(left_out: u64) -> Vec<u8> {
    format!("\n[setpoint: {left_out} bytes are left out here]\n").into_bytes()
}

/// Reads up to `length` bytes. If a flood has moved the hole over them meanwhile, returns fewer: zeros are dropped.
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

    fn flooded(directory: &Path) -> LogFile {
        let log = LogFile::create(&directory.join("log")).unwrap();
        let mut engine = log.writer().unwrap();
        engine.write_all(b"the first line\n").unwrap();
        let chunk = "a line of the flood\n".repeat(1 << 14);
        while engine.metadata().unwrap().len() < FLOOD {
            engine.write_all(chunk.as_bytes()).unwrap();
            log.limit_size().unwrap();
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
        assert!(left_out + around >= FLOOD && around < MAX_WHOLE_BYTES, "{told}, {around} bytes around it");
        assert!(text.lines().all(|line| line.is_empty() || line == told || line.contains("the")), "a torn line");
    }

    #[test]
    fn a_flood_stays_bounded_on_disk_and_keeps_its_ends() {
        let directory = tempfile::tempdir().unwrap();
        let log = flooded(directory.path());
        // A file system may allocate space in advance.
        assert!(allocated(log.path()) <= MAX_WHOLE_BYTES + (2 << 20), "{} bytes", allocated(log.path()));
        has_its_ends(&read_log(log.path()));
        log.compact().unwrap();
        assert!(log.path().metadata().unwrap().len() < MAX_WHOLE_BYTES);
        has_its_ends(&std::fs::read_to_string(log.path()).unwrap());
        has_its_ends(&read_log(log.path()));
    }

    #[test]
    fn both_ends_of_a_log_are_kept_without_support_for_holes() {
        let directory = tempfile::tempdir().unwrap();
        let log = LogFile::create(&directory.path().join("log")).unwrap();
        let mut engine = log.writer().unwrap();
        engine.write_all(b"the first line\n").unwrap();
        let (chunk, mut written) = ("a line of the flood\n".repeat(1 << 14), 0);
        while written < FLOOD {
            engine.write_all(chunk.as_bytes()).unwrap();
            written += chunk.len() as u64;
            let length = engine.metadata().unwrap().len();
            if length > MAX_WHOLE_BYTES {
                log.cut(length).unwrap();
            }
        }
        engine.write_all(b"the last line\n").unwrap();
        assert!(allocated(log.path()) <= MAX_WHOLE_BYTES + (2 << 20));
        let text = read_log(log.path());
        // The beginning is cut at any byte, so only its first line is certain to be whole.
        assert!(text.starts_with("the first line\na line of the flood\n"));
        assert!(text.ends_with("a line of the flood\nthe last line\n"));
        assert!(text.contains("bytes are left out here]\n"));
    }

    #[test]
    fn a_short_log_is_kept_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let log = LogFile::create(&directory.path().join("log")).unwrap();
        log.writer().unwrap().write_all("naïve\n".as_bytes()).unwrap();
        log.note("a word");
        assert!(!log.limit_size().unwrap());
        log.compact().unwrap();
        assert_eq!(read_log(log.path()), "naïve\n[setpoint: a word]\n");
        assert_eq!(read_log(&directory.path().join("none")), "");
    }
}
