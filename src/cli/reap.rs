//! `reap`: finds and ends the servers that a killed tuner left behind.

use std::time::Duration;

use clap::Args;

use super::failure::{CommandFailure, UNEXPECTED};
use super::output::{note, print, print_json};
use super::{GlobalOptions, OutputFormat, parse_duration};
use crate::report::{leftovers_json, leftovers_table};
use crate::server::ProcessOrigin;
use crate::store::database_path;
use crate::tuner::{LeftoverFate, ReapSummary, find_leftovers, reap, study_folders};

#[derive(Debug, Args)]
#[command(
    after_help = "Only processes that setpoint has started are ended, and none of a study whose `tune` still runs."
)]
pub(super) struct ReapCommand {
    /// Include the servers of every database, not only of `--db`. This is the default if that database does not exist.
    #[arg(long)]
    all: bool,
    /// List the servers and end none.
    #[arg(long)]
    dry_run: bool,
    /// Time that a server has to end before it is killed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    grace: Duration,
    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
}

impl ReapCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let database = database_path(&global.db);
        let of = launch_filter(global, self.all);
        let reaped = if self.dry_run {
            ReapSummary { processes: find_leftovers(of), stop_commands: Vec::new() }
        } else {
            reap(of, &study_folders(&database), self.grace).await?
        };
        match self.format {
            OutputFormat::Table if reaped.processes.is_empty() => {}
            OutputFormat::Table => print(&leftovers_table(&reaped.processes))?,
            OutputFormat::Json => print_json(&leftovers_json(&reaped))?,
        }
        for (command, ended) in &reaped.stop_commands {
            match ended {
                Ok(()) => note(global, &format!("ran the stop command `{}`", command.join(" "))),
                Err(error) => note(global, &format!("a pending stop command failed: {error}")),
            }
        }
        let fates: Vec<_> = reaped.processes.iter().map(|found| &found.fate).collect();
        note(global, &summary(&fates, self.dry_run));
        let survived = count(&fates, |fate| *fate == LeftoverFate::Survived);
        if survived == 0 {
            return Ok(());
        }
        Err(CommandFailure::new(UNEXPECTED, format!("{survived} processes survived SIGKILL"))
            .with_hint("the kernel cannot end them, for instance because a device hangs; see `ps` and `dmesg`"))
    }
}

/// Returns a filter for the launches of this database. It accepts every launch if `all` is set or there is no database.
pub(super) fn launch_filter(global: &GlobalOptions, all: bool) -> impl Fn(&ProcessOrigin) -> bool {
    let database = database_path(&global.db);
    let all = all || !database.exists();
    move |origin| all || origin.is_of(&database)
}

fn count(fates: &[&LeftoverFate], is: impl Fn(&LeftoverFate) -> bool) -> usize {
    fates.iter().filter(|fate| is(fate)).count()
}

fn summary(fates: &[&LeftoverFate], dry_run: bool) -> String {
    let running = count(fates, |fate| matches!(fate, LeftoverFate::Running(_)));
    let kept =
        if running == 0 { String::new() } else { format!("; not touched, because their tuner is running: {running}") };
    if dry_run {
        return format!("{} processes left behind{kept}", count(fates, |fate| *fate == LeftoverFate::LeftBehind));
    }
    let survived = count(fates, |fate| *fate == LeftoverFate::Survived);
    match count(fates, |fate| *fate == LeftoverFate::Ended) {
        0 if survived == 0 => format!("nothing was left behind{kept}"),
        ended => format!("ended {ended} processes that a killed run had left behind{kept}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survivor_is_not_reported_as_nothing() {
        let (ended, survived) = (&LeftoverFate::Ended, &LeftoverFate::Survived);
        assert_eq!(summary(&[], false), "nothing was left behind");
        assert_eq!(summary(&[survived], false), "ended 0 processes that a killed run had left behind");
        assert_eq!(summary(&[ended, survived], false), "ended 1 processes that a killed run had left behind");
        assert_eq!(summary(&[&LeftoverFate::LeftBehind, survived], true), "1 processes left behind");
    }
}
