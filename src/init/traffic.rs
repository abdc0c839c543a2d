//! The traffic of a study without a file: a preset, a trace, prompts, or the log of a server or proxy.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::InitError;
use super::limit::LatencyLimit;
use super::preset::{PRESETS, WorkloadPreset};
use crate::document::nearest;
use crate::workload::{AccessLog, WorkloadSpec};

/// The value of `--workload`, resolved.
#[derive(Debug)]
pub(super) enum TrafficSource {
    Preset(&'static WorkloadPreset),
    /// A data file with the name of its kind of workload.
    File {
        path: PathBuf,
        kind: &'static str,
    },
    /// Requests of an access log, without their texts.
    Log {
        path: PathBuf,
        log: AccessLog,
    },
}

impl TrafficSource {
    /// Finds the preset of this name, or else reads the file.
    pub(super) fn find(workload: &str) -> Result<Self, InitError> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == workload) {
            return Ok(Self::Preset(preset));
        }
        let path = PathBuf::from(workload);
        if !path.is_file() {
            let names = || PRESETS.iter().map(|preset| preset.name);
            let near = nearest(workload, names()).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return Err(InitError::new(
                format!("--workload {workload:?} is neither a preset nor a file{near}"),
                format!(
                    "use {}, or name a trace, a file of prompts, or an access log",
                    names().collect::<Vec<_>>().join(", ")
                ),
            ));
        }
        let path = path.canonicalize().unwrap_or(path);
        let unreadable = |problem: String| {
            InitError::new(
                format!("--workload {workload}: {problem}"),
                "formats: a trace (CSV or JSON lines), prompts (JSON lines or ShareGPT), or an access log with token \
                 counts; the book's page on workloads describes each",
            )
        };
        if AccessLog::is_log(&path).map_err(|error| unreadable(error.to_string()))? {
            let log = AccessLog::read(&path).map_err(|error| unreadable(error.to_string()))?;
            return Ok(Self::Log { path, log });
        }
        let kind = WorkloadSpec::of_file(&path).map_err(|error| unreadable(error.problem()))?.kind();
        Ok(Self::File { path, kind })
    }

    /// Returns the preset's name or the file's.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Preset(preset) => preset.name.to_owned(),
            Self::File { path, .. } | Self::Log { path, .. } => {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            }
        }
    }

    /// Returns one line for people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Preset(preset) => format!("{} (--workload): {}; {}", preset.name, preset.summary, preset.source),
            Self::File { path, kind } => format!("{} ({kind})", path.display()),
            Self::Log { path, log } => format!("{}: {}", path.display(), log.describe()),
        }
    }

    /// Returns the users in a closed loop that the source suggests.
    pub(super) fn concurrency(&self) -> Option<u32> {
        match self {
            Self::Preset(preset) => Some(preset.concurrency),
            Self::File { .. } | Self::Log { .. } => None,
        }
    }

    /// Returns whether the requests have time stamps to replay.
    pub(super) fn has_times(&self) -> bool {
        matches!(self, Self::Log { .. })
    }

    /// Returns the limits that users of this traffic expect, if they are known, on a clock that runs `time_scale` times
    /// faster.
    pub(super) fn usual_limits(&self, time_scale: f64) -> Option<Vec<LatencyLimit>> {
        match self {
            Self::Preset(preset) => Some(super::scaled(&preset.usual_limits()?, time_scale)),
            Self::File { .. } | Self::Log { .. } => None,
        }
    }

    /// Returns the requests of an access log as a trace in CSV.
    pub(super) fn rows(&self) -> Option<String> {
        let Self::Log { log, .. } = self else { return None };
        let mut csv = String::from("arrival_s,input_tokens,output_tokens\n");
        for request in &log.requests {
            let _ = writeln!(csv, "{:.3},{},{}", request.arrival_s, request.input_tokens, request.output_tokens);
        }
        Some(csv)
    }
}

/// Calls `read` with the study's text while the study's further file exists under a temporary name. Nothing is left
/// behind if the study is not valid.
pub(super) fn with_traffic<T, E>(
    traffic: Option<&(PathBuf, String)>,
    text: &str,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, InitError>
where
    InitError: From<E>,
{
    let Some((path, rows)) = traffic else { return Ok(read(text)?) };
    let part = path.with_extension(format!("csv.{}.part", std::process::id()));
    let guard = RemovedFile(&part);
    std::fs::write(&part, rows).map_err(|error| {
        InitError::new(format!("cannot write {}: {error}", part.display()), "start in a folder that can be written")
    })?;
    let text = text.replace(&*path.to_string_lossy(), &part.to_string_lossy());
    let result = read(&text)?;
    drop(guard);
    Ok(result)
}

/// A temporary file that is removed with this value.
struct RemovedFile<'a>(&'a Path);

impl Drop for RemovedFile<'_> {
    fn drop(&mut self) {
        // The file does not exist if it could not be written.
        let _ = std::fs::remove_file(self.0);
    }
}
