//! Exports a service of systemd that starts the server.

use std::fmt::Write;

use super::{ExportError, ExportedTrial, Exporter, quote};
use crate::stats::f64_to_u64;
use crate::trial::{is_control, without_controls};

pub(super) struct SystemdExporter;

/// The port of the service. The trial's own was a free port of its moment.
const SERVICE_PORT: &str = "8000";

/// The limit of a start: this multiple of the measured time, and seconds more.
const START_FACTOR: f64 = 3.0;
const START_ADDITION_S: f64 = 60.0;

impl Exporter for SystemdExporter {
    fn name(&self) -> &'static str {
        "systemd"
    }

    fn summary(&self) -> &'static str {
        "a service of systemd, with the program's path on this machine"
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        winner.refuse_secret_words()?;
        let server = Server::of(winner)?;
        let mut unit = Unit::default();
        for comment in winner.description() {
            unit.comment(&comment);
        }
        let name = service_name(&winner.report.study.name);
        unit.comment(&format!("Install it as /etc/systemd/system/{name}.service, then:"));
        unit.comment(&format!("systemctl daemon-reload && systemctl enable --now {name}"));
        unit.line("\n[Unit]");
        let description = format!("setpoint study {}, trial {}", winner.report.study.name, server.trial);
        unit.line(&format!("Description={}", specifiers(&without_controls(&description))));
        unit.line("Wants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=exec");
        unit.comment("Without User= the service runs as root: name the user that owns the model and the caches.");
        unit.line("#User=");
        write_variables(&mut unit, winner, &name)?;
        unit.line(&format!("ExecStart={}", server.exec_start()));
        server.write_start_limit(&mut unit, winner);
        unit.comment("TERM goes to the server only, which ends its workers. Remaining processes are then killed.");
        unit.line("KillMode=mixed\nTimeoutStopSec=90\nRestart=on-failure\nRestartSec=10\nLimitNOFILE=65535");
        unit.line("\n[Install]\nWantedBy=multi-user.target");
        Ok(unit.0)
    }
}

/// The text of a unit file.
#[derive(Default)]
struct Unit(String);

impl Unit {
    fn line(&mut self, line: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    /// Writes a comment of one line. systemd continues no comment behind a backslash.
    fn comment(&mut self, text: &str) {
        self.line(&format!("# {}", without_controls(text)));
    }
}

/// The command of the service.
struct Server<'a> {
    trial: u32,
    program: String,
    arguments: Vec<&'a str>,
    /// The URL that answers once the server is ready; `None` if port or path are unknown.
    health: Option<String>,
}

impl<'a> Server<'a> {
    fn of(winner: &'a ExportedTrial<'_>) -> Result<Self, ExportError> {
        let launch = &winner.scored.trial.launch;
        let (first, arguments) = winner
            .command()
            .split_first()
            .ok_or_else(|| ExportError::unsuitable("the trial has no command", "export a trial that was launched"))?;
        let program = winner.program.and_then(|path| path.to_str()).ok_or_else(|| {
            let problem = format!("systemd needs the path of the program, and PATH does not lead to {first:?}");
            let hint = "export on the machine that runs the service, with the PATH of the engine";
            ExportError::unsuitable(without_controls(&problem), hint)
        })?;
        let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let is_replaced = winner.command().len() < launch.command.len();
        if is_replaced {
            arguments.extend(["--port", SERVICE_PORT]);
        }
        let path = winner.engine.and_then(|engine| engine.readiness().health);
        let health = path.zip(value_of("--port", &arguments)).map(|(path, port)| {
            let host = match value_of("--host", &arguments) {
                None | Some("0.0.0.0" | "::" | "") => "127.0.0.1".to_owned(),
                Some(host) if host.contains(':') => format!("[{host}]"),
                Some(host) => host.to_owned(),
            };
            format!("http://{host}:{port}{path}")
        });
        Ok(Self { trial: winner.scored.trial.proposal.number, program: program.to_owned(), arguments, health })
    }

