//! `check --args-file`: one verdict for each line, from the rules and, with a preflight, from the installed engine.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use futures_util::stream::{Stream, StreamExt, unfold};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt, Lines};

use super::engine::no_preflight;
use crate::cli::GlobalOptions;
use crate::cli::failure::{CommandFailure, INVALID};
use crate::cli::output::{note, print};
use crate::config::Config;
use crate::flag::FlagTable;
use crate::preflight::{Disagreement, Preflight, PreflightError, PreflightVerdict, decide_finding};
use crate::rule::{self, Facts, Finding, Severity};
use crate::stats::to_f64;

/// Lines in progress at a time, so that the rules check one while the engine checks another.
const MAX_CONCURRENT_LINES: usize = 16;

#[derive(serde::Deserialize)]
#[serde(expecting = "an object")]
struct ArgumentLine {
    args: Vec<String>,
}

/// The facts, the flags and the engine of a check.
#[derive(Clone, Copy)]
pub(super) struct ArgsFileCheck<'a> {
    pub(super) facts: &'a Facts<'a>,
    pub(super) table: FlagTable,
    /// The model's name as the engine receives it.
    pub(super) model: &'a str,
    pub(super) preflight: Option<&'a Preflight>,
}

/// The rules' verdict on a line, compared with the engine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineComparison {
    /// The engine gave no verdict.
    Unanswered,
    Agree,
    /// The rules reject, and the engine accepts.
    FalseRejection,
    /// The rules accept, and the engine rejects.
    FalseAcceptance,
}

impl EngineComparison {
    fn new(disagreement: Option<&Disagreement>) -> Self {
        match disagreement {
            None => Self::Agree,
            Some(Disagreement::FalseRejection(_)) => Self::FalseRejection,
            Some(Disagreement::FalseAcceptance(_)) => Self::FalseAcceptance,
        }
    }
}

/// Agreement between the rules and the engine, as counts of lines.
#[derive(Default)]
struct AgreementCounts {
    lines: usize,
    agree: usize,
    false_rejections: usize,
    false_acceptances: usize,
    unanswered: usize,
}

/// Prints one verdict per line. A line that cannot be parsed ends the check, after the answers to the lines before it.
pub(super) async fn run(file: &Path, check: ArgsFileCheck<'_>, global: &GlobalOptions) -> Result<(), CommandFailure> {
    let name = if is_standard_input(file) { "standard input".to_owned() } else { file.display().to_string() };
    let opened = open(file).map_err(|error| unreadable(&name, &error))?;
    let Some(preflight) = check.preflight else { return run_rules_only(&name, opened, check) };
    let opened = tokio::fs::File::from_std(opened);
    let begin = Instant::now();
    let answers = lines(&name, tokio::io::BufReader::new(opened).lines()).map(|line| async move {
        let (location, text) = line?;
        check.answer(&read(&text, &location)?.args, preflight).await
    });
    let mut answers = std::pin::pin!(answers.buffered(MAX_CONCURRENT_LINES));
    let mut counts = AgreementCounts::default();
    while let Some(answer) = answers.next().await {
        let (answer, comparison) = answer?;
        counts.count(comparison);
        print(&crate::trial::json_for_terminal(&answer.to_string()))?;
    }
    note(global, &counts.summary(begin.elapsed().as_secs_f64() * 1e3));
    Ok(())
}

/// Checks the lines with the rules only. The rules take microseconds per line, so the input and output are buffered. The
/// output is flushed whenever the reader would wait.
fn run_rules_only(name: &str, opened: std::fs::File, check: ArgsFileCheck<'_>) -> Result<(), CommandFailure> {
    let mut answers = BufWriter::new(std::io::stdout().lock());
    let result = answer_all(name, BufReader::new(opened), check, &mut answers);
    answers.flush()?;
    result
}

