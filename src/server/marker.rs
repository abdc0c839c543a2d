//! The environment variable by which a launch's processes are recognised, even by a later tuner.

use std::path::Path;

/// Names the database, the study and the trial that a process was started for, or what else it does for the study.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    study: String,
    purpose: String,
}

impl Marker {
    pub const VARIABLE: &str = "SETPOINT_LAUNCH";

    /// `database` tells studies of the same name in two databases apart.
    #[must_use]
    pub fn new(database: &Path, study: &str, trial: u32) -> Self {
        Self::helper(database, study, &trial.to_string())
    }

    /// For a process that serves no trial. A marker is to be used by one launch at a time.
    #[must_use]
    pub fn helper(database: &Path, study: &str, purpose: &str) -> Self {
        Self { study: Self::study_prefix(database, study), purpose: purpose.to_owned() }
    }

    /// What the markers of all trials of a study begin with.
    #[must_use]
    pub fn study_prefix(database: &Path, study: &str) -> String {
        let database = std::path::absolute(database).unwrap_or_else(|_| database.to_owned());
        format!("{}|{study}|", database.display())
    }

    #[must_use]
    pub fn value(&self) -> String {
        format!("{}{}", self.study, self.purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_does_not_recognise_another_whose_name_it_begins() {
        let marker = Marker::new(Path::new("/data/a.db"), "chat-long", 3).value();
        assert_eq!(marker, "/data/a.db|chat-long|3");
        assert!(!marker.starts_with(&Marker::study_prefix(Path::new("/data/a.db"), "chat")));
        assert!(marker.starts_with(&Marker::study_prefix(Path::new("/data/a.db"), "chat-long")));
    }
}
