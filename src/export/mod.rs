//! A configuration as something to run elsewhere. Every format is one file and one line in [`EXPORTERS`].

mod json;
mod shell;

use crate::store::{Scored, Study};

pub use shell::quote;

/// What is exported.
#[derive(Debug)]
pub struct Winner<'a> {
    pub study: &'a Study,
    pub scored: &'a Scored,
}

pub trait Exporter: Sync {
    /// The name after `--format`.
    fn name(&self) -> &'static str;

    fn summary(&self) -> &'static str;

    /// Whether the file is meant to be run.
    fn executable(&self) -> bool {
        false
    }

    fn export(&self, winner: &Winner<'_>) -> String;
}

pub const EXPORTERS: [&dyn Exporter; 2] = [&shell::Shell, &json::Json];

#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Exporter> {
    EXPORTERS.into_iter().find(|exporter| exporter.name() == name)
}

impl Winner<'_> {
    /// The command without the address that only the trial used, so that the engine's own default or the caller's
    /// arguments decide.
    fn command(&self) -> &[String] {
        let command = self.scored.trial.launch.command.as_slice();
        // The address is what a launch adds last: `--host H --port P`. It stays where a wrapper forwards that port.
        match command {
            [kept @ .., host, _, port, number]
                if host == "--host" && port == "--port" && !kept.iter().any(|word| word.contains(number)) =>
            {
                kept
            }
            _ => command,
        }
    }

    /// The metrics that a reader wants first, as `name value`.
    fn headline(&self) -> Vec<String> {
        let Some(measurement) = self.scored.trial.outcome.measurement() else { return Vec::new() };
        let mut names = vec!["output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"];
        let objective = self.study.objective();
        let constraints = objective.iter().flat_map(|objective| objective.constraints.iter());
        let asked = objective.iter().map(|objective| objective.metric.as_str());
        for name in asked.chain(constraints.map(|constraint| constraint.metric.as_str())) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.into_iter().filter_map(|name| Some(format!("{name} {:.2}", measurement.metric(name)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::objective::Score;
    use crate::trial::{Distribution, Launch, Measurement, Outcome, REDACTED, Trial};

    fn scored() -> Scored {
        let command = "vllm serve my model --max-num-seqs 64 --no-enable-prefix-caching --host 127.0.0.1 --port 23456";
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
        let trial = Trial {
            number: 7,
            proposed_by: "sobol".to_owned(),
            why: None,
            expected_gain: None,
            config: Config::new().with("max-num-seqs", 64_i64).with("enable-prefix-caching", false),
            launch: Launch { command, env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into() },
            started_at: "2030-01-02T03:04:05.678Z".to_owned(),
            startup_s: Some(31.5),
            elapsed_s: 40.25,
            engine_version: Some("0.32.0".to_owned()),
            log: None,
            outcome: Outcome::Measured(measurement),
            probe: None,
        };
        Scored { trial, score: Score::Feasible { value: 250.0 } }
    }

    #[test]
    fn every_format_is_as_reviewed() {
        let objective = serde_json::json!({
            "objective": {"metric": "output_throughput", "goal": "maximize", "constraints": [
                {"metric": "p99_tpot_ms", "at_most": 50.0}
            ]}
        });
        let study = Study {
            id: 1,
            name: "chat".to_owned(),
            definition: objective,
            host: serde_json::Value::Null,
            setpoint_version: "0.1.0".to_owned(),
            created_at: "2030-01-02T03:00:00.000Z".to_owned(),
        };
        for exporter in EXPORTERS {
            insta::assert_snapshot!(exporter.name(), exporter.export(&Winner { study: &study, scored: &scored() }));
        }
    }

    #[expect(clippy::disallowed_methods, reason = "scripts are run to see whether anything in them is code")]
    fn run(script: &std::path::Path) -> std::process::Output {
        std::process::Command::new("sh").arg(script).output().unwrap()
    }

    #[test]
    fn nothing_of_a_database_or_a_server_becomes_code() {
        let study = |name: &str| Study {
            id: 1,
            name: name.to_owned(),
            definition: serde_json::Value::Null,
            host: serde_json::Value::Null,
            setpoint_version: "0.1.0".to_owned(),
            created_at: String::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        let made = directory.path().join("made");
        let code = |end: &str| format!("0.32.0{end}touch {} #", made.display());
        let mut hostile = scored();
        for end in ["\n", "\r\n", "\u{2028}", "\u{85}\n", "'; ", "\"; ", "`", "$(", "\u{1b}[2J\n"] {
            let text = code(end);
            hostile.trial.engine_version = Some(text.clone());
            hostile.trial.started_at.clone_from(&text);
            hostile.trial.launch.command =
                ["true", &text, "50% \\n", "--host", "127.0.0.1", "--port", "1"].map(str::to_owned).to_vec();
            hostile.trial.launch.env = [("GOOD", text.as_str()), (&format!("X=1; {text}"), "1"), (&text, REDACTED)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            for exporter in EXPORTERS {
                let exported = exporter.export(&Winner { study: &study(&text), scored: &hostile });
                assert!(!exported.contains(|c| crate::trial::is_control(c) && c != '\n'), "{end:?}: {exported:?}");
                if exporter.name() == "sh" {
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
