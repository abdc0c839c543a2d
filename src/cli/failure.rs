//! Errors for the user: message, hint and exit code.

use std::process::ExitCode;

use super::LogFormat;
use super::output::sanitized;
use crate::document::DocumentError;
use crate::execution::{PresetError, ReleaseSource};
use crate::server::LeftBehind;
use crate::store::StoreError;
use crate::trial::{json_for_terminal, redact};
use crate::tuner::{LockError, TuneError};

// Exit codes, as documented in `docs/src/commands.md`.

/// A failure without a code of its own, such as a full disk.
pub(super) const UNEXPECTED: u8 = 1;
/// Wrong arguments. Clap uses the same code.
pub(super) const USAGE: u8 = 2;
/// A study file, data file or database is missing or invalid, or does not match the stored trials.
pub(super) const INVALID: u8 = 3;
/// No feasible configuration was found.
pub(super) const NOTHING_FEASIBLE: u8 = 4;
/// No server became ready, or the environment failed repeatedly.
pub(super) const ENGINE_NEVER_HEALTHY: u8 = 5;
/// No measurement was valid.
pub(super) const NO_VALID_MEASUREMENT: u8 = 6;
/// A signal ended the command: 128 plus the number of SIGINT.
pub(super) const INTERRUPTED: u8 = 130;

/// The failure of a command.
#[derive(Debug)]
pub(super) struct CommandFailure {
    /// Empty if there is nothing to print: the message was printed already, or the reader closed the pipe.
    message: String,
    hint: Option<String>,
    code: u8,
}

impl CommandFailure {
    pub(super) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code }
    }

    pub(super) fn unexpected(message: impl Into<String>) -> Self {
        Self::new(UNEXPECTED, message)
    }

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Writes the error to standard error and returns the exit code. With `--log-format json` the error is one object
    /// with `event` set to `error`.
    pub(super) fn report(self, format: LogFormat) -> ExitCode {
        use std::io::Write;
        let mut stderr = anstream::stderr().lock();
        if format.is_json() {
            if !self.message.is_empty() {
                let error = serde_json::json!({
                    "event": "error", "message": redact(&self.message), "hint": self.hint.as_deref().map(redact), "exit_code": self.code,
                });
                let _ = writeln!(stderr, "{}", json_for_terminal(&error.to_string()));
            }
            return ExitCode::from(self.code);
        }
        let (red, cyan) = (anstyle::AnsiColor::Red.on_default().bold(), anstyle::AnsiColor::Cyan.on_default().bold());
        // A failed write to standard error cannot be reported anywhere, so the error is ignored.
        if !self.message.is_empty() {
            let _ = writeln!(stderr, "{red}error:{red:#} {}", sanitized(&self.message));
        }
        if let Some(hint) = self.hint {
            let _ = writeln!(stderr, "{cyan}hint:{cyan:#} {}", sanitized(&hint));
        }
        ExitCode::from(self.code)
    }
}

impl From<DocumentError> for CommandFailure {
    fn from(error: DocumentError) -> Self {
        Self { message: error.to_string(), hint: error.hint, code: INVALID }
    }
}

impl From<StoreError> for CommandFailure {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::Missing(_)
            | StoreError::CannotOpen(_)
            | StoreError::Newer { .. }
            | StoreError::NotADatabase { .. }
            | StoreError::Damaged { .. }
            | StoreError::Corrupt { .. }
            | StoreError::UnreadableContext { .. }
            | StoreError::UnreadableCreationTime { .. }
            | StoreError::UnreadableDeployment { .. } => INVALID,
            StoreError::Full(_) | StoreError::Database { .. } => UNEXPECTED,
        };
        Self { hint: error.hint(), message: error.to_string(), code }
    }
}

