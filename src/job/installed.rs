//! Checks of a study against the installed engine, independent of the stated release.

use super::Job;
use crate::document::{DocumentError, nearest};
use crate::facts::EngineVersion;
use crate::flag::FlagError;
use crate::preflight::{InstalledEngine, InstalledFlag};

/// A parameter with more values than this is not checked against the choices.
const MAX_VALUES: usize = 1000;

impl Job {
    /// Checks that the installed engine has every flag of the study and takes the values of its choices.
    ///
    /// # Errors
    /// The error names the missing flag, the last release with it, and the nearest flag. For a value that is not among
    /// the choices it names the value.
    pub fn check_installed(&self, installed: &InstalledEngine) -> Result<(), DocumentError> {
        if installed.flags.is_none() {
            return Ok(());
        }
        let space = self.search_space();
        for (name, value) in space.fixed.iter() {
            let flag = self.installed_flag(installed, "fixed", name)?;
            self.check_choices(installed, "fixed", name, flag, &[value.to_string()])?;
        }
        for parameter in &space.parameters {
            let flag = self.installed_flag(installed, "parameters", &parameter.name)?;
            let values = parameter.domain.values(MAX_VALUES).unwrap_or_default();
            let values: Vec<_> = values.iter().map(ToString::to_string).collect();
            self.check_choices(installed, "parameters", &parameter.name, flag, &values)?;
        }
        Ok(())
    }

    /// Returns a text such as `vLLM 0.32.0, as installed`.
    fn as_installed(&self, installed: &InstalledEngine) -> String {
        format!("{} {}, as installed", self.engine.engine.display_name(), installed.version)
    }

    fn installed_flag<'i>(
        &self,
        installed: &'i InstalledEngine,
        section: &str,
        name: &str,
    ) -> Result<&'i InstalledFlag, DocumentError> {
        installed.find(name).ok_or_else(|| {
            let version = installed.version.parse().unwrap_or(EngineVersion::LATEST);
            let table = self.engine.engine.flag_table(version);
            // The table of this release may have the flag although the installed engine lacks it.
            let problem = match table.filter(|table| table.find(name).is_none()) {
                Some(table) => table.unknown(name),
                None => FlagError::Unknown { name: name.to_owned(), hint: None },
            };
            let known = installed
                .flags
                .iter()
                .flatten()
                .flat_map(|flag| &flag.names)
                .filter_map(|name| name.strip_prefix("--"));
            let hint = nearest(name, known).map(|near| format!("did you mean `{near}`?"));
            self.mismatch(section, name, format!("{problem} ({})", self.as_installed(installed)), hint)
        })
    }

    fn check_choices(
        &self,
        installed: &InstalledEngine,
        section: &str,
        name: &str,
        flag: &InstalledFlag,
        values: &[String],
    ) -> Result<(), DocumentError> {
        let Some(choices) = &flag.choices else { return Ok(()) };
        let Some(value) = values.iter().find(|value| !choices.contains(value)) else { return Ok(()) };
        let choices = choices.join(", ");
        let error = FlagError::InvalidChoice { name: name.to_owned(), value: value.clone(), choices };
        Err(self.mismatch(section, name, format!("{error} ({})", self.as_installed(installed)), None))
    }

    fn mismatch(&self, section: &str, name: &str, problem: String, hint: Option<String>) -> DocumentError {
        DocumentError { file: self.file.clone(), line: None, key: format!("space.{section}.{name}"), problem, hint }
    }
}
