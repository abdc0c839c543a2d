//! The launch of a study that a process of the simulated engine is, as the tuner passes it in an environment variable.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::refusal::Refusal;
use crate::twin::LaunchDraw;

/// A launch of a study.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StudyLaunch {
    pub(crate) draw: LaunchDraw,
    /// The real time from the study's begin to the launch.
    pub(crate) study_age: Duration,
}

impl StudyLaunch {
    /// The environment variable. Its value is `SEED:TRIAL:RETRY:AGE`, with the study's age in seconds.
    pub(crate) const VARIABLE: &str = "SETPOINT_SIM_LAUNCH";

    /// Returns the launch of a server that no tuner has started.
    pub(super) fn alone(seed: u64) -> Self {
        Self { draw: LaunchDraw { study_seed: seed, trial: 0, retry: 0 }, study_age: Duration::ZERO }
    }

    /// Reads the variable. Returns `None` if it is not set.
    ///
    /// # Errors
    /// If the value has another form.
    pub(super) fn from_environment() -> Result<Option<Self>, Refusal> {
        let Some(value) = std::env::var_os(Self::VARIABLE) else { return Ok(None) };
        value.to_string_lossy().parse().map(Some)
    }
}

impl fmt::Display for StudyLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaunchDraw { study_seed, trial, retry } = self.draw;
        write!(f, "{study_seed}:{trial}:{retry}:{}", self.study_age.as_secs_f64())
    }
}

impl FromStr for StudyLaunch {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let mut parts = text.split(':');
        let mut part = || parts.next().unwrap_or_default();
        let (seed, trial, retry, age) = (part().parse(), part().parse(), part().parse(), part().parse());
        let age = age.ok().and_then(|age| Duration::try_from_secs_f64(age).ok());
        match (seed, trial, retry, age, parts.next()) {
            (Ok(study_seed), Ok(trial), Ok(retry), Some(study_age), None) => {
                Ok(Self { draw: LaunchDraw { study_seed, trial, retry }, study_age })
            }
            _ => Err(Refusal::usage(format!(
                "environment variable {}: '{text}' is not of the form SEED:TRIAL:RETRY:AGE, for example 7:12:0:90.5",
                Self::VARIABLE
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_is_read_as_it_was_written() {
        let draw = LaunchDraw { study_seed: u64::MAX, trial: 12, retry: 1 };
        for age in [Duration::ZERO, Duration::from_millis(90_500), Duration::from_hours(10_000)] {
            let launch = StudyLaunch { draw, study_age: age };
            assert_eq!(launch.to_string().parse::<StudyLaunch>().unwrap(), launch);
        }
    }

    #[test]
    fn another_form_is_refused_with_an_example() {
        for text in ["", "1:2:3", "1:2:3:4:5", "1:2:3:-4", "1:2:3:NaN", "1:-2:3:4", "a:2:3:4"] {
            let refusal = text.parse::<StudyLaunch>().unwrap_err();
            assert!(refusal.text.contains(&format!("'{text}' is not of the form")), "{refusal}");
            assert_eq!(refusal.exit_code, 2);
        }
    }
}
