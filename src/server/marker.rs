//! The environment variable that identifies the processes of a launch, also for a later tuner.

use std::path::Path;

/// The value of the variable: database, study, and the trial or other purpose that a process was started for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    study: String,
    purpose: String,
}

impl Marker {
    /// The name of the environment variable.
    pub const VARIABLE: &str = "SETPOINT_LAUNCH";

    /// Returns the marker of a trial. `database` distinguishes studies of equal name in two databases.
    #[must_use]
    pub fn new(database: &Path, study: &str, trial: u32) -> Self {
        Self::helper(database, study, &trial.to_string())
    }

    /// Returns the marker of a process that serves no trial, for instance with the purpose `preflight`. Only one launch
    /// at a time may use a marker.
    #[must_use]
    pub fn helper(database: &Path, study: &str, purpose: &str) -> Self {
        Self { study: Self::study_prefix(database, study), purpose: purpose.to_owned() }
    }

    /// Returns the common prefix of the markers of all trials of a study.
    #[must_use]
    pub fn study_prefix(database: &Path, study: &str) -> String {
        let database = std::path::absolute(database).unwrap_or_else(|_| database.to_owned());
        format!("{}|{study}|", database.display())
    }

    /// Returns the value of the variable: `DATABASE|STUDY|PURPOSE`, with an absolute path.
    #[must_use]
    pub fn value(&self) -> String {
        format!("{}{}", self.study, self.purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_name_that_begins_another_does_not_match_it() {
        let marker = Marker::new(Path::new("/data/a.db"), "chat-long", 3).value();
        assert_eq!(marker, "/data/a.db|chat-long|3");
        assert!(!marker.starts_with(&Marker::study_prefix(Path::new("/data/a.db"), "chat")));
        assert!(marker.starts_with(&Marker::study_prefix(Path::new("/data/a.db"), "chat-long")));
    }
}
