//! Reads `--config`: configurations as JSON, over the values that the study sets in every launch.

use crate::cli::failure::{CommandFailure, INVALID};
use crate::config::Config;
use crate::facts::EngineVersion;
use crate::job::Job;

/// Returns the configurations, each with the study's fixed values. Without `--config`, returns the fixed values alone.
pub(super) fn read(texts: &[String], job: &Job, version: EngineVersion) -> Result<Vec<Config>, CommandFailure> {
    let fixed = &job.search_space().fixed;
    if texts.is_empty() {
        return Ok(vec![fixed.clone()]);
    }
    texts.iter().map(|text| Ok(fixed.merged(&one(text, job, version)?))).collect()
}

fn one(text: &str, job: &Job, version: EngineVersion) -> Result<Config, CommandFailure> {
    let invalid = |problem: String| CommandFailure::new(INVALID, format!("--config {text}: {problem}"));
    let given: Config = serde_json::from_str(text).map_err(|error| {
        invalid(error.to_string()).with_hint("give flags and their values, such as '{\"max-num-seqs\": 64}'")
    })?;
    let table = job.engine.engine.flag_table(version);
    let table = table.ok_or_else(|| invalid("the engine's flags are unknown".to_owned()))?;
    let arguments = job.engine.arguments(version);
    let mut config = Config::new();
    for (name, value) in given.iter() {
        let flag = table.find(name).ok_or_else(|| {
            invalid(format!("{} ({} {version})", table.unknown(name), job.engine.engine.display_name()))
        })?;
        flag.check(value).map_err(|error| invalid(error.to_string()))?;
        if arguments.get(flag.name).is_some() {
            return Err(invalid(format!("--{} is set by engine.args, which applies to every launch", flag.name))
                .with_hint("move it from engine.args to `fixed` in [space]"));
        }
        config.set(flag.name, value.clone());
    }
    Ok(config)
}
