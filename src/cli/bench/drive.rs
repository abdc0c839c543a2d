//! One run: the load with its observer, and how it came to its end.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::progress::{Display, Live};
use crate::cli::Failure;
use crate::cli::failure::USAGE;
use crate::load::{self, Error, Event, Flow, LoadError, Plan, Record, Run, Target};
use crate::workload::Workload;

/// What was driven, and why it was ended early, if it was.
pub(super) struct Driven {
    pub(super) run: Run,
    pub(super) stop: Option<String>,
}

/// Drives the load and shows where it stands.
pub(super) async fn drive(
    target: &Target,
    workload: Arc<dyn Workload>,
    plan: Plan,
    display: &Display,
    stop: watch::Receiver<bool>,
) -> Result<Driven, Failure> {
    let live = Live::default();
    let reason = Arc::new(Mutex::new(None));
    let observer = {
        let (live, reason, mut refusals) = (live.clone(), Arc::clone(&reason), Refusals::default());
        move |event: Event<'_>| {
            live.follow(&event);
            let ended = match event {
                Event::Ended { record, .. } => refusals.on(record),
                _ => None,
            };
            match ended {
                None => Flow::Continue,
                Some(text) => {
                    *reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
                    Flow::End
                }
            }
        }
    };
    let run = tokio::select! {
        biased;
        run = load::drive(target.clone(), workload, plan, observer, stop) => run,
        never = display.watch(&live) => match never {},
    };
    let run = run.map_err(refused)?;
    let stop = reason.lock().unwrap_or_else(PoisonError::into_inner).take();
    Ok(Driven { run, stop })
}

fn refused(error: LoadError) -> Failure {
    match error {
        LoadError::Thread(_) => Failure::unexpected(error.to_string()),
        // The others are about what was asked for.
        _ => Failure::new(USAGE, error.to_string()),
    }
}

/// Requests that must all have been refused before the others are not tried.
const FIRST: u32 = 10;

/// A server that refuses each of the first requests as wrong will refuse the others.
#[derive(Debug, Default)]
struct Refusals {
    seen: u32,
    answered: bool,
}

impl Refusals {
    fn on(&mut self, record: &Record) -> Option<String> {
        match &record.result {
            // 408 and 429 depend on the moment.
            Err(error @ Error::Http { status: 400..=407 | 409..=428 | 430..=499, .. }) if !self.answered => {
                self.seen += 1;
                (self.seen >= FIRST).then(|| format!("the server refuses every request: {error}"))
            }
            _ => {
                self.answered = true;
                None
            }
        }
    }
}
