//! Progress display of a study: a live line on a terminal, plain lines or JSON lines elsewhere.

mod json;
mod live;
mod live_terminal;
mod state;
mod viewed;

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::GlobalOptions;
use crate::cli::output::{INDENT, layout_of, sanitized};
use crate::config::Config;
use crate::job::Job;
use crate::report::{ShortFlagNames, TextLayout, TrialRows, number, wrap_text};
use crate::rule::RemovedByRule;
use crate::store::{Incident, RuleVerdict, ScoredTrial};
use crate::trial::{Blame, Origin, Outcome, Proposal, json_for_terminal};
use crate::tuner::{BudgetPlan, Interference, StudyEnding, StudyEstimate, TunerEvent, WrongRule};
use json::event_json;
use live_terminal::LiveTerminal;
use state::ProgressState;
pub(super) use viewed::{TuneView, ViewGuard};

/// Rows on a terminal after which the header is repeated, because it has left the screen.
const ROWS_PER_HEADER: usize = 30;

/// Display of a study's progress. It receives events from the tuner and from the load's thread.
pub(super) struct ProgressLine {
    mode: ProgressMode,
    verbose: bool,
    /// Name of the objective's metric.
    metric: String,
    /// Flags with the same value in every trial. The lines omit them.
    fixed: Config,
    state: Arc<Mutex<ProgressState>>,
}

/// The form of the output on standard error.
#[derive(Debug)]
pub(super) enum ProgressMode {
    Quiet,
    /// One line that is updated in place. Events are written above it.
    Live(ProgressBar),
    /// One line of text for each event.
    Lines,
    /// One JSON object for each event.
    Json,
    /// Nothing while the view is shown. Its lines are written afterwards.
    View(Arc<TuneView>),
}

impl ProgressMode {
    pub(super) fn of(global: &GlobalOptions) -> Self {
        match (global.quiet, global.log_format.is_json(), std::io::stderr().is_terminal()) {
            (true, ..) => Self::Quiet,
            (false, true, _) => Self::Json,
            (false, false, true) => Self::live(),
            (false, false, false) => Self::Lines,
        }
    }

    fn live() -> Self {
        Self::Live(live_line())
    }

    /// Writes a note on a line of its own.
    pub(super) fn note(&self, text: &str) {
        match self {
            Self::Quiet => {}
            Self::Live(bar) => bar.suspend(|| write_line(&wrap_text(&sanitized(text), terminal_layout(), INDENT))),
            Self::Lines => write_line(text),
            Self::View(view) => view.note(text),
            Self::Json => write_json(&json!({"event": "note", "text": text})),
        }
    }

    /// Writes a line with this program's own colours. Its other parts are free of control characters.
    fn write_painted(&self, line: &str) {
        // A failed write to standard error cannot be reported anywhere, so the error is ignored.
        let write = || drop(writeln!(anstream::stderr().lock(), "{line}"));
        match self {
            Self::Live(bar) => bar.suspend(write),
            Self::View(view) => view.write_painted(line),
            _ => write(),
        }
    }

    /// Removes the live line.
    pub(super) fn finish(&self) {
        match self {
            Self::Live(bar) => bar.finish_and_clear(),
            Self::View(view) => view.finish_line(),
            Self::Quiet | Self::Lines | Self::Json => {}
        }
    }
}

impl ProgressLine {
    /// Creates the display of a study, on `view` while that is shown.
    pub(super) fn new(global: &GlobalOptions, job: &Job, view: Option<&Arc<TuneView>>) -> Self {
        let space = job.search_space();
        let names = ShortFlagNames::new(space.parameters.iter().map(|parameter| parameter.name.as_str()));
        let rows = TrialRows::new(job.objective.clone(), space.fixed.clone(), Config::new(), names);
        let state = Arc::new(Mutex::new(ProgressState::new(rows, job.budget.trials)));
        let mode = match view.filter(|view| !view.is_released()) {
            Some(view) => ProgressMode::View(Arc::clone(view)),
            None => ProgressMode::of(global),
        };
        match &mode {
            ProgressMode::Live(bar) => live::show_state(bar, &state),
            ProgressMode::View(view) => view.attach(&state),
            ProgressMode::Quiet | ProgressMode::Lines | ProgressMode::Json => {}
        }
        Self { mode, verbose: global.verbose, metric: job.objective.value_name(), fixed: space.fixed.clone(), state }
    }

