//! A reader that follows a log while it is written.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::log::{TAIL_BYTES, read_at};

/// The largest number of bytes that one call returns.
const MAX_READ_BYTES: u64 = 1 << 20;

// The returned bytes must lie behind the hole of a bounded log.
const _: () = assert!(MAX_READ_BYTES < TAIL_BYTES);

/// The position of a reader in a growing log.
#[derive(Debug)]
pub struct LogTail {
    path: PathBuf,
    /// Kept open, because the log is rewritten under its name after the launch has ended.
    file: Option<File>,
    position: u64,
}

impl LogTail {
    /// Starts at the beginning of the file, which may not exist yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, position: 0 }
    }

    /// Returns the whole lines since the last call. If they exceed 1 MiB, only the last ones are returned. The text is
    /// empty if there are none or if the file cannot be read. A carriage return also ends a line, because progress bars
    /// use it.
    pub fn read_new(&mut self) -> String {
        let bytes = self.read().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the present length of the file in bytes, including a hole. Its growth is a sign of life, independent of
    /// the content. It shrinks if the log is cut on a file system without holes.
    #[must_use]
    pub fn length(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |file| file.len())
    }

    fn read(&mut self) -> std::io::Result<Vec<u8>> {
        if self.file.is_none() {
            self.file = Some(File::open(&self.path)?);
        }
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let length = file.metadata()?.len();
        // Reading continues at the present end of a log that was cut.
        let from = if length < self.position { length } else { self.position };
        let skipped = length - from > MAX_READ_BYTES;
        let from = if skipped { length - MAX_READ_BYTES } else { from };
        let mut bytes = read_at(file, from, length - from)?;
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        match bytes.iter().rposition(is_end) {
            Some(last) => {
                self.position = length - (bytes.len() - last - 1) as u64;
                bytes.truncate(last + 1);
            }
            // A line of this length is returned in parts, because its end may never come.
            None if skipped || bytes.len() as u64 == MAX_READ_BYTES => self.position = length,
            None => {
                self.position = from;
                bytes.clear();
            }
        }
        if skipped {
            bytes.drain(..bytes.iter().position(is_end).map_or(0, |end| end + 1));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    #[test]
    fn a_follower_gives_whole_lines_once_and_skips_ahead_in_a_flood() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut tail = LogTail::new(&path);
        assert_eq!((tail.read_new().as_str(), tail.length()), ("", 0));
        let mut log = File::create(&path).unwrap();
        log.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(tail.read_new(), "one\ntwo\n");
        assert_eq!((tail.read_new().as_str(), tail.length()), ("", 11));
        log.write_all(b"ee\nloading: 10%\rloading: 20%").unwrap();
        assert_eq!(tail.read_new(), "three\nloading: 10%\r");
        log.write_all("\nnoise\n".repeat(1 << 18).as_bytes()).unwrap();
        log.write_all(b"last\n").unwrap();
        let flood = tail.read_new();
        assert!(flood.len() as u64 <= MAX_READ_BYTES && flood.ends_with("noise\nlast\n"));
        assert_eq!(tail.read_new(), "");
        log.set_len(3).unwrap();
        assert_eq!(tail.read_new(), "");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_given_twice(parts in prop::collection::vec("[a-c\n]{0,12}", 0..20)) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("log");
            let mut log = File::create(&path).unwrap();
            let (mut tail, mut given) = (LogTail::new(&path), String::new());
            for part in &parts {
                log.write_all(part.as_bytes()).unwrap();
                given.push_str(&tail.read_new());
            }
            let whole = parts.concat();
            prop_assert_eq!(given.as_str(), &whole[..whole.rfind('\n').map_or(0, |end| end + 1)]);
        }
    }
}
