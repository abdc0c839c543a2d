//! A study resolved and validated, without a server.

use std::path::Path;

use super::engine::{self, Answer};
use super::tell::{as_json, as_text};
use crate::cli::output::{print, print_json};
use crate::cli::{Failure, Format, Global};
use crate::job::{Job, Search};
use crate::rule::{Finding, Removal, unchecked};
use crate::store::{Store, database_path};
use crate::tuner::{Estimate, Installed, detect, estimate};

/// Everything that can be said of a study before its first launch.
pub(super) struct Checked<'a> {
    pub(super) job: &'a Job,
    pub(super) installed: Installed,
    pub(super) search: Search<'a>,
    pub(super) removal: Removal,
    /// What the rules have to say of the engine's defaults, at worst.
    pub(super) defaults: Option<Finding>,
    /// What the installed engine says, where it can be asked.
    pub(super) preflight: Option<Answer>,
    pub(super) unchecked: Vec<String>,
    pub(super) estimate: Estimate,
}

pub(super) async fn check(file: &Path, explain: bool, format: Format, global: &Global) -> Result<(), Failure> {
    let job = Job::read(file)?;
    let installed = detect(&job).await;
    job.check_release(installed.version)?;
    let search = job.search(installed.version, installed.device, installed.host_memory);
    let removal = search.removal();
    let store = if database_path(&global.db).exists() { Some(Store::open(&global.db, false).await?) } else { None };
    let possible = removal.complete.then_some(removal.remaining);
    let estimate = estimate(&job, installed.device, possible, store.as_ref()).await?;
    if let Some(store) = store {
        store.close().await;
    }
    let findings = search.findings(&search.space.fixed);
    let defaults = findings.first().cloned();
    let preflight = engine::ask(&job, &installed, findings, &removal).await?;
    let unchecked = unchecked(&search.space, &search.facts);
    let checked = Checked { job: &job, installed, search, removal, defaults, preflight, unchecked, estimate };
    match format {
        Format::Table => print(&as_text(&checked, explain))?,
        Format::Json => print_json(&as_json(&checked))?,
    }
    match job.engine.missing_program(file) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
