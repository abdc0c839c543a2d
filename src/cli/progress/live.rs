//! The live line of a study: the used budget as a bar, the present phase, and the expected end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use console::measure_text_width;
use indicatif::{ProgressBar, ProgressStyle};

use super::coarse;
use super::state::{OpenTrial, ProgressState};
use crate::report::{TextLayout, number};
use crate::trial::without_controls;
use crate::tuner::TrialPhase;

/// Columns of the bar, and those on a narrow terminal.
const BAR_COLUMNS: usize = 20;
const NARROW_BAR_COLUMNS: usize = 10;
/// Columns below which the bar is narrow.
const NARROW: usize = 100;

/// Columns of the spinner and the blank behind it.
const SPINNER_COLUMNS: usize = 2;

/// Shows the state in place of the bar's message. The text is made at each drawing, so that times go on during a phase
/// without events.
pub(super) fn show_state(bar: &ProgressBar, state: &Arc<Mutex<ProgressState>>) {
    // The template is a constant. If it were invalid, the bar would keep its style.
    let Ok(style) = ProgressStyle::with_template("{spinner} {status}") else { return };
    let state = Arc::clone(state);
    let is_utf8 = TextLayout::terminal(0).is_utf8;
    let style = style.with_key("status", move |_: &indicatif::ProgressState, out: &mut dyn std::fmt::Write| {
        let layout = super::terminal_layout();
        // A panic elsewhere must not end the display. The lock is released before the terminal is written.
        let text = status_text(&state.lock().unwrap_or_else(PoisonError::into_inner), layout, Instant::now());
        // Writing to a string cannot fail.
        let _ = out.write_str(&text);
    });
    bar.set_style(if is_utf8 { style } else { style.tick_chars("|/-\\ ") });
}

/// Returns a line such as `██████░░░░ 3 of 16 trials, trial 4: starting 12 s of ~40 s, best 4772, ends in ~12 min`.
/// Parts at its end are left out if they do not fit.
pub(super) fn status_text(state: &ProgressState, layout: TextLayout, now: Instant) -> String {
    let columns = layout.width.saturating_sub(SPINNER_COLUMNS + 1);
    let (by_trials, by_time) = state.used(now);
    let used = by_trials.into_iter().chain(by_time).reduce(f64::max);
    let mut text = String::new();
    if let Some(used) = used {
        let width = if layout.width < NARROW { NARROW_BAR_COLUMNS } else { BAR_COLUMNS };
        text.push_str(&bar_text(used, width, layout.is_utf8));
        text.push(' ');
    }
    text.push_str(&budget_text(state, by_trials >= by_time, now));
    let left = coarse_end(state, now);
    let best = state.best.map(|best| format!("best {}", number(best)));
    let reserve = state.plan.as_ref().filter(|plan| !plan.reserve.is_zero());
    let reserve = reserve.map(|plan| format!("{} reserved to confirm", coarse(plan.reserve)));
    for part in std::iter::once(phases_text(state, now)).chain(left).chain(reserve).chain(best) {
        if measure_text_width(&text) + 2 + measure_text_width(&part) > columns {
            break;
        }
        text.push_str(", ");
        text.push_str(&part);
    }
    without_controls(&console::truncate_str(&text, columns, "")).into_owned()
}

/// Returns a text such as `ends in ~12 min`.
pub(super) fn coarse_end(state: &ProgressState, now: Instant) -> Option<String> {
    state.time_left(now).filter(|left| left.as_secs() > 0).map(|left| format!("ends in ~{}", coarse(left)))
}

fn bar_text(used: f64, width: usize, is_utf8: bool) -> String {
    let (full, empty) = if is_utf8 { ("█", "░") } else { ("#", "-") };
    let done = (0..width).filter(|cell| crate::stats::to_f64(cell + 1) <= used * crate::stats::to_f64(width)).count();
    format!("{}{}", full.repeat(done), empty.repeat(width - done))
}

/// Returns the part of the budget that is nearer to its end: `3 of 16 trials` or `1.2 h of 8.0 h`.
pub(super) fn budget_text(state: &ProgressState, is_by_trials: bool, now: Instant) -> String {
    let limit = state.plan.as_ref().and_then(|plan| plan.time);
    match (state.trials, limit) {
        (Some(trials), limit) if is_by_trials || limit.is_none() => format!("{} of {trials} trials", state.launched),
        (_, Some(limit)) => format!("{} of {}", coarse(state.elapsed(now)), coarse(limit)),
        (_, None) => format!("{} trials", state.launched),
    }
}

/// Returns a text such as `trial 4: loading 310 of 1000 requests, 1240 tok/s`. Several trials are counted by their
/// phases.
fn phases_text(state: &ProgressState, now: Instant) -> String {
    match state.open.len() {
        0 if state.trials.is_some_and(|trials| state.launched >= trials) => "judging the measurements".to_owned(),
        0 if state.number == 0 => "preparing the first trial".to_owned(),
        0 => format!("choosing trial {}", state.number),
        1 => {
            let phase = state.open.values().map(|open| phase_text(open, state.expected_start(), now));
            let number = state.open.keys().next().copied().unwrap_or_default();
            format!("trial {number}: {}", phase.collect::<String>())
        }
        several => {
            let count = |phase| state.open.values().filter(|open| open.phase == phase).count();
            let phases = TrialPhase::ALL.map(|phase| (phase, count(phase))).into_iter().filter(|(_, count)| *count > 0);
            let phases: Vec<_> = phases.map(|(phase, count)| format!("{count} {}", word(phase))).collect();
            format!("{several} at a time: {}", phases.join(", "))
        }
    }
}

pub(super) fn phase_text(open: &OpenTrial, expected_start: Option<Duration>, now: Instant) -> String {
    let elapsed = coarse(now.saturating_duration_since(open.since));
    let requests = match (open.done, open.total) {
        (0, 0) => elapsed.clone(),
        (done, 0) => format!("{done} requests, {elapsed}"),
        (done, total) => format!("{done} of {total} requests"),
    };
    let rate = open.tokens_per_s.map(|rate| format!(", {rate:.0} tok/s")).unwrap_or_default();
    match open.phase {
        TrialPhase::Checking => "checking".to_owned(),
        TrialPhase::Starting => match expected_start {
            Some(expected) => format!("starting {elapsed} of ~{}", coarse(expected)),
            None => format!("starting {elapsed}"),
        },
        phase @ TrialPhase::Stopping => format!("{} {elapsed}", word(phase)),
        phase => format!("{} {requests}{rate}", word(phase)),
    }
}

fn word(phase: TrialPhase) -> String {
    if phase == TrialPhase::Measuring { "loading".to_owned() } else { phase.to_string() }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
