//! Exports a trial as the engine's own file of flags.

use super::yaml::write_yaml;
use super::{ExportError, ExportedTrial, Exporter, quote};
use crate::trial::without_controls;

pub(super) struct ConfigFileExporter;

const HINT: &str = "use --format sh, which starts every command line";

impl Exporter for ConfigFileExporter {
    fn name(&self) -> &'static str {
        "vllm-yaml"
    }

    fn summary(&self) -> &'static str {
        "the file of `vllm serve MODEL --config FILE`, with all flags of the trial"
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let words = winner.parts()?;
        let unsuitable = |problem: String| ExportError::unsuitable(problem, HINT);
        let Some(engine) = winner.engine else {
            return Err(unsuitable(
                "an engine that only the study file describes has no known file of flags".to_owned(),
            ));
        };
        if engine.passes_config_file(words.program) {
            return Err(unsuitable(
                "the study's command itself passes a file of flags, and only one is read".to_owned(),
            ));
        }
        let arguments: Vec<_> = words.flags.iter().chain(words.arguments).cloned().collect();
        let file = engine.config_file_entries(&arguments, winner.release(engine));
        let file = file.ok_or_else(|| unsuitable(format!("{} has no file of flags", engine.display_name())))?;
        let file = file.map_err(|problem| unsuitable(without_controls(&problem).into_owned()))?;

        let mut comments = winner.description();
        let start = words.program.iter().map(String::as_str).chain([words.model, file.flag]);
        comments.push(format!("Start: {} FILE", start.map(quote).collect::<Vec<_>>().join(" ")));
        comments.push("Later arguments override the file, for instance --host 0.0.0.0 --port 8000.".to_owned());
        comments.extend(winner.variables().comments());
        if file.entries.is_empty() {
            comments.push("The trial has the engine's defaults: there is no flag to set.".to_owned());
        }
        write_yaml(&comments, &[file.entries])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::read_deployment_text;
    use crate::engine::Engine;
    use crate::engines::default_engine;
    use crate::objective::Score;
    use crate::store::ScoredTrial;
    use crate::study_report::StudyReport;
    use crate::trial::{CommandLine, LaunchCommand, Measurement, Outcome, REDACTED, Trial};

    fn scored(program: &str, arguments: &str) -> ScoredTrial {
        let [program, flags] = [program, arguments].map(|line| shlex::split(line).unwrap());
        let address = ["--host", "127.0.0.1", "--port", "1"].map(str::to_owned).to_vec();
        let line = CommandLine::from_parts(program, "org/m", flags, Vec::new(), address);
        let mut trial = Trial::example(7, "auto", Outcome::Measured(Measurement::default()));
        trial.launch = LaunchCommand::redacted(&line, [("HF_TOKEN".to_owned(), "hf_x".to_owned())].into());
        ScoredTrial { trial, score: Score::Feasible { value: 1.0 } }
    }

    fn export(engine: Option<&dyn Engine>, scored: &ScoredTrial) -> Result<String, ExportError> {
        let report = StudyReport::example("chat");
        ConfigFileExporter.export(&ExportedTrial { engine, ..ExportedTrial::without_results(&report, scored) })
    }

    #[test]
    fn the_reader_of_deployments_reads_the_flags_of_the_trial() {
        let arguments = "--max-num-seqs 64 --no-enable-prefix-caching --served-model-name a 'b c' --enforce-eager \
                         --hf-overrides '{\"a\": \"x: \\\"1\\\" $b #c\"}' --gpu-memory-utilization 0.9 --dtype auto";
        let engine = default_engine();
        let text = export(Some(&*engine), &scored("vllm serve", arguments)).unwrap();
        assert!(text.contains("# Start: vllm serve org/m --config FILE\n"), "{text}");
        assert!(text.contains("HF_TOKEN") && !text.contains(REDACTED) && !text.contains("--port 1\n"), "{text}");
        let read = read_deployment_text("serve.yaml", &text).unwrap();
        let table = engine.flag_table(engine.newest_release()).unwrap();
        let parse = |words: &[String]| table.parse(words).unwrap();
        assert_eq!(parse(&read.args), parse(&shlex::split(arguments).unwrap()), "{text}");
    }

    #[test]
    fn a_trial_without_a_file_of_flags_is_refused_with_the_reason() {
        let vllm = default_engine();
        let engine = Some(&*vllm);
        let problem = |engine, scored: &ScoredTrial| export(engine, scored).unwrap_err().to_string();
        assert!(problem(None, &scored("serve", "--a 1")).contains("only the study file describes"));
        assert!(problem(engine, &scored("vllm serve --config a.yaml", "")).contains("itself passes a file"));
        assert!(problem(engine, &scored("vllm serve", "--api-key k")).contains("was not stored: --api-key"));
        assert!(problem(engine, &scored("vllm serve", "b")).contains("\"b\" is no flag"));
        let mut unknown = scored("vllm serve", "");
        unknown.trial.launch.parts = None;
        assert!(problem(engine, &unknown).contains("the parts of the command line of trial 7 are unknown"));
    }
}
