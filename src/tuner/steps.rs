//! The loop of a run: it executes the scheduler's next step while the launches continue.

use super::launcher::Launches;
use super::run::StudyRun;
use super::scheduler::{NextAction, Scheduler};
use super::{StopRequest, StudyEnding, TuneError, TunerEvent};

/// Executes the steps until the run is over. Returns its ending.
///
/// # Errors
/// If the tuner cannot go on. Running launches are measured to their end first.
pub(super) async fn execute_steps(
    run: &StudyRun<'_>,
    mut scheduler: Scheduler<'_>,
    mut launches: impl Launches,
) -> Result<StudyEnding, TuneError> {
    let mut end = None;
    let mut is_told = false;
    loop {
        if let Some(event) = launches.event() {
            let settled = launches.alongside(Box::pin(scheduler.process(event))).await;
            match (settled, &end) {
                (Ok(None), _) | (Ok(Some(_)), Some(_)) => {}
                (Ok(Some(ending)), None) => end = Some(Ok(ending)),
                (Err(error), None) => end = Some(Err(error)),
                (Err(error), Some(_)) => run.emit(TunerEvent::FurtherError { error: error.to_string() }),
            }
        } else if end.is_some() {
            launches.release_all();
            // Running launches are measured to their end, unless the user has requested a stop.
            if !std::mem::replace(&mut is_told, true) {
                report_last(run, end.as_ref(), launches.count());
            }
            if !launches.wait().await {
                break;
            }
        } else {
            match launches.alongside(Box::pin(scheduler.next())).await {
                Ok(NextAction::Launch(order)) => launches.start(order),
                Ok(NextAction::Look { server_of, order }) => launches.look(server_of, *order),
                Ok(NextAction::Release { server_of }) => launches.release(server_of),
                Ok(NextAction::Wait) => {
                    assert!(launches.wait().await, "the scheduler waits, but no launch runs");
                }
                Ok(NextAction::AskAgain) => {}
                Ok(NextAction::End(ending)) => end = Some(Ok(ending)),
                Err(error) => end = Some(Err(error)),
            }
        }
    }
    let ending = end.unwrap_or(Ok(StudyEnding::Interrupted))?;
    if run.stop() < StopRequest::Immediate {
        scheduler.judge().await?;
    }
    Ok(ending)
}

/// Reports why no further trial begins while some still run: their end may be an hour away.
fn report_last(run: &StudyRun<'_>, end: Option<&Result<StudyEnding, TuneError>>, running: usize) {
    let why = match end {
        Some(Ok(ending)) => ending.to_string(),
        Some(Err(error)) => error.to_string(),
        None => return,
    };
    if running > 0 && run.stop() == StopRequest::No {
        run.emit(TunerEvent::NoFurtherTrials { why, running });
    }
}
