//! `import`: stores results of earlier measurements as a study of imported trials.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::GlobalOptions;
use super::failure::{CommandFailure, INVALID};
use super::output::{note, print};
use crate::import::{ImportError, ImportedDocument, ImportedStudy, read_path};
use crate::objective::{Goal, Objective};
use crate::store::Store;
use crate::trial::Measurement;

/// Longest part of an unread line that is printed, in characters.
const MAX_TEXT: usize = 70;

/// Reads documents with results and stores them as a study of imported trials.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Readable are: outputs of `vllm bench serve` (text, Markdown, --save-result) and `vllm bench sweep` (its folder or \
summary.csv), tables of vLLM's nightly benchmarks (Markdown, JSON by columns), launch lines with their errors, lines of \
used GPU memory, folders of `export --format run-dir`, GuideLLM's benchmarks.json, AIPerf's \
profile_export_aiperf.json, Optuna's SQLite storage (FILE or FILE#STUDY), and this program's own JSON and CSV.

A file that is cut off or malformed is an error that names the line, and then nothing of the command is stored. \
Exit codes: 0 done, 2 wrong arguments, 3 a file cannot be read.")]
pub(super) struct ImportCommand {
    /// Files or folders with results
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Name of the study: a new one, or one of imported trials [default: the name of the first file]
    #[arg(long, value_name = "NAME")]
    study: Option<String>,
    /// Metric that ranks the trials, higher is better [default: `output_throughput`, or the document's objective]
    #[arg(long, value_name = "METRIC", conflicts_with = "minimize")]
    maximize: Option<String>,
    /// Metric that ranks the trials, lower is better
    #[arg(long, value_name = "METRIC")]
    minimize: Option<String>,
}

impl ImportCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let objective = self.objective()?;
        let mut documents = Vec::new();
        for file in &self.files {
            documents.push(read_path(file).await.map_err(|error| failure(&error, self.files.len()))?);
        }
        let name = self.study.clone().unwrap_or_else(|| default_name(&self.files[0]));
        let store = Store::open(&global.db, true).await?;
        let earlier = store.study(&name).await?;
        if earlier.as_ref().is_some_and(|study| !study.is_imported()) {
            let message = format!("study {name:?} has measured trials; imported ones would be compared with them");
            return Err(CommandFailure::new(INVALID, message)
                .with_hint("name another study with --study; `prior = [\"NAME\"]` in a study file uses its trials"));
        }
        let kept = earlier.as_ref().and_then(crate::store::Study::objective);
        if let (Some(kept), Some(asked)) = (&kept, &objective)
            && kept != asked
        {
            let message = format!("study {name:?} is ranked by {}, not by {}", kept.metric, asked.metric);
            return Err(CommandFailure::new(INVALID, message).with_hint("name another study with --study"));
        }
        let study = ImportedStudy::new(&documents, objective.or(kept));
        let stored = store.import(&name, &study.objective, &study.trials).await?;
        store.close().await;
        for (file, document) in self.files.iter().zip(&documents) {
            for unread in &document.unread {
                note(global, &unread_text(unread));
            }
            print(&summary(file, document))?;
        }
        let known = study.trials.len() - stored;
        let known = if known > 0 { format!("; {known} were stored before") } else { String::new() };
        print(&format!("study {name}: {stored} {} stored{known}", plural(stored, "trial")))
    }

    fn objective(&self) -> Result<Option<Objective>, CommandFailure> {
        let asked = self.maximize.as_ref().map(|metric| (metric, Goal::Maximize));
        let Some((metric, goal)) = asked.or(self.minimize.as_ref().map(|metric| (metric, Goal::Minimize))) else {
            return Ok(None);
        };
        if !Measurement::is_known(metric) {
            let message = format!("there is no metric {metric:?}");
            let hint = format!("did you mean {}?", Measurement::nearest(metric));
            return Err(CommandFailure::new(super::failure::USAGE, message).with_hint(hint));
        }
        Ok(Some(Objective {
            metric: metric.clone(),
            goal,
            constraints: Vec::new(),
            joint: None,
            price_per_hour: None,
            load_goal: None,
        }))
    }
}

fn failure(error: &ImportError, files: usize) -> CommandFailure {
    let nothing = if files > 1 { "; nothing of the command was stored" } else { "" };
    let failure = CommandFailure::new(INVALID, format!("{error}{nothing}"));
    match &error.hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

/// Returns the file's name without its extension. A folder may be named `.`.
fn default_name(file: &Path) -> String {
    let whole = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    whole.file_stem().map_or_else(|| "import".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

fn summary(file: &Path, document: &ImportedDocument) -> String {
    let failed = document.results.iter().filter(|result| result.failure.is_some()).count();
    let (read, unread) = (document.results.len(), document.unread.len());
    let mut text = format!("{}: {read} {} read", file.display(), plural(read, "result"));
    if failed > 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, " ({failed} failed)");
    }
    if unread > 0 {
        let _ = write!(text, ", {unread} {} not read", plural(unread, "line"));
    }
    text
}

fn unread_text(unread: &crate::import::UnreadLine) -> String {
    let text: String = unread.text.chars().take(MAX_TEXT).collect();
    let more = if text.len() < unread.text.len() { "..." } else { "" };
    format!("{}:{}: not read, {}: {text}{more}", unread.file.display(), unread.line, unread.reason)
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}
