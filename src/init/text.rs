//! The text of a study file, with comments for the person who edits it.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::deployed::DeployedProcess;
use super::first_points::FirstPoints;
use super::goal::GoalObjective;
use super::load::ResolvedLoad;
use super::traffic::TrafficSource;
use crate::config::{Config, Value};
use crate::job::TWIN_PRIOR;

/// The decisions that a study file consists of.
pub(super) struct StudyText<'a> {
    pub name: &'a str,
    pub kind: &'a str,
    /// How much faster the simulated clock runs, for the simulated engine.
    pub time_scale: Option<f64>,
    pub model: &'a str,
    /// The adapter that requests address.
    pub adapter: Option<&'a str>,
    /// The command and the variables of today's deployment.
    pub process: &'a DeployedProcess,
    /// Earlier studies that inform the sampler.
    pub priors: Vec<&'a str>,
    pub first_points: &'a FirstPoints,
    pub space: &'a str,
    pub traffic: &'a TrafficSource,
    /// The trace that is written beside the study.
    pub traffic_file: Option<&'a Path>,
    pub load: &'a ResolvedLoad,
    pub goal: &'a GoalObjective,
    pub trials: Option<u32>,
    pub time: Option<Duration>,
}

/// The header of the section that is no part of a study's identity.
const BUDGET: &str = "[budget]";

impl StudyText<'_> {
    /// Returns the file's text.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "# A study of `setpoint`. Every key has a page in the book: docs/src/study-file.md.\n\
             # `setpoint check FILE` validates a change, `setpoint tune FILE` runs or continues the study.\n\n\
             [study]\nname = {}\n{}\n[engine]\nkind = {}\n{}{}\n[model]\npath = {}\n{}\n",
            quoted(self.name),
            self.prior(),
            quoted(self.kind),
            self.simulation(),
            self.process(),
            quoted(self.model),
            self.adapter.map_or_else(String::new, |adapter| format!("adapter = {}\n", quoted(adapter))),
        );
        let _ = write!(
            text,
            "# The parameters and their ranges; `setpoint spaces {0}` prints them.\n\
             # Flags that every launch gets: fixed = {{ max-model-len = 8192 }}\n[space]\nfile = {1}\n{2}\n",
            self.space,
            quoted(self.space),
            self.fixed(),
        );
        let _ = writeln!(text, "# {}\n[workload]\n{}", one_line(&self.traffic.describe()), self.workload());
        let _ = writeln!(text, "# {}\n[load]\n{}request_timeout = \"5m\"", self.load.describe(), self.load.keys());
        if !self.goal.goodput.is_empty() {
            let limits: Vec<_> = self.goal.goodput.iter().map(|limit| quoted(limit)).collect();
            let _ = writeln!(text, "goodput = [{}]", limits.join(", "));
        }
        let _ = writeln!(text, "\n[objective]\n{} = {}", self.goal.direction, quoted(self.goal.metric));
        for limit in &self.goal.limits {
            let (metric, ms) = (quoted(&limit.metric()), limit.ms);
            let _ = writeln!(text, "\n[[objective.constraint]]\nmetric = {metric}\nat_most = {ms:?}");
        }
        text.push_str(&self.first_points());
        let _ = writeln!(text, "\n# The search ends earlier if the expected gain is small.\n{BUDGET}");
        if let Some(trials) = self.trials {
            let _ = writeln!(text, "trials = {trials}");
        }
        if let Some(time) = self.time {
            let _ = writeln!(text, "time = {}", quoted(&duration_text(time)));
        }
        text
    }

    /// Returns the arguments of the simulated engine.
    fn simulation(&self) -> String {
        self.time_scale.map_or_else(String::new, |scale| {
            format!(
                "# The simulated clock runs {scale} times faster; the limits below are of this clock.\n\
                 args = [\"--sim-time-scale\", \"{scale}\", \"--sim-startup-s\", \"0.4\"]\n"
            )
        })
    }

    /// Returns the key of `[study]` with the earlier studies.
    fn prior(&self) -> String {
        if self.priors.is_empty() {
            return String::new();
        }
        let names: Vec<_> = self.priors.iter().copied().chain([TWIN_PRIOR]).map(quoted).collect();
        format!("prior = [{}]\n", names.join(", "))
    }

    /// Returns the keys of `[engine]` that come from today's deployment.
    fn process(&self) -> String {
        let mut text = String::new();
        if let Some(command) = &self.process.command {
            let words: Vec<_> = command.iter().map(|word| quoted(word)).collect();
            let _ = writeln!(text, "command = [{}]", words.join(", "));
        }
        if !self.process.env.is_empty() {
            text.push_str("\n[engine.env]\n");
            for (name, value) in &self.process.env {
                let _ = writeln!(text, "{} = {}", key(name), quoted(value));
            }
        }
        text
    }

    /// Returns the fixed flags of `[space]`.
    fn fixed(&self) -> String {
        if self.first_points.fixed.is_empty() {
            return String::new();
        }
        format!(
            "\n# Flags of today's deployment that are no parameters of the space.\n[space.fixed]\n{}",
            flags(&self.first_points.fixed)
        )
    }

    /// Returns the sections of today's deployment and of the further first points.
    fn first_points(&self) -> String {
        let deployment = self.first_points.deployment.iter().map(|point| ("deployment", "[deployment]", point));
        let starts = self.first_points.starts.iter().map(|point| ("start", "[[start]]", point));
        let mut text = String::new();
        for (table, header, point) in deployment.chain(starts) {
            let _ = write!(
                text,
                "\n{header}\nsource = {}\n\n[{table}.flags]\n{}",
                quoted(&point.source),
                flags(&point.flags)
            );
        }
        text
    }

    /// Returns the keys of `[workload]`.
    fn workload(&self) -> String {
        match (self.traffic, self.traffic_file) {
            (TrafficSource::Preset(preset), _) => preset.keys.to_owned(),
            (TrafficSource::File { path, kind }, _) => {
                format!("kind = {}\npath = {}\n", quoted(kind), quoted(&path.to_string_lossy()))
            }
            (TrafficSource::Log { path, .. }, file) => {
                let path = file.unwrap_or(path);
                format!("kind = \"trace\"\npath = {}\n", quoted(&path.to_string_lossy()))
            }
        }
    }
}

