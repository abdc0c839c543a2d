//! `export`: the winning configuration as something to run.

use std::path::PathBuf;

use clap::Args;

use super::Global;
use super::failure::{Failure, INVALID, USAGE};
use super::output::print;
use super::query::{Conclusion, Which, best, find_trial, nothing_feasible, standing};
use crate::export::{EXPORTERS, Winner, find};
use crate::store::{Ranked, Store, Verdict};
use crate::trial::Outcome;

#[derive(Debug, Args)]
pub(super) struct Export {
    /// What to write.
    #[arg(long, default_value = "sh", value_parser = clap::builder::PossibleValuesParser::new(
        EXPORTERS.iter().map(|exporter| clap::builder::PossibleValue::new(exporter.name()).help(exporter.summary()))
    ))]
    format: String,
    /// Another trial than the best.
    #[arg(long, value_name = "N")]
    trial: Option<u32>,
    #[command(flatten)]
    which: Which,
    /// Where to write it; standard output where this is absent.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Export {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let Conclusion { baseline, verdict } = Conclusion::of(&store, &study).await?;
        let (scored, ranked) = if let Some(number) = self.trial {
            let scored = find_trial(&store, &study, number).await?;
            let ranked = store.measurements_of(&study, number).await?;
            let ranked = ranked.filter(|_| scored.trial.outcome.measurement().is_some());
            (scored, ranked.map(|ranked| with_expectation(ranked, verdict.as_ref())))
        } else {
            let Some(best) = best(&store, &study, 1).await?.pop() else {
                return Err(nothing_feasible(&store, &study).await?);
            };
            (best.first.clone(), Some(best))
        };
        if let Outcome::Rejected(rejection) = &scored.trial.outcome {
            let message =
                format!("trial {} was rejected before launch: {}", scored.trial.proposal.number, rejection.message);
            return Err(Failure::new(INVALID, message).with_hint("export a trial that ran"));
        }
        // Every value that clap accepts is a registered format.
        let Some(exporter) = find(&self.format) else { return Err(Failure::new(USAGE, "unknown format")) };
        let standing = match ranked {
            Some(ranked) => Some(standing(&store, &study, ranked).await?),
            None => None,
        };
        let (standing, baseline) = (standing.as_ref(), baseline.as_ref());
        let text = exporter.export(&Winner { study: &study, scored: &scored, standing, baseline });
        let Some(path) = self.output else { return print(&text) };
        write(&path, &text, exporter.executable()).map_err(|error| {
            Failure::unexpected(format!("cannot write {}: {error}", path.display()))
                .with_hint("name another file with -o")
        })
    }
}

/// Adds the expectation of the sampler's model, if it has one of this configuration.
fn with_expectation(ranked: Ranked, verdict: Option<&Verdict>) -> Ranked {
    let number = ranked.first.trial.proposal.number;
    let expected =
        verdict.and_then(|verdict| verdict.ranking.iter().find(|expected| expected.trial == number).copied());
    Ranked { expected, ..ranked }
}

/// Writes beside the target first, so that a full disk does not leave half a script.
fn write(path: &std::path::Path, text: &str, executable: bool) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    std::fs::write(&part, text)?;
    if executable {
        let mut permissions = std::fs::metadata(&part)?.permissions();
        permissions.set_mode(permissions.mode() | 0o111);
        std::fs::set_permissions(&part, permissions)?;
    }
    std::fs::rename(part, path)
}
