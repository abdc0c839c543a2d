//! Exports a configuration for use elsewhere. Every format is one file and one line in [`EXPORTERS`].

mod benchmark_report;
mod config_file;
mod container;
mod csv;
mod database;
mod env;
mod json;
mod preset;
mod recipe;
mod run_dir;
mod shell;
mod systemd;
mod variables;
mod yaml;

use std::path::Path;

use crate::engine::Engine;
use crate::facts::{EngineVersion, TrialContext, parse_reported_release};
use crate::import::GpuMemoryUse;
use crate::report::{deployment_gain_text, deployment_text, expectation, flag_lines, gain_text, value_text};
use crate::store::{RankedConfiguration, ScoredTrial};
use crate::study_report::{ConfigurationResults, GuardFindings, StudyReport};
use crate::trial::{LaunchCommand, LaunchWords, REDACTED, without_controls};

use container::ContainerError;
pub(crate) use database::{DATABASE_EXPORTERS, DatabaseExporter, StudyContent, find_database, write_database};
pub(crate) use shell::quote;

/// The trial to export, with its study and all measurements of its configuration.
#[derive(Debug)]
pub(crate) struct ExportedTrial<'a> {
    pub report: &'a StudyReport,
    /// The trial whose command is exported.
    pub scored: &'a ScoredTrial,
    /// Its configuration with all its measurements. `None` if it was not measured.
    pub results: Option<&'a ConfigurationResults>,
    /// Whether the study's context has changed since, so that the trial is not compared with later ones.
    pub is_earlier: bool,
    /// The study's engine. `None` if only the study file describes it.
    pub engine: Option<&'a dyn Engine>,
    /// Release, devices and host of the trial, if they were stored.
    pub context: Option<&'a TrialContext>,
    /// The container image that the user named.
    pub image: Option<&'a str>,
    /// The absolute path of the command's program on this machine. `None` if it is not found.
    pub program: Option<&'a Path>,
}

/// The reason why a trial cannot be written in a format.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error("cannot write CSV: {0}")]
    Csv(#[from] ::csv::Error),
    #[error("cannot write YAML: {0}")]
    Yaml(#[from] serde_saphyr::SerializeError),
    /// The trial or its study lacks a property that the format needs.
    #[error("{problem}")]
    Unsuitable { problem: String, hint: &'static str },
}

impl ExportError {
    fn unsuitable(problem: impl Into<String>, hint: &'static str) -> Self {
        Self::Unsuitable { problem: problem.into(), hint }
    }

    /// Returns the next step for the user.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Container(error) => Some(error.hint()),
            Self::Unsuitable { hint, .. } => Some(hint),
            Self::Csv(_) | Self::Yaml(_) => None,
        }
    }
}

/// One format of `setpoint export`.
pub(crate) trait Exporter: Sync {
    /// Returns the name after `--format`.
    fn name(&self) -> &'static str;

    /// Returns one line for `--help`.
    fn summary(&self) -> &'static str;

    /// Returns whether the file is meant to be run.
    fn executable(&self) -> bool {
        false
    }

    /// Returns whether the server of the export runs in a container, so that the export names its image.
    fn has_image(&self) -> bool {
        false
    }

    /// Returns whether the format needs the trial's command line. Imported trials may lack one.
    fn needs_command(&self) -> bool {
        true
    }

    /// Returns the content of the file.
    ///
    /// # Errors
    /// If the trial cannot be written in this format.
    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError>;

    /// Returns whether the export is a folder with the files of [`files`](Self::files).
    fn is_folder(&self) -> bool {
        false
    }

    /// Returns the files of a folder. `memory` is that of the trial's fullest GPU, if it is known.
    fn files(&self, _winner: &ExportedTrial<'_>, _memory: Option<GpuMemoryUse>) -> Vec<ExportedFile> {
        Vec::new()
    }
}

/// A file of an export that is a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExportedFile {
    /// Without a folder.
    pub name: String,
    pub content: String,
}

