//! Checks the database, its running tuners, and the leftovers of killed ones.

use std::path::Path;

use super::Finding;
use crate::cli::{Global, reap};
use crate::server::log_directory;
use crate::store::{database_path, quick_check};
use crate::tuner::{LeftoverFate, find, holder};

pub(super) async fn look(global: &Global) -> Vec<Finding> {
    let database = database_path(&global.db);
    let mut findings = studies(&database).await;
    findings.push(leftovers(global));
    findings
}

async fn studies(database: &Path) -> Vec<Finding> {
    let shown = database.display();
    if !database.exists() {
        return vec![Finding::ok("database", format!("{shown} does not exist yet"))];
    }
    match quick_check(database).await {
        Err(error) => {
            let hint =
                error.hint().unwrap_or_else(|| "restore it from a copy, or name another one with --db".to_owned());
            vec![Finding::fail("database", error.to_string(), hint)]
        }
        Ok(names) => {
            let count = names.len();
            let held = names.iter().filter_map(|name| {
                let holder = holder(&log_directory(database, name).join("lock"))?;
                Some(Finding::ok("study", format!("{name}: in use by process {holder}")))
            });
            let studies = if count == 1 { "study" } else { "studies" };
            let sound = Finding::ok("database", format!("{shown} is intact and contains {count} {studies}"));
            std::iter::once(sound).chain(held).collect()
        }
    }
}

fn leftovers(global: &Global) -> Finding {
    let found = find(reap::of(global, false));
    match found.iter().filter(|found| found.fate == LeftoverFate::LeftBehind).count() {
        0 => Finding::ok("leftovers", "none"),
        1 => Finding::warn(
            "leftovers",
            "1 process that a killed run has left behind",
            "`setpoint reap` ends it, and so does the next `tune` of its study",
        ),
        left => Finding::warn(
            "leftovers",
            format!("{left} processes that a killed run has left behind"),
            "`setpoint reap` ends them, and so does the next `tune` of their study",
        ),
    }
}
