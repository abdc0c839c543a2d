//! Fault specifications, written as `NAME[@PHASE][:KEY=VALUE,...]`.

use std::fmt;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::cause::FaultCause;

/// A moment of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultPhase {
    /// Before the first line of the log.
    Parse,
    /// The arguments have been parsed; the model's files have not been read.
    Config,
    /// Before the port is taken.
    Bind,
    /// During the loading of the weights.
    Weights,
    /// The weights are loaded, and the memory of a step is measured.
    Profile,
    /// The KV cache is allocated.
    Kv,
    /// CUDA graphs are captured.
    Graphs,
    /// The log reports a complete start, but the socket does not listen yet.
    Ready,
}

impl FaultPhase {
    const NAMES: [(&'static str, Self); 8] = [
        ("parse", Self::Parse),
        ("config", Self::Config),
        ("bind", Self::Bind),
        ("weights", Self::Weights),
        ("profile", Self::Profile),
        ("kv", Self::Kv),
        ("graphs", Self::Graphs),
        ("ready", Self::Ready),
    ];

    pub(super) fn find(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, phase)| *phase)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, phase)| *phase == self).map_or("", |(name, _)| name)
    }
}

/// The kind of a process's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    Code(u8),
    /// The process sends this signal to itself.
    Signal(Signal),
}

/// One fault of the simulated engine. `src/engines/sim/process/fault/mod.rs` has a table of effects and spellings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FaultSpec {
    /// `end` is `None` if the cause determines it.
    Exit {
        at: FaultPhase,
        cause: FaultCause,
        end: Option<ProcessEnd>,
    },
    Hang {
        at: FaultPhase,
    },
    Slow {
        at: FaultPhase,
        lasts: Duration,
    },
    CloseLog {
        at: FaultPhase,
    },
    Flood {
        at: FaultPhase,
        megabytes: u64,
    },
    IgnoreTerm,
    IgnoreInt,
    /// A child outside of the session. `bare`: without an environment. `orphan`: its parent has ended.
    Escape {
        bare: bool,
        orphan: bool,
    },
    /// A child process for the engine, and the moment of its death. `after` is the time since readiness.
    EngineCore {
        after: Option<Duration>,
        at: Option<FaultPhase>,
        request: Option<u64>,
    },
    OtherModel {
        name: String,
    },
    LateBind,
    LateListen {
        by: Duration,
    },
    Mute,
    Unhealthy {
        after: Duration,
    },
    /// Requests count from 1.
    Die {
        request: u64,
        cause: FaultCause,
        end: Option<ProcessEnd>,
    },
    Errors {
        from: u64,
    },
    /// `after` is a number of tokens, `from` the number of the first request with this fault.
    Stall {
        after: u64,
        from: u64,
    },
    /// `after` is a number of tokens; `None` for all of them.
    EndEarly {
        after: Option<u64>,
        from: u64,
    },
    ErrorEvent {
        after: u64,
        from: u64,
    },
    /// `cap` is in megabytes.
    Leak {
        megabytes_per_s: u64,
        cap: u64,
    },
    /// Prolongs the first step of a request. `busy`: it uses a whole processor.
    LongStep {
        lasts: Duration,
        busy: bool,
        request: u64,
    },
    /// A step that never ends and uses a whole processor.
    Spin {
        request: u64,
    },
}

