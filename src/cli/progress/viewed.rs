//! The view of `tune --tui`, and the output that is held back while it is shown.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::live::{budget_text, coarse_end, phase_text};
use super::state::ProgressState;
use super::{ProgressMode, live};
use crate::cli::GlobalOptions;
use crate::cli::failure::{CommandFailure, USAGE};
use crate::store::Store;
use crate::terminal_view::{
    FeedTarget, LiveLaunch, LiveProgress, ViewEnd, ViewLink, ViewOutput, ViewPurpose, feed_view, has_terminal, run_view,
};

/// Time between two looks at the database and the logs.
const INTERVAL: Duration = Duration::from_millis(500);

/// The longest wait for a terminal that does not take its restoration.
const LEAVE_LIMIT: Duration = Duration::from_secs(3);

/// A study's view on the terminal. After the view has ended, the output is that of a run without it.
#[derive(Debug)]
pub(in crate::cli) struct TuneView {
    link: Arc<ViewLink>,
    output: Mutex<ViewedOutput>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct ViewedOutput {
    /// Lines that wait for the end of the view.
    held: Vec<HeldLine>,
    /// The output after the view. `None` while the view is shown.
    plain: Option<ProgressMode>,
    /// The state of the present run.
    state: Option<Weak<Mutex<ProgressState>>>,
}

#[derive(Debug)]
enum HeldLine {
    /// With this program's own colours.
    Painted(String),
    Note(String),
}

/// Ends a view when it is dropped, so that an error is never written below it.
#[derive(Debug)]
pub(in crate::cli) struct ViewGuard(pub(in crate::cli) Arc<TuneView>);

impl Drop for ViewGuard {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl TuneView {
    /// Returns the failure if the options and the terminal do not allow a view.
    pub(in crate::cli) fn check(global: &GlobalOptions) -> Result<(), CommandFailure> {
        if global.quiet || global.log_format.is_json() {
            let other = if global.quiet { "--quiet" } else { "--log-format json" };
            return Err(CommandFailure::new(USAGE, format!("--tui cannot be used with {other}"))
                .with_hint("`setpoint watch` shows a running study from another terminal"));
        }
        if !has_terminal(ViewOutput::Stderr) {
            return Err(CommandFailure::new(USAGE, "--tui needs a terminal as standard input and standard error")
                .with_hint("without --tui the progress is written in lines"));
        }
        Ok(())
    }

    /// Takes the terminal and begins to observe `study`, or else the study that runs.
    pub(in crate::cli) async fn start(
        global: &GlobalOptions,
        study: Option<String>,
    ) -> Result<ViewGuard, CommandFailure> {
        // A connection of its own: the database reports only the changes of others.
        let store = Store::open(&global.db, false).await?;
        let link = Arc::new(ViewLink::default());
        let end = run_view(&link, ViewOutput::Stderr, ViewPurpose::Tune)?;
        tokio::spawn(feed_view(Arc::clone(&link), FeedTarget { store, study, interval: INTERVAL }));
        let view = Arc::new(Self { link, output: Mutex::default(), released: Condvar::new() });
        let watched = Arc::clone(&view);
        tokio::spawn(async move {
            let lost = matches!(end.await, Ok(ViewEnd::TerminalLost) | Err(_));
            watched.link.end();
            watched.release(!lost);
        });
        Ok(ViewGuard(view))
    }

    fn output(&self) -> MutexGuard<'_, ViewedOutput> {
        // A panic elsewhere must not end the output.
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the view has ended.
    pub(super) fn is_released(&self) -> bool {
        self.output().plain.is_some()
    }

    /// Shows the progress of a run from now on.
    pub(super) fn attach(&self, state: &Arc<Mutex<ProgressState>>) {
        self.output().state = Some(Arc::downgrade(state));
        let state = Arc::downgrade(state);
        self.link.set_live(Arc::new(move || {
            let state = state.upgrade()?;
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            Some(live_progress(&state, Instant::now()))
        }));
    }

    /// Writes the lines that were held back, and uses the plain output from now on.
    fn release(&self, is_live: bool) {
        let mut output = self.output();
        let plain = if is_live { ProgressMode::live() } else { ProgressMode::Lines };
        let state = output.state.as_ref().and_then(Weak::upgrade);
        for line in std::mem::take(&mut output.held) {
            match line {
                HeldLine::Painted(line) => plain.write_painted(&line),
                HeldLine::Note(text) => plain.note(&text),
            }
        }
        if let (ProgressMode::Live(bar), Some(state)) = (&plain, state) {
            live::show_state(bar, &state);
        }
        output.plain = Some(plain);
        drop(output);
        self.released.notify_all();
    }

    pub(in crate::cli) fn note(&self, text: &str) {
        let mut output = self.output();
        if let Some(plain) = &output.plain {
            plain.note(text);
        } else {
            output.held.push(HeldLine::Note(text.to_owned()));
            self.link.show_notice(text);
        }
    }

    pub(super) fn write_painted(&self, line: &str) {
        let mut output = self.output();
        match &output.plain {
            Some(plain) => plain.write_painted(line),
            None => output.held.push(HeldLine::Painted(line.to_owned())),
        }
    }

    /// Removes the live line, if the view has ended before.
    pub(super) fn finish_line(&self) {
        if let Some(plain) = &self.output().plain {
            plain.finish();
        }
    }

    /// Ends the view and waits until the terminal was given back and the held lines were written.
    pub(in crate::cli) fn finish(&self) {
        self.link.end();
        let begin = Instant::now();
        let mut output = self.output();
        while output.plain.is_none() && begin.elapsed() < LEAVE_LIMIT {
            let waited = self.released.wait_timeout(output, LEAVE_LIMIT.saturating_sub(begin.elapsed()));
            output = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(plain) = &output.plain {
            plain.finish();
        }
    }
}

/// Returns the progress of a run: the used budget, and the phases of its launches.
fn live_progress(state: &ProgressState, now: Instant) -> LiveProgress {
    let (by_trials, by_time) = state.used(now);
    let end = coarse_end(state, now).map(|end| format!(", {end}")).unwrap_or_default();
    let launch = |(number, open): (&u32, &super::state::OpenTrial)| LiveLaunch {
        number: *number,
        text: phase_text(open, state.expected_start(), now),
        share: (open.total > 0).then(|| crate::stats::to_f64(open.done) / crate::stats::to_f64(open.total)),
    };
    LiveProgress {
        budget: format!("{}{end}", budget_text(state, by_trials >= by_time, now)),
        share: by_trials.into_iter().chain(by_time).reduce(f64::max),
        launches: state.open.iter().map(launch).collect(),
    }
}
