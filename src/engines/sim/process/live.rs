//! Live knobs of the simulated engine: the limits that it reads from `settings.json` while it is idle. `engine::live`
//! describes the files.

use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use crate::engine::{LIVE_SETTINGS, LIVE_STATE};
use crate::private_files::write_private;
use crate::twin::{LiveLimits, Settings};

/// The limits of a running server.
#[derive(Debug)]
pub(super) struct LiveFolder {
    folder: PathBuf,
    launched: LiveLimits,
    /// The time of the last change that was read.
    modified: Option<SystemTime>,
    /// The excess of all times while a limit differs from its launched value, as a share.
    bias: f64,
    /// The factor on all times.
    pub(super) slowness: f64,
}

impl LiveFolder {
    /// Reports the launched values.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(super) fn open(folder: PathBuf, settings: &Settings, bias: f64) -> std::io::Result<Self> {
        let live = Self { folder, launched: settings.live_limits(), modified: None, bias, slowness: 1.0 };
        live.report(&json!({"version": 0, "values": values(live.launched)}))?;
        Ok(live)
    }

    /// Returns new limits, if there are any. The caller is idle and uses them from now on.
    ///
    /// # Errors
    /// If the state cannot be written.
    pub(super) fn poll(&mut self) -> std::io::Result<Option<LiveLimits>> {
        let path = self.folder.join(LIVE_SETTINGS);
        let Ok(modified) = std::fs::metadata(&path).and_then(|data| data.modified()) else { return Ok(None) };
        if self.modified.replace(modified) == Some(modified) {
            return Ok(None);
        }
        let asked: Json = serde_json::from_str(&std::fs::read_to_string(&path)?).unwrap_or_default();
        let version = &asked["version"];
        let limits = match asked["settings"].as_object().ok_or("no settings".to_owned()) {
            Ok(settings) => limits(self.launched, settings),
            Err(problem) => Err(problem),
        };
        match limits {
            Ok(limits) => {
                self.slowness = if limits == self.launched { 1.0 } else { 1.0 + self.bias };
                self.report(&json!({"version": version, "values": values(limits)}))?;
                Ok(Some(limits))
            }
            Err(problem) => {
                self.report(&json!({"version": version, "refused": problem}))?;
                Ok(None)
            }
        }
    }

    /// Replaces the state at once, so that the tuner never reads a part of it.
    fn report(&self, state: &Json) -> std::io::Result<()> {
        let new = self.folder.join(format!("{LIVE_STATE}.new"));
        write_private(&new, state.to_string().as_bytes())?;
        std::fs::rename(&new, self.folder.join(LIVE_STATE))
    }
}

fn values(limits: LiveLimits) -> Json {
    json!({
        "max-num-seqs": limits.max_num_seqs,
        "max-num-batched-tokens": limits.max_num_batched_tokens,
        "long-prefill-token-threshold": limits.long_prefill_token_threshold,
        "enable-prefix-caching": limits.prefix_caching,
    })
}

/// Returns the launched limits with these settings; null stands for the launched value.
fn limits(launched: LiveLimits, settings: &Map<String, Json>) -> Result<LiveLimits, String> {
    let mut limits = launched;
    for (name, value) in settings.iter().filter(|(_, value)| !value.is_null()) {
        let number = || value.as_u64().and_then(|value| u32::try_from(value).ok());
        let up_to = |launched: u32| {
            let number = number().filter(|value| (1..=launched).contains(value));
            number.ok_or_else(|| format!("{name}: {value} is not between 1 and the launched {launched}"))
        };
        match name.as_str() {
            "max-num-seqs" => limits.max_num_seqs = up_to(launched.max_num_seqs)?,
            "max-num-batched-tokens" => limits.max_num_batched_tokens = up_to(launched.max_num_batched_tokens)?,
            "long-prefill-token-threshold" => {
                limits.long_prefill_token_threshold =
                    number().ok_or_else(|| format!("{name}: {value} is no number"))?;
            }
            "enable-prefix-caching" => match value.as_bool() {
                Some(on) if launched.prefix_caching || !on => limits.prefix_caching = on,
                _ => return Err(format!("{name}: it can only be switched off")),
            },
            _ => return Err(format!("{name} is no live knob")),
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_applied_once_and_refused_beyond_the_launched_values() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::default();
        let mut live = LiveFolder::open(directory.path().to_owned(), &settings, 0.1).unwrap();
        let state = || std::fs::read_to_string(directory.path().join(LIVE_STATE)).unwrap();
        assert!(state().contains(r#""max-num-seqs":256"#) && state().contains(r#""version":0"#), "{}", state());
        assert_eq!(live.poll().unwrap(), None, "there are no settings yet");
        let mut set = |text: &str| {
            std::fs::write(directory.path().join(LIVE_SETTINGS), text).unwrap();
            live.modified = None;
            let found = live.poll().unwrap();
            (found, live.poll().unwrap(), live.slowness)
        };
        let expected = LiveLimits { max_num_seqs: 4, ..settings.live_limits() };
        let (found, again, slowness) = set(r#"{"version": 1, "settings": {"max-num-seqs": 4}}"#);
        assert_eq!((found, again), (Some(expected), None));
        assert!((slowness - 1.1).abs() < 1e-12);
        for wrong in [r#""max-num-seqs": 257"#, r#""block-size": 32"#, r#""enable-prefix-caching": 1"#] {
            let (found, ..) = set(&format!(r#"{{"version": 2, "settings": {{{wrong}}}}}"#));
            assert!(found.is_none() && state().contains("refused"), "{wrong}: {}", state());
        }
        let (found, _, slowness) = set(r#"{"version": 3, "settings": {"max-num-seqs": null}}"#);
        assert_eq!(found, Some(settings.live_limits()));
        assert!((slowness - 1.0).abs() < 1e-12);
    }
}
