//! `report`: a study as one HTML file, as Markdown or as JSON.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::GlobalOptions;
use super::export::write;
use super::failure::{CommandFailure, USAGE};
use super::output::{note, print, print_json, print_styled};
use super::query::StudyChoice;
use crate::pages::{CommandNames, read_document};
use crate::report::{PageError, report_html, report_markdown};
use crate::store::Store;

#[derive(Debug, Args)]
pub(super) struct ReportCommand {
    #[command(flatten)]
    which: StudyChoice,
    /// Format of the report. HTML is one file that needs no network.
    #[arg(long, value_enum, default_value_t = ReportFormat::Html)]
    format: ReportFormat,
    /// File to write. Without it the report goes to standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Html,
    Md,
    Json,
}

impl ReportCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        if self.format == ReportFormat::Html && self.output.is_none() && std::io::stdout().is_terminal() {
            return Err(CommandFailure::new(USAGE, "the HTML report is not written to a terminal")
                .with_hint("name a file, such as -o report.html, or choose --format md"));
        }
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let document = read_document(&store, study, &command_names(global), None).await?;
        store.close().await;
        let text = match self.format {
            ReportFormat::Html => report_html(&document.to_json()?)?,
            ReportFormat::Md => report_markdown(&document),
            ReportFormat::Json => match &self.output {
                None => return print_json(&document.to_json()?),
                Some(_) => format!("{:#}\n", document.to_json()?),
            },
        };
        let Some(path) = self.output else {
            // Scripts of the page must not change. Its document has no control characters.
            return if self.format == ReportFormat::Html { print_styled(&text) } else { print(&text) };
        };
        write(&path, &text, false).map_err(|error| {
            CommandFailure::unexpected(format!("cannot write {}: {error}", path.display()))
                .with_hint("name another file with -o")
        })?;
        note(global, &format!("the report is in {}", path.display()));
        Ok(())
    }
}

/// Returns the names of program and database in the commands that a page shows.
pub(super) fn command_names(global: &GlobalOptions) -> CommandNames {
    let program = std::env::args().next().unwrap_or_else(|| "setpoint".to_owned());
    CommandNames { program, database: global.db.clone() }
}

impl From<PageError> for CommandFailure {
    fn from(error: PageError) -> Self {
        Self::unexpected(error.to_string())
    }
}

impl From<serde_json::Error> for CommandFailure {
    fn from(error: serde_json::Error) -> Self {
        Self::unexpected(error.to_string())
    }
}
