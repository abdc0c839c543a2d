//! Renders the processes that killed tuners left behind.

use std::time::Duration;

use serde_json::{Value as Json, json};

use super::table::table;
use crate::server::ProcessOrigin;
use crate::tuner::{FoundLeftover, LeftoverFate, ReapSummary};

/// Limit of a name in characters. Some engines use their whole command line as the name.
const MAX_NAME_CHARS: usize = 40;

/// Returns a table with one line for each process.
#[must_use]
pub(crate) fn leftovers_table(processes: &[FoundLeftover]) -> String {
    let mut table = table(["pid", "name", "study", "trial", "age", "state", "database"], &[0, 3, 4]);
    for FoundLeftover { leftover, fate } in processes {
        let state = match fate {
            LeftoverFate::Running(holder) => format!("running (tuner {holder})"),
            fate => fate_name(fate).to_owned(),
        };
        let origin = &leftover.origin;
        table.add_row([
            leftover.pid.to_string(),
            leftover.name.chars().take(MAX_NAME_CHARS).collect(),
            origin.study.clone(),
            origin.purpose.clone(),
            age(leftover.age),
            state,
            origin.database.display().to_string(),
        ]);
    }
    table.to_string()
}

/// Returns `{"processes": [...], "stop_commands": [...]}`. The field `trial` of a process is null if it has another
/// purpose, such as a preflight.
#[must_use]
pub(crate) fn leftovers_json(reaped: &ReapSummary) -> Json {
    let stopped = |(command, ended): &(Vec<String>, Result<(), String>)| json!({"command": command, "ended": ended.is_ok(), "error": ended.as_ref().err()});
    json!({
        "processes": reaped.processes.iter().map(process).collect::<Vec<_>>(),
        "stop_commands": reaped.stop_commands.iter().map(stopped).collect::<Vec<_>>(),
    })
}

fn process(FoundLeftover { leftover, fate }: &FoundLeftover) -> Json {
    let ProcessOrigin { database, study, purpose } = &leftover.origin;
    let holder = if let LeftoverFate::Running(holder) = fate { holder.parse::<u32>().ok() } else { None };
    json!({
        "pid": leftover.pid, "name": leftover.name, "study": study, "trial": purpose.parse::<u32>().ok(),
        "purpose": purpose, "database": database.display().to_string(), "age_s": leftover.age.as_secs_f64(),
        "state": fate_name(fate), "tuner": holder, "proof": leftover.proof.name(),
    })
}

fn fate_name(fate: &LeftoverFate) -> &'static str {
    match fate {
        LeftoverFate::Running(_) => "running",
        LeftoverFate::LeftBehind => "left behind",
        LeftoverFate::Ended => "ended",
        LeftoverFate::Survived => "survived",
    }
}

/// Formats an age with two units at most: `3 h 5 min`, `12 s`.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours @ 0..48, minutes, _) => format!("{hours} h {minutes} min"),
        (hours, ..) => format!("{} days", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_two_units_at_most() {
        let told = [0, 59, 61, 3_600, 11_105, 200_000].map(|seconds| age(Duration::from_secs(seconds)));
        assert_eq!(told, ["0 s", "59 s", "1 min 1 s", "1 h 0 min", "3 h 5 min", "2 days"]);
    }
}