/// A name, whether it requires a phase, and its keys.
type FaultForm = (&'static str, bool, &'static [&'static str]);

pub(super) const FORMS: [FaultForm; 22] = [
    ("exit", true, &["cause", "code", "signal"]),
    ("hang", true, &[]),
    ("slow", true, &["seconds"]),
    ("close-log", true, &[]),
    ("flood", true, &["mb"]),
    ("ignore-term", false, &[]),
    ("ignore-int", false, &[]),
    ("escape", false, &["bare", "orphan"]),
    ("engine-core", false, &["dies-after", "phase", "request"]),
    ("other-model", false, &["name"]),
    ("late-bind", false, &[]),
    ("late-listen", false, &["seconds"]),
    ("mute", false, &[]),
    ("unhealthy", false, &["after"]),
    ("die", false, &["request", "cause", "code", "signal"]),
    ("errors", false, &["from"]),
    ("stall", false, &["after", "from"]),
    ("end-early", false, &["after", "from"]),
    ("error-event", false, &["after", "from"]),
    ("leak", false, &["mb-per-s", "cap-mb"]),
    ("long-step", false, &["seconds", "busy", "request"]),
    ("spin", false, &["request"]),
];

/// The reason why a text is not a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FaultError {
    #[error("invalid choice: '{name}' (choose from {})", names(FORMS.iter().map(|(name, ..)| *name)))]
    Unknown { name: String },
    #[error("'{name}' needs a phase, as in {name}@weights (choose from {})", names(FaultPhase::NAMES.iter().map(|(name, _)| *name)))]
    NoPhase { name: &'static str },
    #[error("'{name}' takes no phase")]
    PhaseNotAllowed { name: &'static str },
    #[error("unknown phase: '{phase}' (choose from {})", names(FaultPhase::NAMES.iter().map(|(name, _)| *name)))]
    UnknownPhase { phase: String },
    #[error("'{name}' has no key '{key}' (choose from {})", names(keys.iter().copied()))]
    UnknownKey { name: &'static str, key: String, keys: &'static [&'static str] },
    #[error("'{name}': {key} is '{value}', must be {expected}")]
    Value { name: &'static str, key: &'static str, value: String, expected: String },
    #[error("'{name}' cannot end with both a code and a signal")]
    TwoEnds { name: &'static str },
}

pub(super) fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    match names.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "nothing".to_owned(),
        names => names,
    }
}

impl FaultSpec {
    /// Returns the phase of a fault that takes effect at one moment of the start.
    pub(super) fn phase(&self) -> Option<FaultPhase> {
        match self {
            Self::Exit { at, .. }
            | Self::Hang { at }
            | Self::Slow { at, .. }
            | Self::CloseLog { at }
            | Self::Flood { at, .. } => Some(*at),
            _ => None,
        }
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys: Vec<(&str, String)> = Vec::new();
        let ended = |cause: &FaultCause, end: &Option<ProcessEnd>| {
            let end = end.map(|end| match end {
                ProcessEnd::Code(code) => ("code", code.to_string()),
                ProcessEnd::Signal(signal) => ("signal", (signal as i32).to_string()),
            });
            [Some(("cause", cause.name().to_owned())), end].into_iter().flatten()
        };
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let seconds = |time: &Duration| time.as_secs_f64().to_string();
        let name = match self {
            Self::Exit { cause, end, .. } => {
                keys.extend(ended(cause, end));
                "exit"
            }
            Self::Hang { .. } => "hang",
            Self::Slow { lasts, .. } => {
                keys.push(("seconds", seconds(lasts)));
                "slow"
            }
            Self::CloseLog { .. } => "close-log",
            Self::Flood { megabytes, .. } => {
                keys.push(("mb", megabytes.to_string()));
                "flood"
            }
            Self::IgnoreTerm => "ignore-term",
            Self::IgnoreInt => "ignore-int",
            Self::Escape { bare, orphan } => {
                keys.extend([("bare", yes(*bare)), ("orphan", yes(*orphan))]);
                "escape"
            }
            Self::EngineCore { after, at, request } => {
                keys.extend(at.map(|at| ("phase", at.name().to_owned())));
                keys.extend(after.as_ref().map(|after| ("dies-after", seconds(after))));
                keys.extend(request.map(|request| ("request", request.to_string())));
                "engine-core"
            }
            Self::OtherModel { name } => {
                keys.push(("name", name.clone()));
                "other-model"
            }
            Self::LateBind => "late-bind",
            Self::LateListen { by } => {
                keys.push(("seconds", seconds(by)));
                "late-listen"
            }
            Self::Mute => "mute",
            Self::Unhealthy { after } => {
                keys.push(("after", seconds(after)));
                "unhealthy"
            }
            Self::Die { request, cause, end } => {
                keys.push(("request", request.to_string()));
                keys.extend(ended(cause, end));
                "die"
            }
            Self::Errors { from } => {
                keys.push(("from", from.to_string()));
                "errors"
            }
            Self::Stall { after, from } => {
                keys.extend([("after", after.to_string()), ("from", from.to_string())]);
                "stall"
            }
            Self::EndEarly { after, from } => {
                keys.extend(after.map(|after| ("after", after.to_string())));
                keys.push(("from", from.to_string()));
                "end-early"
            }
            Self::ErrorEvent { after, from } => {
                keys.extend([("after", after.to_string()), ("from", from.to_string())]);
                "error-event"
            }
            Self::Leak { megabytes_per_s, cap } => {
                keys.extend([("mb-per-s", megabytes_per_s.to_string()), ("cap-mb", cap.to_string())]);
                "leak"
            }
            Self::LongStep { lasts, busy, request } => {
                keys.push(("seconds", seconds(lasts)));
                keys.extend([("busy", yes(*busy)), ("request", request.to_string())]);
                "long-step"
            }
            Self::Spin { request } => {
                keys.push(("request", request.to_string()));
                "spin"
            }
        };
        f.write_str(name)?;
        if let Some(phase) = self.phase() {
            write!(f, "@{}", phase.name())?;
        }
        for (index, (key, value)) in keys.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}
