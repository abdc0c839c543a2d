//! Stop commands that still have to run. Each is written to a file before its launch, so that a later tuner can run it
//! if this one is killed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::run_to_success;
use crate::private_files::user;

/// The suffix of a stop command's file, which lies beside the launch's log.
const FILE_SUFFIX: &str = ".stop.json";

/// The stop command of a launch that signals may not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingStop {
    file: PathBuf,
    pub command: Vec<String>,
}

impl PendingStop {
    /// Writes the command to a file beside the launch's log.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(log: &Path, command: &[String]) -> std::io::Result<Self> {
        let mut file = log.with_extension("").into_os_string();
        file.push(FILE_SUFFIX);
        let file = PathBuf::from(file);
        crate::private_files::write_private(&file, serde_json::json!(command).to_string().as_bytes())?;
        Ok(Self { file, command: command.to_vec() })
    }

    /// Returns the commands in a study's folder that still have to run, sorted by file name. Files of other users are
    /// ignored, because they may contain any command.
    #[must_use]
    pub fn of(directory: &Path) -> Vec<Self> {
        use std::os::unix::fs::MetadataExt;
        let own = user();
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let read = |file: PathBuf| {
            let is_ours = std::fs::symlink_metadata(&file).is_ok_and(|data| data.is_file() && Some(data.uid()) == own);
            let named = file.file_name()?.to_str()?.ends_with(FILE_SUFFIX);
            let text = std::fs::read_to_string(&file).ok().filter(|_| is_ours && named)?;
            let command = serde_json::from_str(&text).ok().filter(|words: &Vec<String>| !words.is_empty())?;
            Some(Self { file, command })
        };
        let mut owed: Vec<_> = entries.filter_map(|entry| read(entry.path())).collect();
        owed.sort_by(|a, b| a.file.cmp(&b.file));
        owed
    }

    /// Runs the command and removes its file, also on failure: a stop command usually fails because nothing is left to
    /// stop.
    ///
    /// # Errors
    /// The command and the reason of its failure.
    pub async fn run(self, limit: Duration) -> Result<(), String> {
        let ended = run_to_success(&self.command, limit).await;
        self.remove();
        ended
    }

    /// Removes the file after the launch has ended in order.
    pub fn remove(self) {
        // If the file cannot be removed, the command runs again later, which is harmless.
        let _ = std::fs::remove_file(self.file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_command_is_owed_until_it_has_been_run() {
        let directory = tempfile::tempdir().unwrap();
        let done = directory.path().join("done");
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let command = words(&format!("touch {}", done.display()));
        PendingStop::write(&directory.path().join("trial-0003.log"), &command).unwrap();
        let failing = ["sh", "-c", "echo no such container >&2; exit 1"].map(str::to_owned);
        PendingStop::write(&directory.path().join("trial-0004.log"), &failing).unwrap();
        std::fs::write(directory.path().join("trial-0005.stop.json"), "half a li").unwrap();
        std::fs::write(directory.path().join("trial-0003.log"), "[\"rm\"]").unwrap();

        let owed = PendingStop::of(directory.path());
        assert_eq!(owed.iter().map(|owed| owed.command.clone()).collect::<Vec<_>>(), [command, failing.to_vec()]);
        let mut owed = owed.into_iter();
        assert_eq!(owed.next().unwrap().run(Duration::from_secs(10)).await, Ok(()));
        assert!(done.exists());
        let error = owed.next().unwrap().run(Duration::from_secs(10)).await.unwrap_err();
        assert!(error.contains("exit code 1") && error.contains("no such container"), "{error}");
        assert_eq!(PendingStop::of(directory.path()), []);
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_given_up() {
        let error = run_to_success(&["sleep", "600"].map(str::to_owned), Duration::from_millis(50)).await.unwrap_err();
        assert!(error.contains("sleep 600") && error.contains("50ms"), "{error}");
    }
}