/// Returns whether two texts differ in their budget at most.
pub(crate) fn same_study(a: &str, b: &str) -> bool {
    let without_budget =
        |text: &str| text.split_once(BUDGET).map_or_else(|| text.to_owned(), |(text, _)| text.to_owned());
    without_budget(a) == without_budget(b)
}

/// Returns a duration in the largest unit that divides it, at least a second.
fn duration_text(time: Duration) -> String {
    match time.as_secs().max(1) {
        seconds if seconds % 3600 == 0 => format!("{}h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{}m", seconds / 60),
        seconds => format!("{seconds}s"),
    }
}

/// Returns one line of TOML for each flag.
fn flags(config: &Config) -> String {
    let mut text = String::new();
    for (name, value) in config.iter() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} = {}", key(name), toml_value(value));
    }
    text
}

fn toml_value(value: &Value) -> toml::Value {
    match value {
        Value::Bool(on) => (*on).into(),
        Value::Int(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Text(text) => text.as_str().into(),
    }
}

/// Returns a key of TOML, with quotes if it needs them.
fn key(name: &str) -> String {
    let is_bare = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if is_bare { name.to_owned() } else { quoted(name) }
}

/// Returns a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// Returns a text without line ends, for a comment.
fn one_line(text: &str) -> String {
    crate::trial::without_controls(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_in_its_largest_unit() {
        let text = |seconds| duration_text(Duration::from_secs(seconds));
        assert_eq!([28_800, 5400, 90, 0].map(text), ["8h", "90m", "90s", "1s"]);
    }

    #[test]
    fn a_changed_budget_is_the_same_study_and_any_other_change_is_not() {
        let text = "[load]\nconcurrency = 4\n\n[budget]\ntrials = 4\n";
        assert!(same_study(text, &text.replace("trials = 4", "time = \"8h\"")));
        assert!(!same_study(text, &text.replace("concurrency = 4", "concurrency = 5")));
    }
}