impl From<TuneError> for CommandFailure {
    fn from(error: TuneError) -> Self {
        match error {
            TuneError::Study(error) => error.into(),
            TuneError::Store(error) => error.into(),
            TuneError::Unstored { ref source, .. } => {
                let hint = source.hint();
                Self { hint, ..Self::unexpected(error.to_string()) }
            }
            TuneError::DefinitionDiffers { .. } => Self::new(INVALID, error.to_string())
                .with_hint("give the changed study another name, or another database with --db"),
            TuneError::ContextDiffers { ref name, .. } => Self::new(INVALID, error.to_string()).with_hint(format!(
                "begin a new study that uses this one as its prior ([study] name = \"{name}-2\", prior = [{name:?}]), or run \
                 `tune --accept-change`: it measures the defaults again and compares only later trials"
            )),
            TuneError::OtherRelease { ref reported, from, .. } => {
                Self::new(INVALID, error.to_string()).with_hint(other_release_hint(reported, from))
            }
            TuneError::ReleaseAdopted { ref reported, .. } => Self::new(INVALID, error.to_string())
                .with_hint(format!("set engine.version = {reported:?}, and run the same command again")),
            TuneError::Lock(LockError::Held { .. }) => Self::unexpected(error.to_string())
                .with_hint("wait for that process, or end it; its measurements are kept"),
            TuneError::LeftBehind(LeftBehind::Processes { .. }) => Self::unexpected(error.to_string())
                .with_hint("the kernel cannot end them, for instance because a device hangs; see `ps` and `dmesg`"),
            TuneError::TooFewSlots { .. } => Self::unexpected(error.to_string())
                .with_hint("free the devices or restart the machine, then run the same command again"),
            TuneError::LeftBehind(LeftBehind::Port { .. }) => Self::unexpected(error.to_string())
                .with_hint("engine.stop_command did not end the server, which may hold the device: end it by hand"),
            TuneError::Log { .. } => Self::unexpected(error.to_string())
                .with_hint("free some space and run the same command again: every stored trial is kept"),
            TuneError::Load(ref source) => {
                let hint = source.hint().map(str::to_owned);
                Self { hint, ..Self::unexpected(error.to_string()) }
            }
            TuneError::Lock(_) | TuneError::Command(_) | TuneError::Port(_) | TuneError::NoTwin(_) => Self::unexpected(error.to_string()),
        }
    }
}

/// Returns the hint for a server whose release differs from the expected one.
fn other_release_hint(reported: &str, from: ReleaseSource) -> String {
    match from {
        ReleaseSource::Stated => format!(
            "set engine.version = {reported:?} or omit it, and run the same command again; or change engine.command, \
             so that it starts the stated release"
        ),
        ReleaseSource::Probed => format!(
            "engine.command starts another installation than the one whose release was read, or the package has \
             changed since: run the same command again, or set engine.version = {reported:?}"
        ),
        ReleaseSource::FirstServer
        | ReleaseSource::EarlierTrials
        | ReleaseSource::Assumed
        | ReleaseSource::Unversioned => {
            "the engine was changed during the study: install the earlier release and run the same command again; or \
             run it with the new release, and choose between a new study with this one as its prior and \
             `--accept-change`"
                .to_owned()
        }
    }
}

impl From<PresetError> for CommandFailure {
    fn from(error: PresetError) -> Self {
        match error {
            PresetError::UnknownName { .. } => Self::new(USAGE, error.to_string()),
            PresetError::NoSimulatedDevice | PresetError::NoPreset { .. } | PresetError::UnknownGpu { .. } => {
                Self::new(INVALID, error.to_string()).with_hint("name the most similar preset with --device")
            }
        }
    }
}

impl From<LockError> for CommandFailure {
    fn from(error: LockError) -> Self {
        TuneError::Lock(error).into()
    }
}

/// Converts an error of writing the output. A reader such as `head` may close the pipe early. That is no failure.
impl From<std::io::Error> for CommandFailure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self { message: String::new(), hint: None, code: 0 };
        }
        Self::unexpected(format!("cannot write the output: {error}"))
    }
}
