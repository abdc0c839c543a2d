//! Values of secrets that occur in a deployment. They are removed from everything that is kept or shown.

use std::fmt;

use crate::trial::{REDACTED, is_secret, redact};

/// Shorter values are not searched for, because they also occur in other words.
const MIN_LENGTH: usize = 6;

/// Values that must not be kept or shown.
#[derive(Clone, Default)]
pub(super) struct SecretValues(Vec<String>);

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretValues({})", self.0.len())
    }
}

impl SecretValues {
    pub(super) fn add(&mut self, value: &str) {
        if value.len() >= MIN_LENGTH && !self.0.iter().any(|known| known == value) {
            self.0.push(value.to_owned());
            // A value may contain another one.
            self.0.sort_by_key(|known| std::cmp::Reverse(known.len()));
        }
    }

    /// Adds the value of a variable if its name indicates a secret.
    pub(super) fn add_variable(&mut self, name: &str, value: &str) {
        if is_secret(name) {
            self.add(value);
        }
    }

    /// Replaces the values, and all text with the shape of a secret.
    pub(super) fn scrub(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for value in &self.0 {
            if text.contains(value) {
                text = text.replace(value, REDACTED);
            }
        }
        redact(&text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_removed_from_other_texts_and_is_not_shown() {
        let mut secrets = SecretValues::default();
        secrets.add_variable("MY_TOKEN", "hunter2-hunter2");
        secrets.add_variable("MODEL", "org/model");
        assert_eq!(secrets.scrub("org/model --x=hunter2-hunter2"), "org/model --x=(redacted)");
        assert_eq!(format!("{secrets:?}"), "SecretValues(1)");
    }
}
