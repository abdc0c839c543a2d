//! The new lines of a log that grows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes that one call reads at most.
const MOST: u64 = 1 << 20;

/// Follows a log from its beginning.
#[derive(Debug)]
pub struct LogTail {
    path: PathBuf,
    read: u64,
}

impl LogTail {
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), read: 0 }
    }

    /// The whole lines that have come since the last call, at most 1 MiB of them; empty where there are none or the log
    /// cannot be read. A longer line is passed over.
    pub fn read_new(&mut self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.read))?;
            let mut bytes = Vec::new();
            file.take(MOST).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let mut bytes = read().unwrap_or_default();
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole == 0 && bytes.len() as u64 == MOST {
            self.read += MOST;
            return String::new();
        }
        self.read += whole as u64;
        bytes.truncate(whole);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_line_comes_once_and_only_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut tail = LogTail::new(&path);
        assert_eq!(tail.read_new(), "", "there is no log yet");
        let mut log = File::create(&path).unwrap();
        log.write_all(b"one\ntw").unwrap();
        assert_eq!(tail.read_new(), "one\n");
        assert_eq!(tail.read_new(), "");
        log.write_all(b"o\nthree\n").unwrap();
        assert_eq!(tail.read_new(), "two\nthree\n");
    }

    #[test]
    fn a_flood_comes_in_pieces_and_an_endless_line_does_not_stop_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let lines = "0123456789\n".repeat(200_000);
        let endless = "x".repeat(2 << 20);
        std::fs::write(&path, format!("{lines}{endless}\nlast\n")).unwrap();
        let mut tail = LogTail::new(&path);
        let (mut all, mut calls) = (String::new(), 0);
        while !all.ends_with("last\n") {
            let new = tail.read_new();
            assert!(new.len() as u64 <= MOST);
            all.push_str(&new);
            calls += 1;
            assert!(calls < 10, "{} bytes came", all.len());
        }
        assert!(all.starts_with(&lines));
    }
}
