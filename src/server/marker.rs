//! The environment variable by which a launch's processes are recognised, even by a later tuner.

use std::path::Path;

/// Names the database, the study and the trial that a process was started for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    study: String,
    trial: u32,
}

impl Marker {
    pub const VARIABLE: &str = "SETPOINT_LAUNCH";

    /// `database` tells studies of the same name in two databases apart.
    #[must_use]
    pub fn new(database: &Path, study: &str, trial: u32) -> Self {
        Self { study: Self::study_prefix(database, study), trial }
    }

    /// What the markers of all trials of a study begin with.
    #[must_use]
    pub fn study_prefix(database: &Path, study: &str) -> String {
        let database = std::path::absolute(database).unwrap_or_else(|_| database.to_owned());
        format!("{}|{study}|", database.display())
    }

    #[must_use]
    pub fn value(&self) -> String {
        format!("{}{}", self.study, self.trial)
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
