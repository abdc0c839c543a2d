//! Conversion of a configuration to command-line arguments, in the spelling of the release.

use super::{BoolStyle, FlagError, FlagKind, FlagTable};
use crate::config::{Config, Value};

impl FlagTable {
    /// Returns the arguments that set exactly this configuration. A false boolean is left out if the release has no
    /// argument to switch it off.
    ///
    /// # Errors
    /// If this release does not have a flag or does not accept its value.
    pub fn render(self, config: &Config) -> Result<Vec<String>, FlagError> {
        let mut arguments = Vec::new();
        for (name, value) in config.iter() {
            let flag = self.find(name).ok_or_else(|| self.unknown(name))?;
            if let Value::Bool(on) = value {
                flag.check(value)?;
                match (flag.bool_style(), on) {
                    (Some(_) | None, true) => arguments.push(format!("--{}", flag.name)),
                    (Some(BoolStyle::Optional), false) => arguments.push(format!("--no-{}", flag.name)),
                    (Some(BoolStyle::StoreBoolean), false) => arguments.push(format!("--{}=False", flag.name)),
                    (Some(BoolStyle::StoreTrue) | None, false) => {}
                }
                continue;
            }
            flag.check(value)?;
            arguments.push(format!("--{}", flag.name));
            match value {
                Value::Text(text) if flag.kind() == FlagKind::List => {
                    arguments.extend(text.split_whitespace().map(str::to_owned));
                }
                _ => arguments.push(value.to_string()),
            }
        }
        Ok(arguments)
    }
}
