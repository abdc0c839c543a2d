//! Drives one run of the load with its observer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::progress::{Display, Live};
use crate::cli::Failure;
use crate::cli::failure::USAGE;
use crate::load::{self, Event, Flow, LoadError, Phase, Plan, Run, Target};
use crate::metrics::{Recorder, Stop, Watch, WatchOptions};
use crate::telemetry::{self, Scope, Telemetry};
use crate::workload::Workload;

/// The result of a driven run.
pub(super) struct Driven {
    pub(super) run: Run,
    pub(super) recorder: Recorder,
    /// The reason if the run was ended early.
    pub(super) stop: Option<Ending>,
    /// The description of the overload if the server fell behind.
    pub(super) saturated: Option<String>,
    /// Observations of the server during the run.
    pub(super) telemetry: Option<Telemetry>,
}

/// The reason that ended a run early.
pub(super) struct Ending {
    pub(super) text: String,
    /// Whether the numbers of the run may be used nevertheless.
    pub(super) sound: bool,
}

/// The observer's state, on the load's thread until the run has ended.
#[derive(Default)]
struct Seen {
    recorder: Recorder,
    stop: Option<Ending>,
    saturated: Option<String>,
}

/// Drives the load and shows its progress.
pub(super) async fn drive(
    target: &Target,
    workload: Arc<dyn Workload>,
    plan: Plan,
    options: WatchOptions,
    scope: Option<Scope>,
    display: &Display,
    stop: watch::Receiver<bool>,
) -> Result<Driven, Failure> {
    let live = Live::default();
    // Without `--until`, a saturated server does not end the run: the user gets the requested number or time, and a
    // note.
    let goes_on = options.until.is_none();
    let telemetry = scope.map(telemetry::Watch::start);
    let mark = telemetry.as_ref().map(telemetry::Watch::mark);
    let seen = Arc::new(Mutex::new(Seen::default()));
    let observer = {
        let (live, seen, mut watch) = (live.clone(), Arc::clone(&seen), Watch::new(options));
        move |event: Event<'_>| {
            live.follow(&event);
            if let (Event::Phase { phase: Phase::Measure, .. }, Some(mark)) = (&event, &mark) {
                mark.now();
            }
            let mut seen = lock(&seen);
            seen.recorder.on(&event);
            match watch.on(&event) {
                Some(Stop::Saturated(text)) if goes_on => {
                    seen.saturated = Some(text);
                    Flow::Continue
                }
                Some(stop) => {
                    seen.stop = Some(Ending { text: stop.to_string(), sound: is_sound(&stop) });
                    Flow::End
                }
                None => Flow::Continue,
            }
        }
    };
    let run = tokio::select! {
        biased;
        run = load::drive(target.clone(), workload, plan, observer, stop) => run,
        never = display.watch(&live) => match never {},
    };
    let telemetry = match telemetry {
        Some(watch) => Some(watch.stop().await),
        None => None,
    };
    let run = run.map_err(|error| refused(&error))?;
    let Seen { recorder, stop, saturated } = std::mem::take(&mut *lock(&seen));
    Ok(Driven { run, recorder, stop, saturated, telemetry })
}

/// Returns whether a run that was stopped early is as good as a complete one. It is if it reached the requested
/// precision, and is not if it was given up.
fn is_sound(stop: &Stop) -> bool {
    matches!(stop, Stop::Precise(_))
}

/// Locks the observer's state. A poisoned lock is used, because the load itself reports a panic of its thread.
fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(error: &LoadError) -> Failure {
    let failure = match error {
        LoadError::Thread(_) => Failure::unexpected(error.to_string()),
        // The other errors are caused by the arguments.
        _ => Failure::new(USAGE, error.to_string()),
    };
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}
