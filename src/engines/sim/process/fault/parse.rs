//! Parser of fault specifications.

use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::cause::FaultCause;
use super::spec::{FORMS, FaultError, FaultPhase, FaultSpec, ProcessEnd, names};

/// The default cap of a leak in megabytes: enough to be noticed, too little to harm the machine.
const LEAK_CAP: u64 = 512;

/// The largest number of megabytes that a fault may write or hold.
const MAX_MEGABYTES: u64 = 100_000;

/// The keys of one specification.
struct Keys<'a> {
    name: &'static str,
    given: Vec<(&'a str, &'a str)>,
}

impl Keys<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.given.iter().rev().find(|(given, _)| *given == key).map(|(_, value)| *value)
    }

    fn read<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, FaultError> {
        let Some(value) = self.text(key) else { return Ok(None) };
        let wrong =
            || FaultError::Value { name: self.name, key, value: value.to_owned(), expected: expected.to_owned() };
        read(value).map(Some).ok_or_else(wrong)
    }

    fn number(&self, key: &'static str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, FaultError> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.read(key, &expected, |text| text.parse().ok().filter(|number| range.contains(number)))
    }

    fn seconds(&self, key: &'static str) -> Result<Option<Duration>, FaultError> {
        self.read(key, "a number of seconds up to 86400", |text| {
            let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds))?;
            Some(Duration::from_secs_f64(seconds))
        })
    }

    fn flag(&self, key: &'static str, default: bool) -> Result<bool, FaultError> {
        let yes = self.read(key, "yes or no", |text| match text {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        });
        Ok(yes?.unwrap_or(default))
    }

    fn cause(&self) -> Result<FaultCause, FaultError> {
        let expected = format!("one of {}", names(FaultCause::ALL.iter().map(|cause| cause.name())));
        Ok(self.read("cause", &expected, FaultCause::find)?.unwrap_or(FaultCause::Exception))
    }

    fn end(&self) -> Result<Option<ProcessEnd>, FaultError> {
        let code = self.read("code", "an exit code from 0 to 255", |text| text.parse().ok().map(ProcessEnd::Code))?;
        let signal = self.read("signal", "the number of a signal", |text| {
            Signal::try_from(text.parse::<i32>().ok()?).ok().map(ProcessEnd::Signal)
        })?;
        match (code, signal) {
            (Some(_), Some(_)) => Err(FaultError::TwoEnds { name: self.name }),
            (end, None) | (None, end) => Ok(end),
        }
    }

    fn request(&self) -> Result<u64, FaultError> {
        Ok(self.number("request", 1..=u64::MAX)?.unwrap_or(1))
    }

    fn from(&self) -> Result<u64, FaultError> {
        Ok(self.number("from", 1..=u64::MAX)?.unwrap_or(1))
    }
}

impl FromStr for FaultSpec {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (head, keys) = text.split_once(':').unwrap_or((text, ""));
        let (name, phase) = match head.split_once('@') {
            Some((name, phase)) => (name, Some(phase)),
            None => (head, None),
        };
        let form = FORMS.iter().find(|(known, ..)| *known == name);
        let Some((name, takes_phase, known)) = form.copied() else {
            return Err(FaultError::Unknown { name: name.to_owned() });
        };
        let at = match phase {
            Some(_) if !takes_phase => return Err(FaultError::PhaseNotAllowed { name }),
            None if takes_phase => return Err(FaultError::NoPhase { name }),
            None => FaultPhase::Parse,
            Some(phase) => {
                FaultPhase::find(phase).ok_or_else(|| FaultError::UnknownPhase { phase: phase.to_owned() })?
            }
        };
        let given = keys.split(',').filter(|key| !key.is_empty()).map(|key| key.split_once('=').unwrap_or((key, "")));
        let keys = Keys { name, given: given.collect() };
        if let Some((key, _)) = keys.given.iter().find(|(key, _)| !known.contains(key)) {
            return Err(FaultError::UnknownKey { name, key: (*key).to_owned(), keys: known });
        }
        let second = Duration::from_secs(1);
        Ok(match name {
            "exit" => Self::Exit { at, cause: keys.cause()?, end: keys.end()? },
            "hang" => Self::Hang { at },
            "slow" => Self::Slow { at, lasts: keys.seconds("seconds")?.unwrap_or(second) },
            "close-log" => Self::CloseLog { at },
            "flood" => Self::Flood { at, megabytes: keys.number("mb", 1..=MAX_MEGABYTES)?.unwrap_or(1000) },
            "ignore-term" => Self::IgnoreTerm,
            "ignore-int" => Self::IgnoreInt,
            "escape" => Self::Escape { bare: keys.flag("bare", false)?, orphan: keys.flag("orphan", false)? },
            "engine-core" => Self::EngineCore {
                after: keys.seconds("dies-after")?,
                at: keys.read("phase", "one of weights, profile, kv, graphs, ready", |name| {
                    let early = [FaultPhase::Parse, FaultPhase::Config, FaultPhase::Bind];
                    FaultPhase::find(name).filter(|phase| !early.contains(phase))
                })?,
                request: keys.number("request", 1..=u64::MAX)?,
            },
            "other-model" => Self::OtherModel { name: keys.text("name").unwrap_or("another-model").to_owned() },
            "late-bind" => Self::LateBind,
            "late-listen" => Self::LateListen { by: keys.seconds("seconds")?.unwrap_or(second) },
            "mute" => Self::Mute,
            "unhealthy" => Self::Unhealthy { after: keys.seconds("after")?.unwrap_or_default() },
            "die" => Self::Die { request: keys.request()?, cause: keys.cause()?, end: keys.end()? },
            "errors" => Self::Errors { from: keys.from()? },
            "stall" => Self::Stall { after: keys.number("after", 0..=u64::MAX)?.unwrap_or(0), from: keys.from()? },
            "end-early" => Self::EndEarly { after: keys.number("after", 0..=u64::MAX)?, from: keys.from()? },
            "error-event" => {
                Self::ErrorEvent { after: keys.number("after", 0..=u64::MAX)?.unwrap_or(0), from: keys.from()? }
            }
            "long-step" => Self::LongStep {
                lasts: keys.seconds("seconds")?.unwrap_or(Duration::from_mins(1)),
                busy: keys.flag("busy", true)?,
                request: keys.request()?,
            },
            "spin" => Self::Spin { request: keys.request()? },
            _ => Self::Leak {
                megabytes_per_s: keys.number("mb-per-s", 1..=MAX_MEGABYTES)?.unwrap_or(50),
                cap: keys.number("cap-mb", 1..=MAX_MEGABYTES)?.unwrap_or(LEAK_CAP),
            },
        })
    }
}
