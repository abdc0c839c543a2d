//! Asks the installed engine in a check.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cli::GlobalOptions;
use crate::cli::failure::{CommandFailure, INVALID};
use crate::cli::output::note;
use crate::engine::PreflightProgram;
use crate::execution::ExecutionEnvironment;
use crate::job::Job;
use crate::preflight::{Disagreement, Preflight, PreflightError, PreflightLimits, PreflightSetup, decide_finding};
use crate::rule::{Finding, SpaceRemoval};
use crate::server::Marker;
use crate::tuner::{WrongRule, preflight_setup, wrong_rules};

/// Returns a marker of this process alone, because a check belongs to no study of a database.
fn marker() -> Marker {
    Marker::helper(Path::new(""), "", &format!("check-{}", std::process::id()))
}

/// Starts the preflight for arguments of `model`. The variables in `env` are added to the environment of this process.
pub(super) fn start(
    program: PreflightProgram,
    executable: String,
    model: &str,
    env: BTreeMap<String, String>,
) -> Preflight {
    let (warm_up, limits) = (vec![model.to_owned()], PreflightLimits::default());
    Preflight::start(PreflightSetup { program, executable, env, marker: marker(), warm_up, limits })
}

/// Returns the failure of a check whose engine cannot be asked.
pub(super) fn no_preflight(error: &PreflightError) -> CommandFailure {
    CommandFailure::new(INVALID, format!("--preflight: {error}")).with_hint(
        "name the Python of a working installation of the engine, for instance .venv/bin/python, or omit --preflight \
         to check with the rules alone",
    )
}

/// The installed engine's answer about a study.
pub(super) struct PreflightAnswer {
    /// One line: the verdict on the defaults, or the reason for which the engine was not asked.
    pub(super) text: String,
    /// Rules that the engine contradicts. `None` if it was not asked.
    pub(super) wrong: Option<Vec<WrongRule>>,
}

/// Asks the engine about a study's flags, its defaults, and an example of each rule's removals from its space.
/// `findings` are those of the rules about the defaults. Returns `None` for an engine that cannot be asked.
///
/// # Errors
/// If the installed engine lacks a flag of the study, or does not accept one of its values.
pub(super) async fn ask(
    job: &Job,
    installed: &ExecutionEnvironment,
    findings: Vec<Finding>,
    removal: &SpaceRemoval,
    global: &GlobalOptions,
) -> Result<Option<PreflightAnswer>, CommandFailure> {
    let silent = |reason: String| Ok(Some(PreflightAnswer { text: format!("none: {reason}"), wrong: None }));
    let setup = match preflight_setup(job, installed, Path::new("")) {
        Ok(Some(setup)) => PreflightSetup { marker: marker(), ..setup },
        Ok(None) => return Ok(None),
        Err(reason) => return silent(reason),
    };
    let product = setup.program.engine();
    note(global, &setup.program.notice());
    let preflight = Preflight::start(setup);
    let ready = preflight.wait_until_ready().await;
    let wrong = match &ready {
        Ok(_) => wrong_rules(job, installed, removal, &preflight).await,
        Err(error) => Err(error.clone()),
    };
    preflight.stop().await;
    let engine = match ready {
        Ok(engine) => engine,
        Err(error) => return silent(error.to_string()),
    };
    job.check_installed(&engine)?;
    let verdict = match engine.warm_up.rejection() {
        None => "accepted".to_owned(),
        Some((stage, message)) => format!("rejected because of its {}: {message}", stage.name()),
    };
    let disagreement = match decide_finding(findings, &engine.warm_up).1 {
        None => String::new(),
        Some(Disagreement::FalseRejection(finding)) => format!("; rule {} wrongly rejects it", finding.rule),
        Some(Disagreement::FalseAcceptance(_)) => "; no rule predicts this".to_owned(),
    };
    let asked = removal.rules.iter().filter(|removed| removed.severity.is_refusal()).count();
    let rules = match &wrong {
        Err(error) => format!("; the removals of the rules were not checked: {error}"),
        Ok(_) if asked == 0 => String::new(),
        Ok(wrong) => format!("; it contradicts {} of {asked} rules", wrong.len()),
    };
    let text = format!("{verdict} ({product} {}, as installed){disagreement}{rules}", engine.version);
    Ok(Some(PreflightAnswer { text, wrong: wrong.ok() }))
}
