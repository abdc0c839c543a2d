//! Result files of `bench`. They are created before the load starts, so that a wrong path fails before the run.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::cli::CommandFailure;
use crate::cli::failure::USAGE;

/// A result file. It is written under a temporary name and renamed to its final path by [`commit`](Self::commit). Without
/// that call, the temporary file is removed on drop. A device or a pipe is written directly.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    /// The temporary file, in the directory of `path`. `None` for a device or a pipe.
    part: Option<PathBuf>,
    file: BufWriter<File>,
}

impl OutputFile {
    /// Creates the temporary file for `path`. `flag` is the command-line option in error messages.
    ///
    /// # Errors
    /// If `path` is a directory or names no file, or if its directory or device cannot be written.
    pub(super) fn new(path: &Path, flag: &str) -> Result<Self, CommandFailure> {
        let refuse = |problem: String| {
            CommandFailure::new(USAGE, format!("{flag} {}: {problem}", path.display()))
                .with_hint("name a file in a directory that exists and can be written to")
        };
        if path.is_dir() {
            return Err(refuse("is a directory".to_owned()));
        }
        // Resolves a symbolic link, so that the rename replaces its target and not the link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut name = path.file_name().ok_or_else(|| refuse("names no file".to_owned()))?.to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let replaceable = !path.exists() || path.is_file();
        let part = replaceable.then(|| path.with_file_name(name));
        let file = match &part {
            Some(part) => File::create(part),
            None => File::options().write(true).open(&path),
        };
        let file = file.map_err(|error| refuse(format!("cannot be written: {error}")))?;
        Ok(Self { path, part, file: BufWriter::new(file) })
    }

    /// Writes `text` and a line break.
    pub(super) fn write_line(&mut self, text: &str) -> Result<(), CommandFailure> {
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.write_all(b"\n"));
        written.map_err(|error| self.failed(&error))
    }

    /// Writes buffered text, and renames the file to its final path.
    pub(super) fn commit(mut self) -> Result<(), CommandFailure> {
        let written = self.file.flush();
        let kept = written.and_then(|()| match &self.part {
            // The sync comes before the rename. If the machine crashes, `path` is the old file or the complete new one.
            Some(part) => self.file.get_ref().sync_all().and_then(|()| std::fs::rename(part, &self.path)),
            None => Ok(()),
        });
        kept.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> CommandFailure {
        let failure = CommandFailure::unexpected(format!("cannot write {}: {error}", self.path.display()));
        // Only the temporary file was written.
        if self.part.is_some() && self.path.exists() {
            failure.with_hint("the existing file is unchanged")
        } else {
            failure
        }
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            // After `commit` there is no such file, and the error is ignored.
            let _ = std::fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_whole_and_not_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("result.json");
        let mut output = OutputFile::new(&path, "--output").unwrap();
        output.write_line("{}").unwrap();
        assert!(!path.exists());
        output.commit().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
        OutputFile::new(&path, "--output").unwrap().write_line("half").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
        assert_eq!(directory.path().read_dir().unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_device_stays_one() {
        let mut output = OutputFile::new(Path::new("/dev/null"), "--output").unwrap();
        output.write_line("{}").unwrap();
        output.commit().unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn a_path_that_cannot_be_written_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        assert!(OutputFile::new(&directory.path().join("missing/result.json"), "--output").is_err());
        assert!(OutputFile::new(directory.path(), "--output").is_err());
        assert!(OutputFile::new(Path::new("/"), "--output").is_err());
    }
}
