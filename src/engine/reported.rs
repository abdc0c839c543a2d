//! The configuration that an engine reports.

use std::collections::BTreeMap;

use crate::config::Config;

/// An engine's report on its configuration. Names are those of flags without dashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedConfig {
    /// The arguments as the engine parsed them: all of them, or those that are not defaults.
    pub given: BTreeMap<String, String>,
    /// The values that the engine works with.
    pub effective: BTreeMap<String, String>,
}

impl ReportedConfig {
    /// Returns the values that the engine runs with, and the requested arguments as it has parsed them.
    #[must_use]
    pub fn shown(&self, asked: &Config) -> BTreeMap<String, String> {
        let given = self.given.iter().filter(|(flag, _)| asked.get(flag).is_some());
        let mut shown: BTreeMap<_, _> = given.map(|(flag, value)| (flag.clone(), value.clone())).collect();
        shown.extend(self.effective.clone());
        shown
    }
}