    fn state(&self) -> MutexGuard<'_, ProgressState> {
        // A panic elsewhere must not end the progress display.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether expected times are shown: on a live line, or in a view.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.mode, ProgressMode::Live(_) | ProgressMode::View(_))
    }

    /// Sets the value of the engine's defaults that an earlier run has measured.
    pub(super) fn set_baseline(&self, value: f64) {
        self.state().baseline = Some(value);
    }

    /// Sets the expected times of a launch.
    pub(super) fn set_estimate(&self, estimate: &StudyEstimate) {
        self.state().set_estimate(estimate);
    }

    /// Sets the engine's defaults and today's deployment for a release. The rows are compared with them.
    pub(super) fn set_baselines(&self, defaults: Config, deployment: Option<Config>) {
        let mut state = self.state();
        (state.rows.defaults, state.rows.deployment) = (defaults, deployment);
    }

    /// Writes a note on a line of its own.
    pub(super) fn note(&self, text: &str) {
        self.mode.note(text);
    }

    /// Removes the live line.
    pub(super) fn finish(&self) {
        self.mode.finish();
    }

    /// Updates the state and displays an event.
    pub(super) fn on(&self, event: &TunerEvent) {
        let rows = {
            let mut state = self.state();
            state.follow(event, Instant::now());
            self.rows(event, &mut state, terminal_layout())
        };
        // The lock is released before the write. The loads of concurrent trials report their requests here, and a slow
        // terminal must not delay them.
        match &self.mode {
            ProgressMode::Quiet => {}
            ProgressMode::Json => {
                if let Some(line) = event_json(event, self.verbose) {
                    write_json(&line);
                }
            }
            ProgressMode::Lines | ProgressMode::Live(_) | ProgressMode::View(_) => {
                for row in &rows {
                    self.mode.write_painted(row);
                }
                if let Some(line) = self.line(event, &rows) {
                    self.mode.note(&line);
                }
            }
        }
    }

    /// Returns the row of a trial that has ended, after a header if it is due. Hundreds of trials in a row may be
    /// rejected, so only `--verbose` shows all of them.
    fn rows(&self, event: &TunerEvent, state: &mut ProgressState, layout: TextLayout) -> Vec<String> {
        let TunerEvent::TrialEnded { trial, improves, .. } = event else { return Vec::new() };
        state.rows.remember(&trial.trial.proposal);
        let is_text = !matches!(self.mode, ProgressMode::Quiet | ProgressMode::Json);
        let origin = &trial.trial.proposal.origin;
        let is_shown = match trial.trial.outcome {
            Outcome::Rejected(_) => self.verbose || is_named_by_user(origin),
            Outcome::Failed(_) | Outcome::Measured(_) => true,
        };
        if *origin == Origin::Baseline {
            state.baseline = trial.score.value();
        }
        if !is_text || !is_shown {
            return Vec::new();
        }
        let mut lines = Vec::new();
        let repeated = if self.is_live() { ROWS_PER_HEADER } else { usize::MAX };
        let header = state.rows.header(layout);
        if state.header.is_none() {
            lines.push(wrap_text(TrialRows::legend(), layout, INDENT));
        }
        // A resized window may show other columns.
        if state.header.as_ref() != Some(&header) || state.rows_below_header >= repeated {
            lines.push(header.clone());
            (state.header, state.rows_below_header) = (Some(header), 0);
        }
        state.rows_below_header += 1;
        lines.push(state.rows.row(trial, state.baseline, *improves, layout));
        lines
    }

    /// Returns the text for an event, without colour or cursor movement. `None` if the event has no line. `rows` are the
    /// rows that were written for it.
    fn line(&self, event: &TunerEvent, rows: &[String]) -> Option<String> {
        match event {
            TunerEvent::Begin { study, stored: 0, .. } => Some(format!("study {study}: new")),
            TunerEvent::Begin { study, stored, launched, best } => {
                let best = best.map(|best| format!(", best {} {}", self.metric, number(best))).unwrap_or_default();
                Some(format!("study {study}: resuming after {stored} trials, {launched} of them launched{best}"))
            }
            TunerEvent::Plan(plan) => Some(plan_line(plan)),
            TunerEvent::Space(removal) if removal.rules.is_empty() => None,
            TunerEvent::Space(removal) => {
                let gone = 100.0 * (1.0 - removal.remaining_share());
                let mut lines = vec![format!("the rules remove {gone:.1} % of the space: {}", removal.by_rule())];
                lines.extend(removal.rules.iter().map(|removed| {
                    let RemovedByRule { rule, config, example, .. } = removed;
                    format!("  {rule} removes for instance {}: {example}", config.without(&self.fixed))
                }));
                Some(lines.join("\n"))
            }
            TunerEvent::LeftoversEnded { processes } => {
                Some(format!("ended {processes} processes that a killed run had left behind"))
            }
            TunerEvent::StopCommandFailed { error } => Some(format!("engine.stop_command: {error}")),
            TunerEvent::Preflight { text, is_final } => Some(preflight_line(text, *is_final)),
            TunerEvent::MemoryHeld { text } => Some(format!("device memory: {text}")),
            TunerEvent::WrongRule(WrongRule { rule, config, message }) => {
                let config = config.without(&self.fixed);
                Some(format!(
                    "rule {rule} is set aside: the installed engine accepts {config}, which the rule rejects: {message}"
                ))
            }
            TunerEvent::RuleTested { number, rule, verdict, config, message, failure } => {
                let failure = failure.as_deref().unwrap_or_default();
                Some(match verdict {
                    RuleVerdict::Refuted => format!(
                        "rule {rule} is set aside: trial {number} serves {}, which the rule rejects: {message}",
                        config.without(&self.fixed)
                    ),
                    RuleVerdict::Confirmed => {
                        format!("rule {rule} is confirmed: trial {number} failed as predicted, {failure}")
                    }
                    RuleVerdict::Inconclusive => {
                        format!("rule {rule} is still undecided: trial {number} failed for another reason, {failure}")
                    }
                })
            }
            TunerEvent::RuleSetAside { rule, study, number } => Some(format!(
                "rule {rule} is set aside: trial {number} of study {study} served a configuration that it rejects"
            )),
            TunerEvent::Launch(proposal) => self.launch_line(proposal),
            TunerEvent::Look { server_of, proposal } => self.look_line(*server_of, proposal),
            TunerEvent::Notice { text } => Some(text.clone()),
            TunerEvent::ResolvedValuesDiffer { number, differences } => {
                let told: Vec<_> = differences.iter().map(ToString::to_string).collect();
                Some(format!("trial {number}: the engine runs with other values: {}", told.join("; ")))
            }
            TunerEvent::Disturbed { number, reasons, is_repeated: true } => {
                Some(format!("trial {number}: measuring again, the engine's GPUs were disturbed: {reasons}"))
            }
            TunerEvent::Disturbed { number, reasons, is_repeated: false } => {
                Some(format!("trial {number}: the measurement stays marked as disturbed: {reasons}"))
            }
            TunerEvent::LoadProbed { number, load, knob, kept } => {
                let limits = if *kept { "the limits are kept" } else { "a limit is broken" };
                Some(format!("trial {number}: {}: {limits}", knob.describe(*load)))
            }
            TunerEvent::SampleVoided { number, reasons } => {
                Some(format!("trial {number}: measuring again, the load generator was the bottleneck: {reasons}"))
            }
            TunerEvent::Interference { found, at_a_time } => Some(interference_line(found.as_ref(), *at_a_time)),
            TunerEvent::SlotsSetAside { number, slots, why } => {
                Some(format!("trial {number}: {why}; no further trial is launched on {}", list(slots)))
            }
            TunerEvent::NoFurtherTrials { why, running } => {
                let trials = if *running == 1 {
                    "1 trial is measured to its end"
                } else {
                    &*format!("{running} trials are measured to their ends")
                };
                Some(format!("no further trial begins: {why}; {trials}"))
            }
            TunerEvent::FurtherError { error } => Some(format!("another error: {error}")),
            TunerEvent::Retry { incident, wait } => {
                let Incident { number, failure, .. } = &**incident;
                // Other failures than the environment's are retried only if concurrent trials may have caused them.
                let (whose, when) = match (failure.kind.blame(), wait.is_zero()) {
                    (Blame::Environment, true) => ("environment failure", "at once".to_owned()),
                    (Blame::Environment, false) => ("environment failure", format!("in {}", fine(*wait))),
                    _ => ("possibly caused by concurrent trials", "alone".to_owned()),
                };
                Some(format!("trial {number}: {whose}, {}: {}; launching again {when}", failure.kind, failure.message))
            }
            TunerEvent::Phase { number, phase } if self.verbose => Some(format!("trial {number}: {phase}")),
            // The error that follows an interruption or a pause contains the reason.
            TunerEvent::Phase { .. }
            | TunerEvent::Progress { .. }
            | TunerEvent::Paused(_)
            | TunerEvent::RunEnded(StudyEnding::Interrupted | StudyEnding::Paused(_)) => None,
            TunerEvent::TrialEnded { trial, .. } => self.full_cause(trial, rows),
            TunerEvent::RunEnded(ending) => Some(format!("done: {ending}")),
        }
    }

    /// Describes a launch and its reason, if `--verbose` is set. The tuner's own launches are few, and their reasons
    /// show that something is wrong, so they are described in any case.
    fn launch_line(&self, Proposal { number, origin, why, config, .. }: &Proposal) -> Option<String> {
        if !self.verbose && !matches!(origin, Origin::Probe | Origin::RuleTest) {
            return None;
        }
        let again = match origin {
            Origin::Confirmation => " again, to confirm,",
            Origin::Ablation => " to find needless flags,",
            _ => "",
        };
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        Some(format!("trial {number}: launching{again} {}{why}", config.without(&self.fixed)))
    }

    /// Describes a live look and its reason, if `--verbose` is set.
    fn look_line(&self, server_of: u32, Proposal { number, why, config, .. }: &Proposal) -> Option<String> {
        let why = why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let config = config.without(&self.fixed);
        self.verbose.then(|| format!("trial {number}: a live look on the server of trial {server_of}, {config}{why}"))
    }

    /// Returns the whole cause of a failure or rejection that its row has cut, if `--verbose` is set or users look for
    /// this trial. That of a deployment or a start point has its source, too.
    fn full_cause(&self, scored: &ScoredTrial, rows: &[String]) -> Option<String> {
        let proposal = &scored.trial.proposal;
        let cause = match &scored.trial.outcome {
            Outcome::Rejected(rejection) => {
                format!("rejected before launch, {}: {}", rejection.rule, rejection.message)
            }
            Outcome::Failed(failure) => format!("failed, {}: {}", failure.kind, failure.message),
            Outcome::Measured(_) => return None,
        };
        let is_first_point = matches!(proposal.origin, Origin::Deployment | Origin::Start);
        let source = proposal.why.as_ref().filter(|_| is_first_point);
        let source = source.map(|source| format!(" ({source})")).unwrap_or_default();
        let is_cut = rows.last().is_some_and(|row| !row.contains(&cause)) || !source.is_empty();
        let is_due = is_cut && (self.verbose || is_named_by_user(&proposal.origin));
        is_due.then(|| format!("trial {}{source}: {cause}", proposal.number))
    }
}

