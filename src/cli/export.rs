//! `export`: writes the winning configuration in the chosen format, for instance as a script that starts the server.

use std::path::PathBuf;

use clap::Args;

use super::GlobalOptions;
use super::failure::{CommandFailure, INVALID, USAGE};
use super::folder::write_folder;
use super::output::{note, print};
use super::query::{StudyChoice, find_trial, no_winner};
use crate::engine::resolve_program;
use crate::engines::built_in;
use crate::export::{
    DATABASE_EXPORTERS, DatabaseExporter, EXPORTERS, ExportError, ExportedTrial, Exporter, StudyContent, find,
    find_database, write_database,
};
use crate::import::{GpuMemoryUse, MEMORY_FILE, TOTAL_MEMORY};
use crate::stats::f64_to_u64;
use crate::store::{RankedConfiguration, ScoredTrial, Store};
use crate::study_report::{ConfigurationResults, NoWinner, StudyReport};
use crate::trial::Outcome;

#[derive(Debug, Args)]
pub(super) struct ExportCommand {
    /// Format of the export.
    #[arg(long, default_value = "sh", value_parser = clap::builder::PossibleValuesParser::new(
        EXPORTERS
            .iter()
            .map(|exporter| (exporter.name(), exporter.summary()))
            .chain(DATABASE_EXPORTERS.iter().map(|exporter| (exporter.name(), exporter.summary())))
            .map(|(name, summary)| clap::builder::PossibleValue::new(name).help(summary))
    ))]
    format: String,
    /// Container image of the engine, for formats with a container. Default: the image of the measured release.
    #[arg(long, value_name = "IMAGE", value_parser = parse_image)]
    image: Option<String>,
    /// Number of the trial to export. Default: the best.
    #[arg(long, value_name = "N")]
    trial: Option<u32>,
    #[command(flatten)]
    which: StudyChoice,
    /// File to write, or folder of run-dir. Default: standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl ExportCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let report = StudyReport::read(&store, study, 1).await?;
        self.check_image()?;
        if let Some(exporter) = find_database(&self.format) {
            return self.write_study(&store, &report, exporter).await;
        }
        let (scored, standing) = match (self.trial, report.winner()) {
            (Some(number), _) => {
                let scored = find_trial(&store, &report.study, number).await?;
                let ranked = store.measurements_of(&report.study, number).await?;
                let ranked = ranked.filter(|_| scored.trial.outcome.measurement().is_some());
                let standing = match ranked {
                    Some(ranked) => {
                        let expected = report.expectation(ranked.first.trial.proposal.number);
                        Some(
                            ConfigurationResults::read(
                                &store,
                                &report.study,
                                RankedConfiguration { expected, ..ranked },
                            )
                            .await?,
                        )
                    }
                    None => None,
                };
                (scored, standing)
            }
            (None, Some(winner)) => (winner.results.ranked.first.clone(), Some(winner.results.clone())),
            (None, None) => return Err(no_winner(&report.study, &NoWinner::read(&store, &report).await?)),
        };
        if let Outcome::Rejected(rejection) = &scored.trial.outcome {
            let message =
                format!("trial {} was rejected before launch: {}", scored.trial.proposal.number, rejection.message);
            return Err(CommandFailure::new(INVALID, message).with_hint("export a trial that was launched"));
        }
        // Every value that clap accepts is a registered format.
        let Some(exporter) = find(&self.format) else { return Err(CommandFailure::new(USAGE, "unknown format")) };
        let number = scored.trial.proposal.number;
        if scored.trial.launch.command.is_empty() && exporter.needs_command() {
            let message = format!("trial {number} was imported without its launch line");
            return Err(
                CommandFailure::new(INVALID, message).with_hint("export a trial with a command, or --format json")
            );
        }
        let contexts = store.contexts(&report.study).await?;
        let stored = contexts.get(&number);
        let engine = report.study.definition["engine"]["kind"].as_str().and_then(built_in);
        let program = scored.trial.launch.command.first().and_then(|program| resolve_program(program));
        let program = program.and_then(|program| std::path::absolute(program).ok());
        let exported = ExportedTrial {
            report: &report,
            scored: &scored,
            results: standing.as_ref(),
            is_earlier: stored.is_some_and(|stored| stored.is_earlier),
            engine: engine.as_deref(),
            context: stored.and_then(|stored| stored.context.as_ref()),
            image: self.image.as_deref(),
            program: program.as_deref(),
        };
        if exporter.is_folder() {
            let Some(path) = &self.output else {
                let message = format!("--format {} writes a folder", self.format);
                return Err(CommandFailure::new(USAGE, message).with_hint("name a new folder with -o"));
            };
            if scored.trial.outcome.measurement().is_none() {
                let message = format!("trial {number} was not measured, so that it has no results to write");
                return Err(CommandFailure::new(INVALID, message).with_hint("export a trial that was measured"));
            }
            let memory = memory_use(&store, &report, &scored).await?;
            if memory.is_none() {
                note(global, &format!("the GPU memory of trial {number} is unknown: {MEMORY_FILE} is left out"));
            }
            return write_folder(path, &exporter.files(&exported, memory));
        }
        let text = exporter.export(&exported).map_err(|error| export_failure(&self.format, &error))?;
        let Some(path) = self.output else { return print(&text) };
        write(&path, &text, exporter.executable()).map_err(|error| {
            CommandFailure::unexpected(format!("cannot write {}: {error}", path.display()))
                .with_hint("name another file with -o")
        })
    }
}

