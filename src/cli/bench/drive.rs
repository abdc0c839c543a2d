//! One run: the load with its observer, and how it came to its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::progress::{Display, Live};
use crate::cli::Failure;
use crate::cli::failure::USAGE;
use crate::load::{self, Event, Flow, LoadError, Phase, Plan, Run, Target};
use crate::metrics::{Recorder, Stop, Watch, WatchOptions};
use crate::telemetry::{self, Scope, Telemetry};
use crate::workload::Workload;

/// What was driven.
pub(super) struct Driven {
    pub(super) run: Run,
    pub(super) recorder: Recorder,
    /// Why it was ended early, if it was.
    pub(super) stop: Option<Ending>,
    /// How the server fell behind, if it did.
    pub(super) saturated: Option<String>,
    /// What was seen of the server meanwhile.
    pub(super) telemetry: Option<Telemetry>,
}

/// Why a run was ended early.
pub(super) struct Ending {
    pub(super) text: String,
    /// Whether its numbers may be used nevertheless.
    pub(super) sound: bool,
}

/// What the observer keeps, on the load's thread until the run has ended.
#[derive(Default)]
struct Seen {
    recorder: Recorder,
    stop: Option<Ending>,
    saturated: Option<String>,
}

/// Drives the load and shows where it stands.
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
    // Whoever asks for a number of requests or a time gets them, and is told.
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

/// A run that has told enough is as good as a longer one; one that was given up is not.
fn is_sound(stop: &Stop) -> bool {
    matches!(stop, Stop::Precise(_))
}

/// A panic of the load's thread is told by the load itself.
fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(error: &LoadError) -> Failure {
    let failure = match error {
        LoadError::Thread(_) => Failure::unexpected(error.to_string()),
        // The others are about what was asked for.
        _ => Failure::new(USAGE, error.to_string()),
    };
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}
