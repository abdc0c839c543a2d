//! The panel of the current launches with the phases of their starts.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::panel::ViewPanel;
use super::state::{LiveLaunch, ViewState};
use super::text::{clean, cut, progress_bar, short_seconds, short_time};
use super::theme::FAINT;
use crate::engine::StartPhase;
use crate::observation::{ExpectedLaunch, LaunchStage, ObservedPhase, RunningLaunch};

/// The largest share of an unfinished launch, because its stop follows.
const MAX_SHARE: f64 = 0.98;
const BAR_COLUMNS: usize = 20;

pub(super) fn draw_launches(frame: &mut Frame<'_>, place: Rect, state: &ViewState) {
    let theme = state.theme;
    let columns = usize::from(place.width.saturating_sub(2));
    let launches = state.data.observation.as_ref().map_or(&[][..], |observation| &observation.running);
    let title = match launches.len() {
        0 | 1 => "Current launch".to_owned(),
        count => format!("Current launches ({count})"),
    };
    let mut lines = Vec::new();
    for launch in launches {
        lines.extend(launch_lines(launch, state, columns));
    }
    if lines.is_empty() {
        lines.push(Line::styled(idle_text(state), FAINT));
        let notice = state.data.notice.as_deref();
        lines.extend(notice.map(|text| Line::raw(cut(&clean(text), columns, theme).into_owned())));
    }
    let scrolled = if state.focus == ViewPanel::Launches { state.scrolled } else { 0 };
    let rows = usize::from(place.height.saturating_sub(2));
    let skipped = scrolled.min(lines.len().saturating_sub(rows));
    let shown: Vec<_> = lines.into_iter().skip(skipped).collect();
    frame.render_widget(Paragraph::new(shown).block(theme.frame(&title, ViewPanel::Launches, state.focus)), place);
}

fn idle_text(state: &ViewState) -> &'static str {
    match &state.data.observation {
        Some(observation) if observation.tuner.is_some() => "no launch: the next trial is being chosen",
        Some(_) => "the study is not running",
        None => "preparing",
    }
}

/// Returns two lines: the progress of the launch, and the phases of its start.
fn launch_lines(launch: &RunningLaunch, state: &ViewState, columns: usize) -> [Line<'static>; 2] {
    let theme = state.theme;
    let expected = state.data.observation.as_ref().and_then(|observation| observation.expected);
    let live = state.live.as_ref();
    let live = live.and_then(|live| live.launches.iter().find(|live| live.number == launch.number));
    let what = match live {
        Some(live) => live.text.clone(),
        None => stage_text(launch, expected),
    };
    let is_stopped = launch.stage == LaunchStage::Interrupted;
    let share = share(launch, live, expected).filter(|_| !is_stopped);
    let bar = share.filter(|_| columns >= 60).map(|share| format!("{} ", progress_bar(share, BAR_COLUMNS, theme)));
    let text = format!(" {}{}", bar.unwrap_or_default(), clean(&what));
    let symbol = if is_stopped { theme.stopped() } else { theme.running() };
    let head = format!("{symbol} trial {}", launch.number);
    let text = cut(&text, columns.saturating_sub(super::text::width(&head)), theme).into_owned();
    let style = if is_stopped { theme.warning() } else { theme.active() };
    let first = Line::from(vec![Span::styled(head, style), Span::raw(text)]);
    [first, Line::from(phases_text(launch, state, columns))]
}

fn stage_text(launch: &RunningLaunch, expected: Option<ExpectedLaunch>) -> String {
    let elapsed = short_time(launch.elapsed);
    match launch.stage {
        LaunchStage::Interrupted => "interrupted; the next run launches it again".to_owned(),
        LaunchStage::Waiting => format!("waiting for its launch, {elapsed}"),
        LaunchStage::Starting => match expected {
            Some(expected) => format!("starting, {elapsed} of ~{}", short_seconds(expected.start_s)),
            None => format!("starting, {elapsed}"),
        },
        LaunchStage::Serving => match expected {
            Some(expected) => {
                format!("serving the load, {elapsed} of ~{}", short_seconds(expected.start_s + expected.rest_s))
            }
            None => format!("serving the load, {elapsed}"),
        },
    }
}

/// Returns the share of the launch that is done, from 0 to 1.
fn share(launch: &RunningLaunch, live: Option<&LiveLaunch>, expected: Option<ExpectedLaunch>) -> Option<f64> {
    let Some(ExpectedLaunch { start_s, rest_s }) = expected else { return live?.share };
    let (elapsed_s, total_s) = (launch.elapsed.as_secs_f64(), (start_s + rest_s).max(f64::MIN_POSITIVE));
    let share = match launch.stage {
        LaunchStage::Interrupted | LaunchStage::Waiting => 0.0,
        LaunchStage::Starting => elapsed_s.min(start_s) / total_s,
        LaunchStage::Serving => elapsed_s.max(start_s) / total_s,
    };
    Some(share.min(MAX_SHARE))
}

/// Returns the phases with their durations. If they do not fit, the last ones are shown.
fn phases_text(launch: &RunningLaunch, state: &ViewState, columns: usize) -> Vec<Span<'static>> {
    let theme = state.theme;
    if launch.phases.is_empty() {
        let why = launch.why.as_deref().map(|why| clean(why).into_owned()).unwrap_or_default();
        return vec![Span::styled(cut(&format!("  {why}"), columns, theme).into_owned(), FAINT)];
    }
    let text = |ObservedPhase { phase, duration }: &ObservedPhase| match duration {
        Some(duration) => format!("{} {}", phase_name(phase.name()), short_time(*duration)),
        None => phase_name(phase.name()),
    };
    let last = launch.phases.len() - 1;
    let is_up = launch.phases.last().is_some_and(|last| last.phase == StartPhase::FirstToken);
    let mut texts: Vec<_> = launch.phases.iter().map(text).collect();
    if is_up {
        // The time since the server is up is that of the load.
        "server is up".clone_into(&mut texts[last]);
    }
    let gap = theme.next();
    let mut first = 0;
    let taken =
        |texts: &[String]| texts.iter().map(|text| super::text::width(text) + super::text::width(gap)).sum::<usize>();
    while first < last && 2 + taken(&texts[first..]) > columns {
        first += 1;
    }
    let mut spans = vec![Span::raw("  ")];
    for (index, text) in texts.into_iter().enumerate().skip(first) {
        if index > first {
            spans.push(Span::styled(gap, FAINT));
        }
        let style = if index == last { theme.active() } else { theme.good() };
        spans.push(Span::styled(text, style));
    }
    spans
}

pub(super) fn phase_name(name: &str) -> String {
    clean(name).replace('_', " ").replace("kv cache", "KV cache")
}
