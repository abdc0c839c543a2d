//! `doctor`: checks this machine for problems that would stop a study. It starts no server and changes nothing.

mod conditions;
mod database;
mod device;
mod disk;
mod engine;
mod limits;
mod network;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::failure::{CommandFailure, UNEXPECTED};
use super::output::{print_json, print_styled};
use super::{GlobalOptions, OutputFormat};
use crate::execution::detect;
use crate::job::Job;
use crate::trial::without_controls;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 no check failed (warnings do not count), 1 a check failed.")]
pub(super) struct DoctorCommand {
    /// A study file, to check its engine, model and device. Default: the `vllm` on the PATH.
    study: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckState {
    Ok,
    /// A study can run, but it may fail later, or its measurements may be distorted.
    Warn,
    /// A study cannot run.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CheckResult {
    /// The name of the check, such as `swap`.
    what: &'static str,
    state: CheckState,
    text: String,
    /// The action that solves the problem.
    hint: Option<String>,
}

impl CheckResult {
    fn ok(what: &'static str, text: impl Into<String>) -> Self {
        Self { what, state: CheckState::Ok, text: text.into(), hint: None }
    }

    fn warn(what: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what, state: CheckState::Warn, text: text.into(), hint: Some(hint.into()) }
    }

    fn fail(what: &'static str, text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { what, state: CheckState::Fail, text: text.into(), hint: Some(hint.into()) }
    }

    /// Returns [`Self::ok`] if `holds` is true, otherwise a warning with this hint.
    fn expect(holds: bool, what: &'static str, text: impl Into<String>, hint: &str) -> Self {
        if holds { Self::ok(what, text) } else { Self::warn(what, text, hint) }
    }

    /// Formats the finding as a coloured line: state, name of the check, text and hint.
    fn line(&self) -> String {
        let (red, yellow, green) = (anstyle::AnsiColor::Red, anstyle::AnsiColor::Yellow, anstyle::AnsiColor::Green);
        let colour = match self.state {
            CheckState::Ok => green.on_default(),
            CheckState::Warn => yellow.on_default().bold(),
            CheckState::Fail => red.on_default().bold(),
        };
        let (name, what, text) = (self.state.name(), self.what, without_controls(&self.text));
        let hint = self.hint.as_ref().map(|hint| format!("; {}", without_controls(hint))).unwrap_or_default();
        format!("{colour}{name:<4}{colour:#}  {what:<11}  {text}{hint}")
    }
}

impl CheckState {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl DoctorCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let job = self.study.as_deref().map(Job::read).transpose()?;
        let installed = match &job {
            Some(job) => Some(detect(job).await),
            None => None,
        };
        let mut findings = engine::check(job.as_ref().zip(installed.as_ref()), global).await;
        findings.extend(device::check(job.as_ref().zip(installed.as_ref())));
        findings.extend(disk::check(global));
        findings.extend(limits::check());
        findings.extend(conditions::check());
        findings.extend(network::check());
        findings.extend(database::check(global).await);
        match self.format {
            OutputFormat::Table => {
                print_styled(&findings.iter().map(CheckResult::line).collect::<Vec<_>>().join("\n"))?;
            }
            OutputFormat::Json => {
                let one = |finding: &CheckResult| {
                    let CheckResult { what, state, text, hint } = finding;
                    json!({"check": what, "state": state.name(), "text": text, "hint": hint})
                };
                print_json(&findings.iter().map(one).collect())?;
            }
        }
        let failed = findings.iter().filter(|finding| finding.state == CheckState::Fail).count();
        let message = match failed {
            0 => return Ok(()),
            1 => "1 check failed".to_owned(),
            _ => format!("{failed} checks failed"),
        };
        Err(CommandFailure::new(UNEXPECTED, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_its_hint() {
        let plain = |finding: &CheckResult| anstream::adapter::strip_str(&finding.line()).to_string();
        let low = CheckResult::expect(false, "files", "1024 open files", "raise it with `ulimit -n 65535`");
        assert_eq!(plain(&low), "warn  files        1024 open files; raise it with `ulimit -n 65535`");
        assert_eq!(plain(&CheckResult::ok("swap", "none")), "ok    swap         none");
        assert!(CheckState::Ok < CheckState::Warn && CheckState::Warn < CheckState::Fail);
    }
}
