//! The configuration that an engine reports.

use std::collections::BTreeMap;

use crate::config::Config;

/// An engine's report on its configuration. Names are those of flags, without the leading dashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedConfig {
    /// The arguments as the engine parsed them: all of them, or those that are not defaults.
    pub given: BTreeMap<String, String>,
    /// The values that the engine works with. Some of their names are no flags, such as `release`.
    pub effective: BTreeMap<String, String>,
}

impl ReportedConfig {
    /// Returns the effective values, and the arguments as parsed for flags of `asked` without an effective value.
    #[must_use]
    pub fn reported_values(&self, asked: &Config) -> BTreeMap<String, String> {
        let given = self.given.iter().filter(|(flag, _)| asked.get(flag).is_some());
        let mut shown: BTreeMap<_, _> = given.map(|(flag, value)| (flag.clone(), value.clone())).collect();
        shown.extend(self.effective.clone());
        shown
    }
}
