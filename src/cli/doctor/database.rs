//! Checks the database, its running tuners, and the leftovers of killed ones.

use std::path::Path;

use super::CheckResult;
use crate::cli::{GlobalOptions, reap};
use crate::server::log_directory;
use crate::store::{database_path, quick_check};
use crate::tuner::{LeftoverFate, find_leftovers, holder};

pub(super) async fn check(global: &GlobalOptions) -> Vec<CheckResult> {
    let database = database_path(&global.db);
    let mut findings = studies(&database).await;
    findings.push(leftovers(global));
    findings
}

async fn studies(database: &Path) -> Vec<CheckResult> {
    let shown = database.display();
    if !database.exists() {
        return vec![CheckResult::ok("database", format!("{shown} does not exist yet"))];
    }
    match quick_check(database).await {
        Err(error) => {
            let hint =
                error.hint().unwrap_or_else(|| "restore it from a copy, or name another one with --db".to_owned());
            vec![CheckResult::fail("database", error.to_string(), hint)]
        }
        Ok(names) => {
            let count = names.len();
            let held = names.iter().filter_map(|name| {
                let holder = holder(&log_directory(database, name).join("lock"))?;
                Some(CheckResult::ok("study", format!("{name}: in use by process {holder}")))
            });
            let studies = if count == 1 { "study" } else { "studies" };
            let sound = CheckResult::ok("database", format!("{shown} is intact and contains {count} {studies}"));
            std::iter::once(sound).chain(held).collect()
        }
    }
}

fn leftovers(global: &GlobalOptions) -> CheckResult {
    let found = find_leftovers(reap::launch_filter(global, false));
    match found.iter().filter(|found| found.fate == LeftoverFate::LeftBehind).count() {
        0 => CheckResult::ok("leftovers", "none"),
        1 => CheckResult::warn(
            "leftovers",
            "1 process that a killed run has left behind",
            "`setpoint reap` ends it, and so does the next `tune` of its study",
        ),
        left => CheckResult::warn(
            "leftovers",
            format!("{left} processes that a killed run has left behind"),
            "`setpoint reap` ends them, and so does the next `tune` of their study",
        ),
    }
}