    /// Returns the command with one flag per line.
    fn exec_start(&self) -> String {
        let mut text = specifiers(&unit_word(&self.program));
        for word in &self.arguments {
            text.push_str(if word.starts_with("--") { " \\\n  " } else { " " });
            text.push_str(&argument(word));
        }
        text
    }

    /// Writes the wait for the server's readiness, and the time limit of a start.
    fn write_start_limit(&self, unit: &mut Unit, winner: &ExportedTrial<'_>) {
        let Some(url) = &self.health else {
            unit.comment("systemd regards the service as started at once: the URL of its health is unknown.");
            return;
        };
        unit.comment(
            "The service counts as started when the server answers. A server that has ended is not waited for.",
        );
        let wait = "do kill -0 $MAINPID || exit 1; sleep 1; done";
        let loop_text = format!("until curl --silent --fail --max-time 5 --output /dev/null {}; {wait}", quote(url));
        unit.line(&format!("ExecStartPost=/bin/sh -c {}", argument(&loop_text)));
        let others = winner.results.iter().flat_map(|results| &results.measured_trials);
        let times = others.chain([winner.scored]).filter_map(|scored| scored.trial.startup_s);
        let Some(longest) = times.reduce(f64::max) else {
            unit.comment("The time of a start was not measured.");
            unit.line("TimeoutStartSec=infinity");
            return;
        };
        let limit = f64_to_u64((longest * START_FACTOR + START_ADDITION_S).ceil());
        unit.comment(&format!(
            "The longest measured start took {longest:.1} s. The limit is {START_FACTOR} times as long and a minute"
        ));
        unit.comment("more: a start without cached files and compiled code takes longer.");
        unit.line(&format!("TimeoutStartSec={limit}"));
    }
}

/// Writes the variables, and the file of those that are secrets.
fn write_variables(unit: &mut Unit, winner: &ExportedTrial<'_>, name: &str) -> Result<(), ExportError> {
    let variables = winner.variables();
    for (name, value) in variables.values {
        // systemd drops such a variable with a warning.
        if value.contains(|c: char| c.is_ascii_control() && c != '\n' && c != '\t') {
            let problem = format!("systemd accepts no control character in a variable: {name}");
            return Err(ExportError::unsuitable(problem, "use --format sh"));
        }
        unit.line(&format!("Environment={}", specifiers(&unit_word(&format!("{name}={value}")))));
    }
    for name in variables.impossible {
        unit.comment(&format!("omitted, because no variable can have this name: {name}"));
    }
    if !variables.secrets.is_empty() {
        unit.comment("Secrets were not stored. The engine reads them from variables, not from LoadCredential= files.");
        unit.comment(&format!("Write a line NAME=value into this file for each of: {}", variables.secrets.join(", ")));
        unit.comment("Without the file the service does not start.");
        unit.line(&format!("EnvironmentFile=/etc/setpoint/{name}.env"));
    }
    Ok(())
}

/// Returns the last value of a flag.
fn value_of<'a>(flag: &str, arguments: &[&'a str]) -> Option<&'a str> {
    let mut found = None;
    for (index, argument) in arguments.iter().enumerate() {
        if let Some(rest) = argument.strip_prefix(flag) {
            found = rest
                .strip_prefix('=')
                .or_else(|| arguments.get(index + 1).copied().filter(|_| rest.is_empty()))
                .or(found);
        }
    }
    found
}

/// Returns a name for a unit of this study.
fn service_name(study: &str) -> String {
    let name: String =
        study.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    format!("setpoint-{}", name.trim_matches(['-', '.']))
}

/// Escapes the specifiers of systemd, such as `%h`.
fn specifiers(text: &str) -> String {
    text.replace('%', "%%")
}

/// Quotes a word of a command. systemd replaces `$NAME` and `${NAME}`, also in quotes.
fn argument(word: &str) -> String {
    specifiers(&unit_word(word)).replace('$', "$$")
}

