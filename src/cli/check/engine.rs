//! The installed engine's part of a check.

use std::collections::BTreeMap;
use std::path::Path;

use crate::cli::failure::{Failure, INVALID};
use crate::job::Job;
use crate::preflight::{Disagreement, Limits, Preflight, PreflightError, Setup, judge};
use crate::rule::Finding;
use crate::server::Marker;
use crate::tuner::{Installed, preflight_setup};

/// A marker of this process alone: a check belongs to no study of a database.
fn marker() -> Marker {
    Marker::helper(Path::new(""), "", &format!("check-{}", std::process::id()))
}

/// The preflight for arguments of a model, with these variables added to our own environment.
pub(super) fn start(python: String, model: &str, env: BTreeMap<String, String>) -> Preflight {
    let (warm_up, limits) = (vec![model.to_owned()], Limits::default());
    Preflight::start(Setup { python, env, marker: marker(), warm_up, limits })
}

/// The end of a check that was to ask the engine and cannot.
pub(super) fn no_preflight(error: &PreflightError) -> Failure {
    Failure::new(INVALID, format!("--preflight: {error}")).with_hint(
        "name the Python of the environment that has vLLM installed and working, for instance .venv/bin/python, or \
         leave --preflight out: the rules then stand alone",
    )
}

/// What the engine says of a study's flags and defaults, in one line where there is anything to say. `findings` are the
/// rules' about the defaults.
///
/// # Errors
/// When the installed engine does not have a flag of the study, or does not take a value of it.
pub(super) async fn ask(job: &Job, installed: &Installed, findings: Vec<Finding>) -> Result<Option<String>, Failure> {
    let setup = match preflight_setup(job, installed, Path::new("")) {
        Ok(Some(setup)) => Setup { marker: marker(), ..setup },
        Ok(None) => return Ok(None),
        Err(reason) => return Ok(Some(format!("none: {reason}"))),
    };
    let preflight = Preflight::start(setup);
    let ready = preflight.ready().await;
    preflight.stop().await;
    let engine = match ready {
        Ok(engine) => engine,
        Err(error) => return Ok(Some(format!("none: {error}"))),
    };
    job.check_installed(&engine)?;
    let (_, disagreement) = judge(findings, &engine.warm_up);
    let verdict = match engine.warm_up.rejection() {
        None => "accepted".to_owned(),
        Some((stage, message)) => format!("rejected by its {}: {message}", stage.name()),
    };
    let disagreement = match disagreement {
        None => String::new(),
        Some(Disagreement::FalseRejection(finding)) => format!("; rule {} is wrong here", finding.rule),
        Some(Disagreement::FalseAcceptance(_)) => "; no rule knows that".to_owned(),
    };
    Ok(Some(format!("{verdict} (vLLM {}, as installed){disagreement}", engine.version)))
}