fn answer_all(
    name: &str,
    mut lines: BufReader<std::fs::File>,
    check: ArgsFileCheck<'_>,
    answers: &mut impl Write,
) -> Result<(), CommandFailure> {
    let mut text = String::new();
    for number in 1_usize.. {
        if lines.buffer().is_empty() {
            answers.flush()?;
        }
        text.clear();
        if lines.read_line(&mut text).map_err(|error| unreadable(name, &error))? == 0 {
            break;
        }
        if text.trim().is_empty() {
            continue;
        }
        let line = read(&text, &format_args!("{name}:{number}"))?;
        let (config, findings) = check.findings(without_model(&line.args));
        let repair = findings.first().and_then(|finding| check.repair(&config, finding));
        serde_json::to_writer(&mut *answers, &verdict(findings.first(), repair.as_ref()))
            .map_err(std::io::Error::from)?;
        answers.write_all(b"\n")?;
    }
    Ok(())
}

fn read(text: &str, location: &dyn std::fmt::Display) -> Result<ArgumentLine, CommandFailure> {
    serde_json::from_str(text).map_err(|error| {
        CommandFailure::new(INVALID, format!("{location}: {error}"))
            .with_hint(r#"each line must be an object such as {"args": ["--max-num-seqs", "64"]}"#)
    })
}

/// Returns the arguments without a leading model name. The model of our own command line is used instead.
fn without_model(args: &[String]) -> &[String] {
    match args {
        [first, flags @ ..] if !first.starts_with('-') => flags,
        _ => args,
    }
}

/// Returns the rules' part of one answer.
fn verdict(finding: Option<&Finding>, repair: Option<&Config>) -> Json {
    let Some(finding) = finding else {
        return json!({"verdict": "accept", "rule": null, "severity": null, "message": null, "repair": null});
    };
    json!({
        "verdict": if finding.severity.rejects() { "reject" } else { "warn" },
        "rule": finding.rule,
        "severity": finding.severity.name(),
        "message": finding.message,
        "repair": repair,
    })
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}

fn open(file: &Path) -> std::io::Result<std::fs::File> {
    if is_standard_input(file) {
        return Ok(std::io::stdin().as_fd().try_clone_to_owned()?.into());
    }
    std::fs::File::open(file)
}

/// Returns the non-empty lines, each with its file and line number, read on demand.
fn lines(
    name: &str,
    lines: Lines<tokio::io::BufReader<tokio::fs::File>>,
) -> impl Stream<Item = Result<(String, String), CommandFailure>> {
    unfold((lines, 0_usize), move |(mut lines, mut number)| async move {
        loop {
            number += 1;
            let item = match lines.next_line().await {
                Ok(None) => return None,
                Ok(Some(text)) if text.trim().is_empty() => continue,
                Ok(Some(text)) => Ok((format!("{name}:{number}"), text)),
                Err(error) => Err(unreadable(&format!("{name}:{number}"), &error)),
            };
            return Some((item, (lines, number)));
        }
    })
}

fn unreadable(name: &str, error: &std::io::Error) -> CommandFailure {
    CommandFailure::new(INVALID, format!("cannot read {name}: {error}"))
        .with_hint("--args-file needs a readable UTF-8 file with one JSON object per line; `-` is standard input")
}

impl AgreementCounts {
    /// Counts a line.
    fn count(&mut self, comparison: EngineComparison) {
        self.lines += 1;
        match comparison {
            EngineComparison::Unanswered => self.unanswered += 1,
            EngineComparison::Agree => self.agree += 1,
            EngineComparison::FalseRejection => self.false_rejections += 1,
            EngineComparison::FalseAcceptance => self.false_acceptances += 1,
        }
    }

    fn summary(&self, elapsed_ms: f64) -> String {
        let Self { lines, agree, false_rejections, false_acceptances, unanswered } = self;
        let each = elapsed_ms / to_f64((*lines).max(1));
        let unanswered = if *unanswered > 0 { format!(", {unanswered} without an answer") } else { String::new() };
        format!(
            "{lines} lines: rules and engine agree on {agree}; the rules reject {false_rejections} that the engine \
             accepts and accept {false_acceptances} that it rejects{unanswered}; {each:.1} ms per line"
        )
    }
}

impl ArgsFileCheck<'_> {
    /// Returns the answer to one line, and the comparison of rules and engine.
    async fn answer(self, args: &[String], preflight: &Preflight) -> Result<(Json, EngineComparison), CommandFailure> {
        let args = without_model(args);
        let (config, findings) = self.findings(args);
        match self.ask(preflight, args).await {
            Err(error) if error.is_final() => Err(no_preflight(&error)),
            Err(error) => {
                let mut answer = self.verdict_with_repair(&config, findings.first(), None).await;
                answer["engine"] = json!({"verdict": null, "message": error.to_string()});
                Ok((answer, EngineComparison::Unanswered))
            }
            Ok(engine_verdict) => {
                let (finding, disagreement) = decide_finding(findings, &engine_verdict);
                let mut answer = self.verdict_with_repair(&config, finding.as_ref(), Some(preflight)).await;
                answer["engine"] = match engine_verdict {
                    PreflightVerdict::Accept { warnings, .. } => {
                        json!({"verdict": "accept", "message": null, "warnings": warnings})
                    }
                    PreflightVerdict::Reject { stage, message } => {
                        json!({"verdict": "reject", "stage": stage.name(), "message": message})
                    }
                };
                if disagreement.is_some() {
                    answer["disagreement"] = json!(true);
                }
                Ok((answer, EngineComparison::new(disagreement.as_ref())))
            }
        }
    }

    /// Returns the configuration as far as the release's flag table can parse the arguments, with the findings of this
    /// parser and the rules. Errors of the parser count as findings of the rule `A1`, which checks flags and values.
    fn findings(self, args: &[String]) -> (Config, Vec<Finding>) {
        let (config, errors) = self.table.parse_lenient(args);
        let parse_errors = errors.into_iter().map(|error| {
            let (severity, message) = (Severity::Arguments, error.to_string());
            Finding { rule: "A1", severity, message, changes: Vec::new() }
        });
        let findings = parse_errors.chain(rule::check(&config, self.facts)).collect();
        (config, findings)
    }

    /// Returns a configuration that the rules accept. `None` if the finding is a warning, or if no repair is known.
    /// `config` already lacks the arguments that the parser refused, so such a finding needs no change of its own.
    fn repair(self, config: &Config, finding: &Finding) -> Option<Config> {
        match finding {
            warning if !warning.severity.rejects() => None,
            rejection if rejection.changes.is_empty() => rule::repair(config, self.facts),
            rejection => rule::repair_rejection(config, Some(rejection), self.facts),
        }
    }

    /// Returns the verdict with a repair. If an engine is given, the repair is included only if the engine accepts it.
    async fn verdict_with_repair(self, config: &Config, finding: Option<&Finding>, engine: Option<&Preflight>) -> Json {
        let repair = match (finding.and_then(|finding| self.repair(config, finding)), engine) {
            (Some(repair), Some(engine)) => self.accepts(engine, &repair).await.then_some(repair),
            (repair, _) => repair,
        };
        verdict(finding, repair.as_ref())
    }

    async fn accepts(self, engine: &Preflight, config: &Config) -> bool {
        match self.table.render(config) {
            Ok(args) => self.ask(engine, &args).await.is_ok_and(|verdict| verdict.rejection().is_none()),
            Err(_) => false,
        }
    }

    async fn ask(self, preflight: &Preflight, args: &[String]) -> Result<PreflightVerdict, PreflightError> {
        let line: Vec<_> = std::iter::once(self.model.to_owned()).chain(args.iter().cloned()).collect();
        preflight.ask(&line, &BTreeMap::new()).await
    }
}
