//! From a configuration to command-line arguments, spelt as the release wants them.

use super::{BoolStyle, FlagError, FlagTable, Kind};
use crate::config::{Config, Value};

impl FlagTable {
    /// The arguments that set exactly this configuration. A boolean that a release can only switch on is left out
    /// when it is false.
    ///
    /// # Errors
    /// When this release does not have a flag or does not take its value.
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
                Value::Text(text) if flag.kind() == Kind::List => {
                    arguments.extend(text.split_whitespace().map(str::to_owned));
                }
                _ => arguments.push(value.to_string()),
            }
        }
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::EngineVersion;

    fn render(version: EngineVersion, config: &Config) -> Result<String, FlagError> {
        FlagTable::for_version(version).render(config).map(|arguments| arguments.join(" "))
    }

    #[test]
    fn booleans_are_spelt_as_the_release_wants_them() -> Result<(), FlagError> {
        let off = Config::new().with("enable-chunked-prefill", false).with("enable-prefix-caching", false);
        assert_eq!(
            render(EngineVersion::new(0, 32, 0), &off)?,
            "--no-enable-chunked-prefill --no-enable-prefix-caching"
        );
        assert_eq!(render(EngineVersion::new(0, 6, 3), &off)?, "--enable-chunked-prefill=False");
        Ok(())
    }

    #[test]
    fn a_rendered_config_parses_back_to_itself() -> Result<(), FlagError> {
        let config = Config::new()
            .with("max-num-seqs", 64_i64)
            .with("gpu-memory-utilization", 0.85)
            .with("kv-cache-dtype", "fp8")
            .with("enable-prefix-caching", true);
        let table = FlagTable::for_version(EngineVersion::new(0, 32, 0));
        assert_eq!(table.parse(&table.render(&config)?)?, config);
        Ok(())
    }

    #[test]
    fn a_flag_of_another_release_or_type_is_refused() {
        let version = EngineVersion::new(0, 32, 0);
        for config in [
            Config::new().with("scheduler-delay-factor", 0.5),
            Config::new().with("max-num-seqs", 1.5),
            Config::new().with("enable-prefix-caching", "yes"),
        ] {
            assert!(render(version, &config).is_err(), "{config}");
        }
    }
}