impl ExportCommand {
    /// Refuses an image for a format without a container.
    fn check_image(&self) -> Result<(), CommandFailure> {
        if self.image.is_none() || find(&self.format).is_some_and(Exporter::has_image) {
            return Ok(());
        }
        let containers = EXPORTERS.iter().filter(|exporter| exporter.has_image());
        let names: Vec<_> = containers.map(|exporter| exporter.name()).collect();
        let hint = format!("omit --image, or choose one of {}", names.join(", "));
        Err(CommandFailure::new(USAGE, format!("--format {} has no container image", self.format)).with_hint(hint))
    }

    /// Writes the whole study as the database of another program.
    async fn write_study(
        &self,
        store: &Store,
        report: &StudyReport,
        exporter: &dyn DatabaseExporter,
    ) -> Result<(), CommandFailure> {
        let usage = |message: &str, hint: &str| {
            Err(CommandFailure::new(USAGE, format!("--format {} {message}", exporter.name())).with_hint(hint))
        };
        if self.trial.is_some() {
            return usage("writes the whole study", "omit --trial");
        }
        let Some(path) = &self.output else {
            return usage("writes a database, which needs a file", "name it with -o, for instance -o study.db");
        };
        let content = StudyContent::read(store, report).await?;
        write_database(path, exporter, &content)
            .await
            .map_err(|error| CommandFailure::unexpected(error.to_string()).with_hint(error.hint()))
    }
}

/// Returns the failure for a trial that cannot be written in a format.
fn export_failure(format: &str, error: &ExportError) -> CommandFailure {
    let message = format!("--format {format}: {error}");
    match error.hint() {
        Some(hint) => CommandFailure::new(INVALID, message).with_hint(hint),
        None => CommandFailure::unexpected(message),
    }
}

/// Reads the name of an image: `[REGISTRY/]NAME[:TAG][@DIGEST]`.
fn parse_image(text: &str) -> Result<String, String> {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(is_known) {
        return Ok(text.to_owned());
    }
    Err("is not an image, such as registry/name:tag".to_owned())
}

/// Returns the memory that the trial used on its fullest GPU, and the memory of its smallest one. `None` without a GPU.
async fn memory_use(
    store: &Store,
    report: &StudyReport,
    scored: &ScoredTrial,
) -> Result<Option<GpuMemoryUse>, CommandFailure> {
    const MIB: u64 = 1 << 20;
    let mib = |gib: f64| f64_to_u64((gib * 1024.0).round());
    let metric = |name: &str| scored.trial.outcome.measurement()?.metric(name);
    let imported = metric(TOTAL_MEMORY).map(mib);
    let contexts = store.contexts(&report.study).await?;
    let context = contexts.get(&scored.trial.proposal.number).and_then(|stored| stored.context.as_ref());
    let total = context.and_then(|context| context.device.memory).map(|bytes| bytes / MIB).or(imported);
    let used = metric("gpu_memory_gib_max").map(mib);
    Ok(used.zip(total).map(|(used_mib, total_mib)| GpuMemoryUse { used_mib, total_mib }))
}

/// Writes a temporary file beside the target and renames it, so that a full disk does not leave half a script. A file
/// that exists under the temporary name stays unchanged, and the export fails.
pub(super) fn write(path: &std::path::Path, text: &str, executable: bool) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    std::fs::File::create_new(&part)?.write_all(text.as_bytes())?;
    if executable {
        let mut permissions = std::fs::metadata(&part)?.permissions();
        permissions.set_mode(permissions.mode() | 0o111);
        std::fs::set_permissions(&part, permissions)?;
    }
    std::fs::rename(part, path)
}

#[cfg(test)]
mod tests {
    use super::write;

    #[test]
    fn a_file_beside_the_target_stays_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let (target, other) = (directory.path().join("serve.sh"), directory.path().join("serve.sh.part"));
        std::fs::write(&other, "mine").unwrap();
        write(&target, "new", true).unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