/// Returns whether users look for the outcome of a trial of this origin, even if it was rejected.
fn is_named_by_user(origin: &Origin) -> bool {
    matches!(origin, Origin::Baseline | Origin::Deployment | Origin::Start)
}

/// Describes a missing answer of the engine's preflight. Only a final one ends the preflight.
fn preflight_line(text: &str, is_final: bool) -> String {
    if is_final { format!("no preflight: {text}") } else { format!("preflight: {text}") }
}

/// Returns a line such as
/// `plan: 8.0 h; up to 12 launches at the end measure the best and the defaults again (24 min are reserved)`.
fn plan_line(plan: &BudgetPlan) -> String {
    let trials = plan.trials.map(|trials| format!("{trials} launches in all"));
    let time = plan.time.map(coarse);
    let budget: Vec<_> = trials.into_iter().chain(time).collect();
    let launch = plan.launch.filter(|_| plan.time.is_some());
    let launch = launch.map(|launch| format!("; a launch takes about {}", coarse(launch))).unwrap_or_default();
    let confirmed = if plan.confirms_deployment {
        "the best, the defaults and today's deployment"
    } else {
        "the best and the defaults"
    };
    let reserved =
        if plan.reserve.is_zero() { String::new() } else { format!(" ({} are reserved)", coarse(plan.reserve)) };
    let confirmation = match plan.confirmations {
        0 => "no confirmation".to_owned(),
        1 => format!("the last launch measures the best again{reserved}"),
        count if !plan.has_rounds => format!("the last {count} launches measure the best again{reserved}"),
        count => format!("up to {count} launches at the end measure {confirmed} again{reserved}"),
    };
    let ablation = match plan.ablations {
        0 => String::new(),
        count => format!("; then up to {count} find flags without an effect"),
    };
    let repeats = match plan.baseline_repeats {
        0 => String::new(),
        1 => "1 launch repeats the defaults; ".to_owned(),
        count => format!("{count} launches repeat the defaults; "),
    };
    let left =
        plan.remaining_time.filter(|left| Some(*left) != plan.time && plan.time > Some(*left + Duration::from_secs(1)));
    let left = left.map(|left| format!(" ({} left)", coarse(left))).unwrap_or_default();
    format!("plan: {}{left}; {repeats}{confirmation}{ablation}{launch}", budget.join(" or "))
}

