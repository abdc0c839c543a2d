//! Live knobs of a running server: the files of the engine's helper in the folder of a launch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{FirstRequest, Server};
use crate::config::Value;
use crate::engine::{LIVE_SETTINGS, LIVE_STATE, LiveHelper};
use crate::private_files::{create_private_directory, write_private};
use crate::trial::LiveKnob;

/// The longest time until a server has taken new settings. It does so when its last request has ended.
const SET_LIMIT: Duration = Duration::from_secs(30);

/// The pause between two attempts, and the limit of one request.
const PAUSE: Duration = Duration::from_millis(100);
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error("cannot use {}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("the helper has written no readable {LIVE_STATE}")]
    NoState,
    #[error("the helper refuses: {0}")]
    Refused(String),
    #[error("the server has not taken the settings within {} s", SET_LIMIT.as_secs())]
    Unanswered,
    #[error("{flag} was set to {asked}, and the server uses {used}")]
    Differs { flag: &'static str, asked: Value, used: String },
}

/// The state that the helper reports.
#[derive(Debug, Deserialize)]
struct LiveState {
    version: u64,
    #[serde(default)]
    values: BTreeMap<String, Json>,
    refused: Option<String>,
}

/// The helper of one launch. Its folder is removed with this value.
#[derive(Debug)]
pub struct LiveControl {
    helper: &'static LiveHelper,
    folder: PathBuf,
    /// The version of the last settings.
    version: u64,
}

impl LiveControl {
    /// Writes the helper's files into a folder that only its owner can read. Files of an earlier launch are removed.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn create(helper: &'static LiveHelper, folder: &Path) -> Result<Self, LiveError> {
        let write = || {
            if folder.exists() {
                std::fs::remove_dir_all(folder)?;
            }
            create_private_directory(folder)?;
            helper.files.iter().try_for_each(|(name, text)| write_private(&folder.join(name), text.as_bytes()))?;
            folder.canonicalize()
        };
        let folder = write().map_err(|source| LiveError::File { path: folder.to_owned(), source })?;
        Ok(Self { helper, folder, version: 0 })
    }

    /// Returns the arguments that a launch needs.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let folder = self.folder.to_string_lossy();
        self.helper.arguments.iter().map(|word| word.replace("{folder}", &folder)).collect()
    }

    /// Returns the environment variable that a launch needs. `known` returns the value that a variable has without it.
    pub fn variable(&self, known: impl Fn(&str) -> Option<String>) -> Option<(String, String)> {
        let name = self.helper.search_path?;
        let rest = known(name).filter(|rest| !rest.is_empty());
        let folder = self.folder.to_string_lossy();
        Some((name.to_owned(), rest.map_or_else(|| folder.to_string(), |rest| format!("{folder}:{rest}"))))
    }

    /// Returns the knobs that the started server offers.
    ///
    /// # Errors
    /// If the helper has not started, or refuses this release.
    pub fn knobs(&self) -> Result<Vec<LiveKnob>, LiveError> {
        let state = self.state().ok_or(LiveError::NoState)?;
        match state.refused {
            Some(why) => Err(LiveError::Refused(why)),
            None => Ok(self.helper.knobs.iter().filter(|knob| state.values.contains_key(knob.flag)).copied().collect()),
        }
    }

    /// Sets knobs, and reads them back; `None` is the launched value. The server is idle, or is about to be. `first` is a
    /// request for one token of `model`, at which the server takes the settings.
    ///
    /// # Errors
    /// If the server does not use these values.
    pub async fn set(
        &mut self,
        server: &Server,
        settings: &BTreeMap<&'static str, Option<Value>>,
        (first, model): (FirstRequest, &str),
    ) -> Result<(), LiveError> {
        self.version += 1;
        self.write(&json!({"version": self.version, "settings": settings}))?;
        let begin = Instant::now();
        loop {
            // The request may fail while the server ends others. The state decides.
            let _ = server.post(first.path(), &first.body(model), REQUEST_LIMIT).await;
            if let Some(state) = self.state().filter(|state| state.version == self.version) {
                return check(&state, settings);
            }
            if begin.elapsed() > SET_LIMIT {
                return Err(LiveError::Unanswered);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Replaces the settings at once, so that the helper never reads a part of them.
    fn write(&self, settings: &Json) -> Result<(), LiveError> {
        let path = self.folder.join(LIVE_SETTINGS);
        let new = self.folder.join(format!("{LIVE_SETTINGS}.new"));
        let written = write_private(&new, settings.to_string().as_bytes()).and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|source| LiveError::File { path, source })
    }

    fn state(&self) -> Option<LiveState> {
        let text = std::fs::read_to_string(self.folder.join(LIVE_STATE)).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl Drop for LiveControl {
    fn drop(&mut self) {
        // `remove_left_folders` removes the folder later if that fails.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The end of the name of a launch's folder.
pub const LIVE_EXTENSION: &str = "live";

/// Removes the folders that a killed tuner has left among the logs of a study.
///
/// # Errors
/// If one cannot be removed.
pub fn remove_left_folders(logs: &Path) -> Result<(), LiveError> {
    let Ok(entries) = std::fs::read_dir(logs) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|end| end == LIVE_EXTENSION) && path.is_dir() && !path.is_symlink() {
            std::fs::remove_dir_all(&path).map_err(|source| LiveError::File { path, source })?;
        }
    }
    Ok(())
}

/// Checks that a server uses the settings.
fn check(state: &LiveState, settings: &BTreeMap<&'static str, Option<Value>>) -> Result<(), LiveError> {
    if let Some(why) = &state.refused {
        return Err(LiveError::Refused(why.clone()));
    }
    for (flag, asked) in settings {
        let Some(asked) = asked else { continue };
        let used = state.values.get(*flag);
        let is_equal = match (asked, used) {
            (Value::Float(asked), Some(used)) => {
                used.as_f64().is_some_and(|used| (used - asked).abs() <= SHARE_TOLERANCE)
            }
            (asked, Some(used)) => serde_json::to_value(asked).is_ok_and(|asked| asked == *used),
            (_, None) => false,
        };
        if !is_equal {
            let used = used.map_or_else(|| "no such knob".to_owned(), ToString::to_string);
            return Err(LiveError::Differs { flag, asked: asked.clone(), used });
        }
    }
    Ok(())
}

/// The largest difference of a share that the engine rounds to a whole number, such as blocks of a cache.
const SHARE_TOLERANCE: f64 = 0.005;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::LiveRange;

    static HELPER: LiveHelper = LiveHelper {
        knobs: &[
            LiveKnob { flag: "max-num-seqs", range: LiveRange::UpToLaunched },
            LiveKnob { flag: "watermark", range: LiveRange::Any },
        ],
        files: &[("helper.py", "pass")],
        arguments: &["--scheduler-cls", "{folder}/helper"],
        search_path: Some("PYTHONPATH"),
        accepts: |_| true,
    };

    #[test]
    fn a_launch_has_the_helper_in_a_folder_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("trial-0001.live");
        let control = LiveControl::create(&HELPER, &folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let text = folder.to_string_lossy().into_owned();
        assert_eq!(std::fs::read_to_string(folder.join("helper.py")).unwrap(), "pass");
        assert_eq!(control.arguments(), ["--scheduler-cls".to_owned(), format!("{text}/helper")]);
        let variable = |known: Option<&str>| control.variable(|_| known.map(str::to_owned)).unwrap();
        assert_eq!(variable(None), ("PYTHONPATH".to_owned(), text.clone()));
        assert_eq!(variable(Some("/a:/b")).1, format!("{text}:/a:/b"));
        drop(control);
        assert!(!folder.exists());
    }

    #[test]
    fn the_knobs_are_those_that_the_release_has() {
        let directory = tempfile::tempdir().unwrap();
        let control = LiveControl::create(&HELPER, &directory.path().join("live")).unwrap();
        assert!(matches!(control.knobs(), Err(LiveError::NoState)));
        let state = |text: &str| std::fs::write(control.folder.join(LIVE_STATE), text).unwrap();
        state(r#"{"version": 0, "values": {"max-num-seqs": 256, "other": 1}}"#);
        assert_eq!(control.knobs().unwrap(), [HELPER.knobs[0]]);
        state(r#"{"version": 0, "refused": "no such class"}"#);
        assert_eq!(control.knobs().unwrap_err().to_string(), "the helper refuses: no such class");
    }

    #[test]
    fn values_are_read_back() {
        let check = |state: &str, settings: &[(&'static str, Option<Value>)]| {
            let state: LiveState = serde_json::from_str(state).unwrap();
            check(&state, &settings.iter().cloned().collect()).map_err(|error| error.to_string())
        };
        let state =
            r#"{"version": 1, "values": {"max-num-seqs": 64, "watermark": 0.0999, "enable-prefix-caching": true}}"#;
        let seqs = |seqs: i64| ("max-num-seqs", Some(Value::Int(seqs)));
        let cached = ("enable-prefix-caching", None);
        assert_eq!(check(state, &[seqs(64), ("watermark", Some(Value::Float(0.1))), cached]), Ok(()));
        assert_eq!(check(state, &[seqs(32)]), Err("max-num-seqs was set to 32, and the server uses 64".to_owned()));
        assert!(check(state, &[("block-size", Some(Value::Int(16)))]).is_err());
        assert!(check(r#"{"version": 1, "refused": "busy"}"#, &[seqs(64)]).is_err());
    }
}