/// Quotes a word for a unit file with escapes of C if it needs quotes. NUL bytes are removed, because neither arguments
/// nor variables can contain them.
fn unit_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut text = String::from("\"");
    for c in word.chars().filter(|c| *c != '\0') {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            c if is_control(c) => {
                let _ = write!(text, "\\U{:08x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engines::default_engine;
    use crate::objective::Score;
    use crate::store::ScoredTrial;
    use crate::study_report::StudyReport;
    use crate::trial::{CommandLine, LaunchCommand, Measurement, Outcome, Trial};

    fn scored(arguments: &str, address: &str) -> ScoredTrial {
        let [arguments, address] = [arguments, address].map(|line| shlex::split(line).unwrap());
        let program = vec!["vllm".to_owned(), "serve".to_owned()];
        let line = CommandLine::from_parts(program, "m", Vec::new(), arguments, address);
        let mut trial = Trial::example(7, "auto", Outcome::Measured(Measurement::default()));
        trial.launch = LaunchCommand::redacted(&line, [("A_TOKEN".to_owned(), "x".to_owned())].into());
        trial.startup_s = Some(100.2);
        ScoredTrial { trial, score: Score::Feasible { value: 1.0 } }
    }

    fn export(scored: &ScoredTrial, program: Option<&str>) -> Result<String, ExportError> {
        let (report, engine) = (StudyReport::example("a study"), default_engine());
        let program = program.map(Path::new);
        SystemdExporter.export(&ExportedTrial {
            program,
            engine: Some(&*engine),
            ..ExportedTrial::without_results(&report, scored)
        })
    }

    #[test]
    fn a_word_has_the_quotes_and_escapes_of_systemd() {
        for (word, expected) in [
            ("--seed", "--seed"),
            ("", "\"\""),
            (";", "\";\""),
            ("50%", "50%%"),
            ("a $B ${C}", "\"a $$B $${C}\""),
            ("{\"a\": 'b\\n'}", "\"{\\\"a\\\": 'b\\\\n'}\""),
            ("a\nb\u{1b}\u{2028}\0", "\"a\\nb\\U0000001b\\U00002028\""),
            ("\u{e9}", "\"\u{e9}\""),
        ] {
            assert_eq!(argument(word), expected, "{word:?}");
        }
    }

    #[test]
    fn the_service_waits_for_the_server_at_the_address_that_it_has() {
        let address = "--host 127.0.0.1 --port 23456";
        for (arguments, address, port, url) in [
            ("", address, "--port 8000", "http://127.0.0.1:8000/health"),
            ("--host 10.0.0.1", "--port 23456", "--port 8000", "http://10.0.0.1:8000/health"),
            ("--host :: --port=9", "", "--port=9", "http://127.0.0.1:9/health"),
            ("--host ::1 --port 9", "", "--port 9", "'http://[::1]:9/health'"),
        ] {
            let text = export(&scored(arguments, address), Some("/bin/vllm")).unwrap();
            assert!(text.contains(port) && text.contains(&format!("/dev/null {url}; do")), "{text}");
            assert!(text.contains("\nTimeoutStartSec=361\n"), "{text}");
        }
        let text = export(&scored("", ""), Some("/bin/vllm")).unwrap();
        assert!(!text.contains("ExecStartPost") && !text.contains("TimeoutStartSec"), "{text}");
    }

    #[test]
    fn secrets_come_from_a_file_and_a_program_without_a_path_is_refused() {
        let text = export(&scored("", ""), Some("/opt/50% of/vllm")).unwrap();
        assert!(text.contains("\nEnvironmentFile=/etc/setpoint/setpoint-a-study.env\n"), "{text}");
        assert!(
            text.contains("for each of: A_TOKEN\n") && text.contains("\nExecStart=\"/opt/50%% of/vllm\" serve m\n"),
            "{text}"
        );
        let error = export(&scored("", ""), None).unwrap_err().to_string();
        assert_eq!(error, "systemd needs the path of the program, and PATH does not lead to \"vllm\"");
        let error = export(&scored("--api-key x", ""), Some("/bin/vllm")).unwrap_err().to_string();
        assert!(error.contains("a secret, which was not stored: --api-key"), "{error}");
    }
}
