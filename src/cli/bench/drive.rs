//! Drives one run of the load with its observer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::progress::{BenchDisplay, LiveCounts};
use crate::cli::CommandFailure;
use crate::cli::failure::USAGE;
use crate::load::{self, LoadError, LoadEvent, LoadPhase, LoadPlan, LoadRun, LoadTarget, RunFlow};
use crate::metrics::{LoadWatch, StopReason, WatchOptions, WindowRecorder};
use crate::telemetry::{self, Telemetry, TelemetryScope};
use crate::workload::Workload;

/// The result of a driven run.
pub(super) struct DrivenLoad {
    pub(super) run: LoadRun,
    pub(super) recorder: WindowRecorder,
    /// The reason if the observer ended the run early.
    pub(super) stop: Option<BenchEnding>,
    /// The description of the overload if the server fell behind.
    pub(super) saturated: Option<String>,
    /// Observations of the server during the run.
    pub(super) telemetry: Option<Telemetry>,
}

/// The reason that ended a run early.
pub(super) struct BenchEnding {
    pub(super) text: String,
    /// Whether the numbers of the run are valid nevertheless.
    pub(super) is_valid: bool,
}

/// The observer's results. The load's thread writes them until the run has ended.
#[derive(Default)]
struct ObserverState {
    recorder: WindowRecorder,
    stop: Option<BenchEnding>,
    saturated: Option<String>,
}

/// Drives the load and shows its progress. `scope` selects the observed server; `None` means no telemetry. The run ends
/// when `stop` becomes true.
pub(super) async fn drive(
    target: &LoadTarget,
    workload: Arc<dyn Workload>,
    plan: LoadPlan,
    options: WatchOptions,
    scope: Option<TelemetryScope>,
    display: &BenchDisplay,
    stop: watch::Receiver<bool>,
) -> Result<DrivenLoad, CommandFailure> {
    let live = LiveCounts::default();
    // Without `--until`, a saturated server does not end the run: the requested number of requests or duration is
    // completed, and the report has a note.
    let goes_on = options.until.is_none();
    let telemetry = scope.map(telemetry::ServerWatch::start);
    let mark = telemetry.as_ref().map(telemetry::ServerWatch::mark);
    let seen = Arc::new(Mutex::new(ObserverState::default()));
    let observer = {
        let (live, seen, mut watch) = (live.clone(), Arc::clone(&seen), LoadWatch::new(options));
        move |event: LoadEvent<'_>| {
            live.follow(&event);
            if let (LoadEvent::Phase { phase: LoadPhase::Measure, .. }, Some(mark)) = (&event, &mark) {
                mark.request_sample();
            }
            let mut seen = lock(&seen);
            seen.recorder.on(&event);
            match watch.on(&event) {
                Some(StopReason::Saturated(text)) if goes_on => {
                    seen.saturated = Some(text);
                    RunFlow::Continue
                }
                Some(stop) => {
                    seen.stop = Some(BenchEnding { text: stop.to_string(), is_valid: is_sound(&stop) });
                    RunFlow::End
                }
                None => RunFlow::Continue,
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
    let ObserverState { recorder, stop, saturated } = std::mem::take(&mut *lock(&seen));
    Ok(DrivenLoad { run, recorder, stop, saturated, telemetry })
}

/// Returns whether a run that was stopped early is valid: only if it reached the requested precision. All other reasons
/// are problems of the server or of the measurement.
fn is_sound(stop: &StopReason) -> bool {
    matches!(stop, StopReason::Precise(_))
}

/// Locks the observer's state. A poisoned lock is used, because the load itself reports a panic of its thread.
fn lock(seen: &Mutex<ObserverState>) -> MutexGuard<'_, ObserverState> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(error: &LoadError) -> CommandFailure {
    let failure = match error {
        LoadError::Thread(_) => CommandFailure::unexpected(error.to_string()),
        // The other errors are caused by the arguments.
        _ => CommandFailure::new(USAGE, error.to_string()),
    };
    match error.hint() {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}
