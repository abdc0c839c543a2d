//! Reads the document of a study from the database.

use crate::engines::built_in;
use crate::export::{deployed_command, quote};
use crate::observation::is_running;
use crate::report::{CardCommands, PageOptions, StudyDocument, page_fronts};
use crate::store::{Store, StoreError, Study};
use crate::study_report::{NoWinner, StudyDetails, StudyReport};

/// The default database, which commands need not name.
const DEFAULT_DATABASE: &str = "setpoint.db";

/// The database and the program as the shown commands name them.
#[derive(Clone, Debug)]
pub(crate) struct CommandNames {
    pub program: String,
    pub database: String,
}

impl CommandNames {
    /// Returns the words of a command about a study, quoted for a shell.
    fn words(&self, command: &[&str], study: &str) -> Vec<String> {
        let mut words = vec![quote(&self.program)];
        words.extend(command.iter().map(|word| (*word).to_owned()));
        words.extend(["--study".to_owned(), quote(study)]);
        if self.database != DEFAULT_DATABASE {
            words.extend(["--db".to_owned(), quote(&self.database)]);
        }
        words
    }

    /// Returns the commands that launch and export the best configuration of a study. Without one, nothing is launched.
    #[must_use]
    pub(crate) fn of_winner(&self, report: &StudyReport) -> CardCommands {
        let mut export = self.words(&["export", "--format", "sh"], &report.study.name);
        export.extend(["-o", "serve.sh"].map(str::to_owned));
        let launch = report.winner().map(|winner| &winner.results.ranked.first.trial.launch);
        // A shell treats `NAME=value` as a variable only if the name is not quoted.
        let variables = launch.iter().flat_map(|launch| &launch.env);
        let variables = variables.map(|(name, value)| format!("{name}={}", quote(value)));
        let words = launch.iter().flat_map(|launch| deployed_command(launch)).map(|word| quote(word));
        CardCommands { launch: variables.chain(words).collect(), export }
    }

    /// Returns further questions about a study, with their purposes.
    fn questions(&self, study: &str) -> Vec<(&'static str, String)> {
        [("the ranking", "best"), ("all trials", "trials"), ("this report", "report")]
            .map(|(purpose, command)| (purpose, self.words(&[command], study).join(" ")))
            .to_vec()
    }
}

/// Reads the document of a study. `timelines_url` is the address of a timeline on a live page; without it the document
/// contains all of them.
///
/// # Errors
/// If the database cannot be read.
pub(crate) async fn read_document(
    store: &Store,
    study: Study,
    names: &CommandNames,
    timelines_url: Option<String>,
) -> Result<StudyDocument, StoreError> {
    let engine = study.definition["engine"]["kind"].as_str().and_then(built_in);
    let is_simulated = engine.is_some_and(|engine| !engine.runs_model());
    let is_running = is_running(store, &study);
    let has_series = timelines_url.is_none();
    let details = Box::pin(StudyDetails::read(store, study, is_simulated, &page_fronts(), has_series)).await?;
    let report = &details.report;
    let no_winner = match report.winner() {
        Some(_) => None,
        None => Some(NoWinner::read(store, report).await?),
    };
    let options = PageOptions {
        commands: names.of_winner(report),
        questions: names.questions(&report.study.name),
        is_running,
        no_winner: no_winner.as_ref(),
        timelines_url,
    };
    Ok(StudyDocument::new(&details, &options))
}
