//! Checks the engine, its release, and the answer of its Python.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::CheckResult;
use crate::cli::GlobalOptions;
use crate::cli::output::note;
use crate::engine::resolve_program;
use crate::engines;
use crate::execution::{ExecutionEnvironment, ReleaseSource};
use crate::job::Job;
use crate::preflight::{Preflight, PreflightLimits, PreflightSetup};
use crate::server::{Marker, output_of};
use crate::tuner::preflight_setup;

/// Limit of the release probe: Python starts and reads one metadata file.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn check(study: Option<(&Job, &ExecutionEnvironment)>, global: &GlobalOptions) -> Vec<CheckResult> {
    let (mut findings, setup) = match study {
        Some((job, installed)) => of_study(job, installed),
        None => of_path().await,
    };
    if let Some(setup) = setup {
        note(global, &setup.program.notice());
        findings.push(check_preflight(setup).await);
    }
    findings
}

fn of_study(job: &Job, installed: &ExecutionEnvironment) -> (Vec<CheckResult>, Option<PreflightSetup>) {
    let engine = &job.engine;
    if let Some(error) = engine.missing_program(&job.file) {
        let hint = error.hint.unwrap_or_default();
        return (vec![CheckResult::fail("engine", format!("{}: {}", error.key, error.problem), hint)], None);
    }
    let (kind, command) = (engine.engine.kind(), crate::trial::redact(&engine.command.join(" ")).into_owned());
    let version = if installed.release_from == ReleaseSource::Unversioned {
        "without known releases".to_owned()
    } else if installed.assumed {
        "of an unknown release".to_owned()
    } else {
        installed.version.to_string()
    };
    let mut findings = vec![CheckResult::expect(
        !installed.assumed,
        "engine",
        format!("{kind} {version}: {command}"),
        "set engine.version, so that the flags are checked for that release",
    )];
    let setup = match preflight_setup(job, installed, Path::new("")) {
        Ok(setup) => setup.map(|setup| PreflightSetup { marker: marker(), ..setup }),
        Err(reason) => {
            findings.push(CheckResult::ok("preflight", format!("none: {reason}")));
            None
        }
    };
    (findings, setup)
}

/// Checks the engine that a shell would start.
async fn of_path() -> (Vec<CheckResult>, Option<PreflightSetup>) {
    let engine = engines::default_engine();
    let (name, command) = (engine.kind(), engine.default_command().unwrap_or_default());
    let Some(program) = command.first().and_then(|program| resolve_program(program)) else {
        let hint = "activate its environment, or name a study: `setpoint doctor STUDY.toml`";
        return (vec![CheckResult::warn("engine", format!("there is no `{name}` on the PATH"), hint)], None);
    };
    let version = match engine.version_probe(&command) {
        Some(probe) => output_of(&probe, PROBE_LIMIT).await,
        None => None,
    };
    let finding = match version {
        Some(version) => CheckResult::ok("engine", format!("{name} {version}: {}", program.display())),
        None => CheckResult::warn(
            "engine",
            format!("{} does not report its release", program.display()),
            format!("its Python has no package `{name}`, or is not on this machine"),
        ),
    };
    let preflight = engine.preflight().zip(engine.preflight_executable(&command));
    // The model is a path that does not exist. The engine refuses it without the network. For this check, a refusal is
    // an answer, too.
    let setup = |(program, executable)| PreflightSetup {
        program,
        executable,
        env: BTreeMap::new(),
        marker: marker(),
        warm_up: vec!["/nonexistent".to_owned()],
        limits: PreflightLimits::default(),
    };
    (vec![finding], preflight.map(setup))
}

async fn check_preflight(setup: PreflightSetup) -> CheckResult {
    let (engine, executable, begin) = (setup.program.engine(), setup.executable.clone(), Instant::now());
    let preflight = Preflight::start(setup);
    let ready = preflight.wait_until_ready().await;
    preflight.stop().await;
    match ready {
        Ok(installed) => {
            let (version, device, seconds) = (&installed.version, &installed.device, begin.elapsed().as_secs());
            CheckResult::ok(
                "preflight",
                format!("{executable} has {engine} {version} for {device}; it answered after {seconds} s"),
            )
        }
        Err(error) => CheckResult::warn(
            "preflight",
            error.to_string(),
            format!("configurations are checked by the rules alone; reinstall {engine} if it does not start either"),
        ),
    }
}

/// Returns a marker of this process alone, which belongs to no study.
fn marker() -> Marker {
    Marker::helper(Path::new(""), "", &format!("doctor-{}", std::process::id()))
}