/// Every format.
pub(crate) const EXPORTERS: [&dyn Exporter; 16] = [
    &shell::ShellExporter,
    &config_file::ConfigFileExporter,
    &preset::PresetExporter,
    &env::EnvExporter,
    &systemd::SystemdExporter,
    &container::DockerExporter,
    &container::ComposeExporter,
    &container::KubernetesExporter,
    &container::ProductionStackExporter,
    &container::LlmDExporter,
    &container::KserveExporter,
    &recipe::RecipeExporter,
    &json::JsonExporter,
    &csv::CsvExporter,
    &benchmark_report::BenchmarkReportExporter,
    &run_dir::RunDirExporter,
];

/// Returns the format with this name.
#[must_use]
pub(crate) fn find(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.into_iter().find(|exporter| exporter.name() == name)
}

impl ExportedTrial<'_> {
    fn command(&self) -> &[String] {
        deployed_command(&self.scored.trial.launch)
    }

    /// Returns the comments at the top of a file, a line each: study, trial, measurements, release and evidence.
    fn description(&self) -> Vec<String> {
        let trial = &self.scored.trial;
        let mut lines = vec![
            format!("setpoint study {}, trial {}", self.report.study.name, trial.proposal.number),
            self.headline(),
            format!("engine version {}", trial.engine_version.as_deref().unwrap_or("unknown")),
        ];
        lines.extend(self.evidence());
        let is_winner =
            |number| self.report.winner().is_some_and(|place| place.results.ranked.trials.contains(&number));
        if is_winner(trial.proposal.number) {
            lines.extend(self.report.guard.as_ref().and_then(GuardFindings::warning));
        }
        lines
    }

    /// Returns the parts of the command line without secrets.
    ///
    /// # Errors
    /// If the parts are unknown, or if a word was a secret.
    fn parts(&self) -> Result<LaunchWords<'_>, ExportError> {
        self.refuse_secret_words()?;
        self.scored.trial.launch.words().ok_or_else(|| {
            let number = self.scored.trial.proposal.number;
            let problem = format!(
                "the parts of the command line of trial {number} are unknown: an older release or an import stored it"
            );
            ExportError::unsuitable(problem, "export a trial of a study that this release ran, or --format sh")
        })
    }

    /// Returns an error if a word of the command line was a secret, which is not stored.
    fn refuse_secret_words(&self) -> Result<(), ExportError> {
        let words = self.command();
        let Some(at) = words.iter().position(|word| word.contains(REDACTED)) else { return Ok(()) };
        let name = words[at].split_once('=').map_or_else(|| words[at.saturating_sub(1)].as_str(), |(name, _)| name);
        let problem = format!("the command line contains a secret, which was not stored: {}", without_controls(name));
        Err(ExportError::unsuitable(
            problem,
            "use --format sh and insert the secret, or give it to the engine by a variable",
        ))
    }

    /// Returns the release of the engine, or the newest known one.
    fn release(&self, engine: &dyn Engine) -> EngineVersion {
        let reported = self.scored.trial.engine_version.as_deref().and_then(parse_reported_release);
        reported.unwrap_or_else(|| engine.newest_release())
    }

    /// Returns one line: the times of measurement, and the means of the metrics that a reader looks for first.
    fn headline(&self) -> String {
        let Some(standing) = self.results else {
            let trial = &self.scored.trial;
            let text = format!("not measured: {} {}", trial.outcome.name(), trial.outcome.reason().unwrap_or_default());
            return text.trim_end().to_owned();
        };
        let dates: Vec<_> = standing.measured_trials.iter().map(|scored| scored.trial.started_at.as_str()).collect();
        let mut of = if dates.len() == 1 { String::new() } else { format!("means of {}: ", dates.len()) };
        if self.report.objective.as_ref().is_some_and(|objective| objective.joint.is_some()) {
            of.push_str("the worst of the workloads, ");
        }
        format!("measured {}: {of}{}", dates.join(", "), self.headline_metrics(standing).join(", "))
    }

    /// Returns the metrics of the headline, as `name value`.
    fn headline_metrics(&self, standing: &ConfigurationResults) -> Vec<String> {
        let mut names = vec!["output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"];
        let objective = &self.report.objective;
        let constraints = objective.iter().flat_map(crate::objective::Objective::limits);
        let asked = objective.iter().map(|objective| objective.metric.as_str());
        for name in asked.chain(constraints.map(|constraint| constraint.metric.as_str())) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.into_iter().filter_map(|name| Some(format!("{name} {:.2}", standing.metric(name)?.mean))).collect()
    }

    /// Returns the evidence for the configuration, one item per line: its value, and its gains over the defaults and
    /// over today's deployment by all measurements.
    fn evidence(&self) -> Vec<String> {
        let Some(standing) = self.results else { return Vec::new() };
        let ranked = &standing.ranked;
        let metric = &self.report.value_name();
        let mut lines = vec![value_text(metric, ranked)];
        if standing.is_over_a_limit() {
            lines.push("over a limit of the objective".to_owned());
        }
        if let Some(expected) = ranked.expected {
            lines.push(format!("expected by a model of all measurements: {metric} {}", expectation(expected)));
        }
        let is_other = |baseline: &&RankedConfiguration| {
            baseline.first.trial.proposal.number != ranked.first.trial.proposal.number
        };
        if let Some(baseline) = self.report.baseline.as_ref().filter(is_other) {
            lines.push(format!("engine's defaults: {}", value_text(metric, baseline)));
            lines.push(gain_text(self.report.gain(ranked)));
        }
        let deployment = self.report.deployment.as_ref();
        if deployment.is_none_or(|deployment| is_other(&deployment))
            && let Some(text) = deployment_text(self.report)
        {
            lines.push(text);
            lines.push(deployment_gain_text(self.report.gain_over_deployment(ranked)));
        }
        lines.extend(flag_lines(self.report, ranked));
        lines
    }
}

