//! Exports a trial as a section of llama.cpp's own file of presets.

use std::fmt::Write;

use super::{ExportError, ExportedTrial, Exporter, quote};
use crate::trial::{is_control, without_controls};

pub(super) struct PresetExporter;

const HINT: &str = "use --format sh, which starts every command line";

impl Exporter for PresetExporter {
    fn name(&self) -> &'static str {
        "llama-preset"
    }

    fn summary(&self) -> &'static str {
        "the file of `llama-server --models-preset FILE`, with all flags of the trial"
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let words = winner.parts()?;
        let unsuitable = |problem: String| ExportError::unsuitable(problem, HINT);
        let Some(engine) = winner.engine else {
            let problem = "an engine that only the study file describes has no known file of presets";
            return Err(unsuitable(problem.to_owned()));
        };
        let arguments: Vec<_> = words.flags.iter().chain(words.arguments).cloned().collect();
        let entries = engine.preset(&arguments, winner.release(engine));
        let entries = entries.ok_or_else(|| unsuitable(format!("{} has no file of presets", engine.display_name())))?;
        let entries = entries.map_err(|problem| unsuitable(without_controls(&problem).into_owned()))?;
        if words.model.contains(|c| [';', '#'].contains(&c) || is_control(c)) {
            return Err(unsuitable(format!("the path of the model has a mark of comments: {:?}", words.model)));
        }

        let mut comments = winner.description();
        let name = section_name(&winner.report.study.name);
        let program = words.program.iter().filter(|word| Some(word.as_str()) != engine.model_flag());
        let start: Vec<_> = program.map(|word| quote(word)).collect();
        comments.push(format!("Start: {} --models-preset FILE", start.join(" ")));
        comments.push(format!("Requests name the model {name}."));
        comments.extend(winner.variables().comments());
        let mut file = String::new();
        for comment in comments {
            // Writing to a string cannot fail.
            let _ = writeln!(file, "; {}", without_controls(&comment));
        }
        let _ = write!(file, "version = 1\n\n[{name}]\nmodel = {}\nload-on-startup = true\n", words.model);
        for (key, value) in entries {
            let _ = writeln!(file, "{key} = {value}");
        }
        Ok(file)
    }
}

/// Returns the name of a section. The reader ends it at a bracket.
fn section_name(study: &str) -> String {
    study.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::{built_in, default_engine};
    use crate::export::tests::scored;
    use crate::study_report::StudyReport;
    use crate::trial::{CommandLine, LaunchCommand};

    #[test]
    fn the_flags_of_the_trial_are_a_section_and_other_engines_have_none() {
        let report = StudyReport::example("chat at 8 users]");
        let words = |line: &str| shlex::split(line).unwrap();
        let line = CommandLine::from_parts(
            words("/opt/llama-server -m"),
            "/m/a.gguf",
            words("--parallel 8 --no-cont-batching"),
            words("-c 8192"),
            words("--host 127.0.0.1 --port 1 --metrics"),
        );
        let mut scored = scored();
        scored.trial.launch = LaunchCommand::redacted(&line, [("GGML_X".to_owned(), "1".to_owned())].into());
        scored.trial.engine_version = Some("b11434-unknown".to_owned());
        let (llama, vllm) = (built_in("llama.cpp").unwrap(), default_engine());
        let winner = ExportedTrial { engine: Some(&*llama), ..ExportedTrial::without_results(&report, &scored) };
        let text = PresetExporter.export(&winner).unwrap();
        let (comments, content): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with(';'));
        assert!(comments.contains(&"; Start: /opt/llama-server --models-preset FILE"), "{text}");
        assert!(comments.iter().any(|line| line.contains("GGML_X")), "{text}");
        let expected = "version = 1||[chat-at-8-users-]|model = /m/a.gguf|load-on-startup = true|cont-batching = false|\
                        ctx-size = 8192|parallel = 8";
        assert_eq!(content.join("|"), expected);
        let other = PresetExporter.export(&ExportedTrial { engine: Some(&*vllm), ..winner }).unwrap_err();
        assert_eq!(other.to_string(), "vLLM has no file of presets");
    }
}