/// Describes the measured interference, and the number of trials that run at a time from then on.
fn interference_line(found: Option<&Interference>, at_a_time: usize) -> String {
    let Some(found) = found else {
        return format!("the interference between trials is unknown; {at_a_time} run at a time");
    };
    let (alone, limit) = (number(found.alone), number(100.0 * found.limit));
    let values: Vec<_> = found.together.iter().map(|value| number(*value)).collect();
    let spoilt = match found.infeasible {
        0 => String::new(),
        spoilt => format!(", {spoilt} failed or were over a limit"),
    };
    let (values, cost) = (values.join(", "), number(100.0 * found.cost));
    let verdict = if found.is_too_much() {
        format!("above slots.max_interference of {limit} %: from here on trials run one at a time")
    } else {
        format!("{at_a_time} run at a time")
    };
    format!(
        "interference of {cost} %: the defaults reach {alone} alone and {values} on all slots at once{spoilt}; \
         {verdict}"
    )
}

/// Returns a text such as `slot 3` or `slots 2, 3`.
fn list(slots: &[usize]) -> String {
    let numbers: Vec<_> = slots.iter().map(ToString::to_string).collect();
    format!("slot{} {}", if slots.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

fn live_line() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(
        Some(1),
        ProgressDrawTarget::term_like_with_hz(Box::new(LiveTerminal::stderr()), 10),
    );
    // The template is a constant. If it were invalid, the bar would keep its default style.
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:20} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Returns the layout of standard error.
fn terminal_layout() -> TextLayout {
    layout_of(&console::Term::stderr())
}

pub(super) fn write_line(text: &str) {
    // A failed write to standard error cannot be reported anywhere, so the error is ignored.
    let _ = writeln!(anstream::stderr().lock(), "{}", sanitized(text));
}

pub(super) fn write_json(json: &serde_json::Value) {
    write_line(&json_for_terminal(&json.to_string()));
}

/// Formats a duration such as `40 s`, `12 min` or `3.5 h`. Minutes are rounded up.
pub(super) fn coarse(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..90 => format!("{seconds} s"),
        seconds @ 90..5400 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{:.1} h", duration.as_secs_f64() / 3600.0),
    }
}

/// Formats a duration such as `0.5 s` or `10 s`. Longer times are formatted by `coarse`.
fn fine(duration: Duration) -> String {
    if duration < Duration::from_secs(10) { format!("{} s", number(duration.as_secs_f64())) } else { coarse(duration) }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