/// Returns the command without the host and port of the trial. The exported server listens on the engine's default
/// address, or on the one in the caller's arguments.
#[must_use]
pub(crate) fn deployed_command(launch: &LaunchCommand) -> &[String] {
    let Some(words) = launch.words() else { return without_address(&launch.command) };
    // The address stays if another word contains the port, as for a wrapper that forwards it.
    let port = words.address.last();
    let others = || words.program.iter().chain(words.flags).chain(words.arguments);
    let is_used = port.is_some_and(|port| others().any(|word| word.contains(port.as_str())));
    let address = if is_used { 0 } else { words.address.len() };
    &launch.command[..launch.command.len() - address]
}

/// Returns a command of unknown parts without `--host H --port P` at its end. The address stays if another word contains
/// the port.
fn without_address(command: &[String]) -> &[String] {
    match command {
        [kept @ .., host, _, port, number]
            if host == "--host" && port == "--port" && !kept.iter().any(|word| word.contains(number)) =>
        {
            kept
        }
        _ => command,
    }
}

#[cfg(test)]
impl<'a> ExportedTrial<'a> {
    /// Returns a trial without results of its configuration and without facts on engine and machine.
    fn without_results(report: &'a StudyReport, scored: &'a ScoredTrial) -> Self {
        Self {
            report,
            scored,
            results: None,
            is_earlier: false,
            engine: None,
            context: None,
            image: None,
            program: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engines::default_engine;
    use crate::facts::TrialDevices;
    use crate::objective::Score;
    use crate::objective::{Constraint, MetricLimit};
    use crate::store::ExpectedConfiguration;
    use crate::study_report::{DeploymentOutcome, DeploymentStatus};
    use crate::trial::{CommandParts, Distribution, LaunchCommand, Measurement, Outcome, Proposal, Trial};

    /// Returns a measured trial of a launch with known parts.
    pub(super) fn scored() -> ScoredTrial {
        let command = "vllm serve my model --no-enable-prefix-caching --max-num-seqs 64 --host 127.0.0.1 --port 23456";
        let mut command: Vec<_> = command.split(' ').map(str::to_owned).collect();
        let model = command.drain(2..4).collect::<Vec<_>>().join(" ");
        command.insert(2, model);
        let env = [("HF_TOKEN", REDACTED), ("OMP_NUM_THREADS", "8")];
        let latency = Some(Distribution { mean: 12.5, p99: 40.0, ..Distribution::default() });
        let measurement = Measurement {
            completed: 10,
            duration_s: 2.0,
            total_output_tokens: 500,
            ttft_ms: latency,
            tpot_ms: latency,
            ..Measurement::default()
        };
        let config = Config::new().with("max-num-seqs", 64_i64).with("enable-prefix-caching", false);
        let trial = Trial {
            proposal: Proposal { config, ..Proposal::example(7, "sobol") },
            launch: LaunchCommand {
                command,
                parts: Some(CommandParts { program: 2, flags: 3, arguments: 0, address: 4 }),
                env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
                is_prepared: false,
                is_fast: false,
            },
            started_at: "2030-01-02T03:04:05.678Z".to_owned(),
            startup_s: Some(31.5),
            elapsed_s: 40.25,
            engine_version: Some("0.32.0".to_owned()),
            log: None,
            outcome: Outcome::Measured(measurement),
            probe: None,
        };
        ScoredTrial { trial, score: Score::Feasible { value: 250.0 } }
    }

    /// Returns a report of a study of an engine that has containers.
    pub(super) fn example(study: &str) -> StudyReport {
        let mut report = StudyReport::example(study);
        report.study.definition["engine"]["kind"] = "vllm".into();
        report
    }

    fn context() -> TrialContext {
        let device = TrialDevices {
            name: Some("NVIDIA H100 80GB HBM3".to_owned()),
            count: Some(1),
            compute_capability: Some("9.0".to_owned()),
            ..TrialDevices::default()
        };
        TrialContext { device, ..TrialContext::default() }
    }

    #[test]
    fn every_format_is_as_reviewed() {
        let limit = Constraint { metric: "p99_tpot_ms".to_owned(), limit: MetricLimit::AtMost(50.0) };
        let again = {
            let mut again = scored();
            let Outcome::Measured(measurement) = &mut again.trial.outcome else { panic!("it was measured") };
            measurement.duration_s = 2.5;
            again.trial.proposal.number = 12;
            again.trial.started_at = "2030-01-02T05:04:05.678Z".to_owned();
            ScoredTrial { score: Score::Feasible { value: 200.0 }, ..again }
        };
        let ranked = |number, value, range| {
            let mut first = scored();
            first.trial.proposal.number = number;
            RankedConfiguration {
                first,
                trials: vec![number],
                value,
                measurements: 2,
                range,
                expected: None,
                is_confirmed: false,
            }
        };
        let expected = Some(ExpectedConfiguration { trial: 7, value: 231.5, deviation: 0.02, feasible: 1.0 });
        let standing = ConfigurationResults {
            ranked: RankedConfiguration { expected, ..ranked(7, 225.0, (200.0, 250.0)) },
            measured_trials: vec![scored(), again],
        };
        let baseline = ranked(0, 220.0, (210.0, 230.0));
        let scored = scored();
        let outcome = DeploymentOutcome::Measured;
        let mut report = StudyReport {
            baseline: Some(baseline),
            deployment: Some(ranked(1, 215.0, (214.0, 216.0))),
            deployment_status: Some(DeploymentStatus { source: "serve.sh, line 12".to_owned(), outcome }),
            ..example("chat")
        };
        report.objective.as_mut().unwrap().constraints.push(limit);
        let definition = &mut report.study.definition;
        definition["workload"] =
            serde_json::json!({"kind": "random", "input_len": 200, "output_len": {"min": 50, "max": 60}});
        definition["load"] = serde_json::json!({"concurrency": 8, "requests": 10});
        let engine = default_engine();
        let context = context();
        let winner = ExportedTrial {
            results: Some(&standing),
            engine: Some(&*engine),
            context: Some(&context),
            program: Some(Path::new("/opt/engine/bin/vllm")),
            ..ExportedTrial::without_results(&report, &scored)
        };
        for exporter in EXPORTERS {
            // The presets of another engine are refused.
            let text = exporter.export(&winner).unwrap_or_else(|error| error.to_string());
            insta::assert_snapshot!(exporter.name(), text);
        }
    }

    #[expect(clippy::disallowed_methods, reason = "scripts are run to see whether anything in them is code")]
    fn run(script: &Path) -> std::process::Output {
        // A program that has no effect stands in for `docker`.
        let programs = script.parent().unwrap();
        let docker = programs.join("docker");
        if !docker.exists() {
            std::os::unix::fs::symlink("/bin/true", docker).unwrap();
        }
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        std::process::Command::new("sh").arg(script).env("PATH", path).output().unwrap()
    }

    /// Returns the keys at the top of each document.
    fn keys(yaml: &str) -> Vec<Vec<String>> {
        let documents = <saphyr::Yaml<'_> as saphyr::LoadableYamlNode<'_>>::load_from_str(yaml).unwrap();
        let keys = |document: &saphyr::Yaml<'_>| {
            document.as_mapping().unwrap().keys().map(|key| key.as_str().unwrap().to_owned()).collect()
        };
        documents.iter().map(keys).collect()
    }

    #[test]
    fn nothing_of_a_database_or_a_server_becomes_code() {
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let code = |end: &str| format!("0.32.0{end}touch {} #", made.display());
        let (mut hostile, engine, context) = (scored(), default_engine(), context());
        hostile.trial.launch.parts = Some(CommandParts { program: 1, flags: 3, arguments: 0, address: 4 });
        for end in ["\n", "\r\n", "\u{2028}", "\u{85}\n", "'; ", "\"; ", "`", "$(", "\u{1b}[2J\n"] {
            let text = code(end);
            hostile.trial.engine_version = Some(text.clone());
            hostile.trial.started_at.clone_from(&text);
            let command = ["true", &text, "--a", &text, "--b=50% \\n", "--host", "127.0.0.1", "--port", "1"];
            hostile.trial.launch.command = command.map(str::to_owned).to_vec();
            hostile.trial.launch.parts = Some(CommandParts { program: 1, flags: 3, arguments: 0, address: 4 });
            hostile.trial.launch.env = [("GOOD", text.as_str()), (&format!("X=1; {text}"), "1"), (&text, REDACTED)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            for exporter in EXPORTERS {
                let report = example(&text);
                let exported = exporter.export(&ExportedTrial {
                    engine: Some(&*engine),
                    context: Some(&context),
                    image: Some("registry/image:1"),
                    program: Some(Path::new("/bin/true")),
                    ..ExportedTrial::without_results(&report, &hostile)
                });
                let exported = match exported {
                    Ok(exported) => exported,
                    // A format without a spelling of the text writes nothing.
                    Err(ExportError::Unsuitable { .. })
                        if ["env", "systemd", "llama-preset"].contains(&exporter.name()) =>
                    {
                        continue;
                    }
                    Err(error) => panic!("{}: {error}", exporter.name()),
                };
                assert!(!exported.contains(|c| crate::trial::is_control(c) && c != '\n'), "{end:?}: {exported:?}");
                let is_yaml = exporter.has_image() && !exporter.executable();
                if is_yaml {
                    let found = keys(&exported);
                    let known: &[&[&str]] = match exporter.name() {
                        "compose" => &[&["name", "services"]],
                        "production-stack" => &[&["servingEngineSpec"]],
                        "llm-d" => &[&["decode", "modelArtifacts", "prefill", "routing"]],
                        _ => {
                            &[&["apiVersion", "kind", "metadata", "spec"], &["apiVersion", "kind", "metadata", "spec"]]
                        }
                    };
                    assert_eq!(found, known, "{end:?}: {exported}");
                }
                if exporter.executable() {
                    let script = directory.path().join("a.sh");
                    std::fs::write(&script, exported).unwrap();
                    let output = run(&script);
                    assert!(output.status.success() && !made.exists(), "{end:?}: {output:?}");
                }
            }
        }
    }

    #[test]
    fn a_word_keeps_its_characters_through_the_shell() {
        for word in ["a b", "it's", "50% \\n \u{1b}[31m 'x' \u{202e}", "a\nb", "\t"] {
            let directory = tempfile::tempdir().unwrap();
            let script = directory.path().join("a.sh");
            std::fs::write(&script, format!("printf %s {}", quote(word))).unwrap();
            assert_eq!(run(&script).stdout, word.as_bytes(), "{word:?}");
        }
    }
}
