//! Detects a server that has stopped replying under load. The load's events show the silence. The server's counters
//! then distinguish a hang from slowness.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::progress_monitor::Stillness;
use crate::load::{LoadEvent, ObserverTick, RequestError};

/// The load's observations of a server. The load's thread writes them.
#[derive(Debug, Default)]
pub(in crate::tuner) struct ReplyMonitor(Mutex<MonitorState>);

#[derive(Debug)]
struct MonitorState {
    stillness: Stillness,
    /// The number of reply chunks by the last tick.
    chunks: u64,
    /// Whether a request has ended with an answer since the last tick.
    answered: bool,
    silence: ReplySilence,
}

/// The most time between two ticks that is added to a silence. Ticks come every 100 ms; of a longer gap only this much
/// counts.
const MAX_TICK_GAP: Duration = Duration::from_secs(1);

impl Default for MonitorState {
    fn default() -> Self {
        Self { stillness: Stillness::new(MAX_TICK_GAP), chunks: 0, answered: false, silence: ReplySilence::default() }
    }
}

/// The load at its last tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReplySilence {
    /// The time without a reply to any request, although some were under way.
    pub(super) silent: Duration,
    /// The number of requests under way.
    pub(super) in_flight: usize,
}

impl ReplyMonitor {
    /// Records an event of the load. Quick enough for the load's thread.
    pub(in crate::tuner) fn on(&self, event: &LoadEvent<'_>, now: Instant) {
        let mut state = self.state();
        match event {
            // Requests are being prepared, and none is sent yet.
            LoadEvent::Phase { .. } => *state = MonitorState::default(),
            LoadEvent::Ended { record, .. } => {
                // A refusal is an answer. A failed connection, or a timeout without a token, is none.
                state.answered |=
                    !matches!(record.result, Err(RequestError::Timeout { chunks: 0, .. } | RequestError::Connect(_)));
            }
            LoadEvent::Tick(tick) | LoadEvent::WarmupTick(tick) => state.tick(tick, now),
        }
    }

    pub(super) fn reply_silence(&self) -> ReplySilence {
        self.state().silence
    }

    fn state(&self) -> MutexGuard<'_, MonitorState> {
        // Counts stay valid after a panic in another thread.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MonitorState {
    fn tick(&mut self, tick: &ObserverTick, now: Instant) {
        let heard = tick.chunks != self.chunks || self.answered || tick.in_flight == 0;
        self.chunks = tick.chunks;
        self.answered = false;
        self.silence = ReplySilence { silent: self.stillness.look(now, heard), in_flight: tick.in_flight };
    }
}

/// The values on a server's metrics page, by series. `None` if the server has no such page or does not answer.
pub(super) type CounterPage = Option<Vec<(&'static str, f64)>>;

/// Series that only a working engine moves. Refused and aborted requests change the others.
const WORK_SERIES: [&str; 5] =
    ["generation_tokens", "prompt_tokens", "kv_cache_usage", "prefix_cache_queries", "preemptions"];

/// The next step in a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SilenceStep {
    Wait,
    /// The page is to be requested, and to be passed to [`HangCheck::compare_page`].
    RequestPage,
}

/// Distinguishes a hung server from a slow one. It asks for the metrics page after half of the limit and again at the
/// limit, and never while the server replies.
#[derive(Clone, Debug)]
pub(super) struct HangCheck {
    limit: Duration,
    /// The part of the silence that slowness explains.
    excused: Duration,
    /// The page in the middle of the silence, once it was requested. The inner value is `None` if the server did not
    /// answer.
    before: Option<CounterPage>,
    /// The silence at the last step. A shorter one is a new silence.
    last: Duration,
}

impl HangCheck {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, excused: Duration::ZERO, before: None, last: Duration::ZERO }
    }

    /// Returns the next step for the present silence. A shorter silence than the last one is a new one.
    pub(super) fn step(&mut self, silent: Duration) -> SilenceStep {
        if silent < self.last {
            (self.excused, self.before) = (Duration::ZERO, None);
        }
        self.last = silent;
        let quiet = silent.saturating_sub(self.excused);
        let due = if self.before.is_some() { self.limit } else { self.limit / 2 };
        if quiet >= due { SilenceStep::RequestPage } else { SilenceStep::Wait }
    }

    /// Starts another comparison, because the server seems to hang, but a busy one may be silent for longer than the
    /// limit. The page is requested at the next step, and again after a quarter of the limit.
    pub(super) fn postpone(&mut self, silent: Duration) {
        (self.excused, self.before) = (silent.saturating_sub(self.limit * 3 / 4), None);
    }

    /// Takes the requested page; returns whether the server hangs.
    pub(super) fn compare_page(&mut self, silent: Duration, page: CounterPage) -> bool {
        match (self.before.take(), page) {
            (None, page) => {
                self.before = Some(page);
                false
            }
            (Some(Some(before)), Some(page)) if worked(&before, &page) => {
                (self.excused, self.before) = (silent, None);
                false
            }
            // The first page could not be read: a second one is needed to compare.
            (Some(None), Some(page)) => {
                self.excused = silent.saturating_sub(self.limit / 2);
                self.before = Some(Some(page));
                false
            }
            (Some(_), _) => true,
        }
    }
}

fn worked(before: &[(&'static str, f64)], after: &[(&'static str, f64)]) -> bool {
    let value = |page: &[(&'static str, f64)], name| page.iter().find(|(found, _)| *found == name).map(|(_, v)| *v);
    WORK_SERIES.iter().any(|name| match (value(before, *name), value(after, *name)) {
        (Some(before), Some(after)) => before.total_cmp(&after).is_ne(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::to_f64;

    const TENTH: Duration = Duration::from_millis(100);

    fn tick(chunks: u64, in_flight: usize) -> LoadEvent<'static> {
        LoadEvent::Tick(ObserverTick { in_flight, chunks, ..ObserverTick::default() })
    }

    #[test]
    fn a_silence_is_counted_only_while_requests_are_under_way_and_ends_with_a_chunk() {
        let (pulse, begin) = (ReplyMonitor::default(), Instant::now());
        for i in 0..=50 {
            pulse.on(&tick(7, 3), begin + TENTH * i);
        }
        assert_eq!(pulse.reply_silence(), ReplySilence { silent: TENTH * 50, in_flight: 3 });
        pulse.on(&tick(8, 3), begin + TENTH * 51);
        assert_eq!(pulse.reply_silence().silent, Duration::ZERO);
        for i in 52..90 {
            pulse.on(&tick(8, 0), begin + TENTH * i);
            assert_eq!(pulse.reply_silence().silent, Duration::ZERO, "nobody waits");
        }
    }

    /// Returns the second at which a server with `page(second)` counts as hung, with a limit of 60 s.
    fn hangs_after(page: impl Fn(u64) -> CounterPage) -> Option<u64> {
        let mut check = HangCheck::new(Duration::from_mins(1));
        (0..1000).find(|second| {
            let silent = Duration::from_secs(*second);
            check.step(silent) == SilenceStep::RequestPage && check.compare_page(silent, page(*second))
        })
    }

    #[test]
    fn a_silent_server_hangs_when_its_counters_stand_still_as_well() {
        let tokens = |tokens: f64| Some(vec![("generation_tokens", tokens), ("requests_waiting", 3.0)]);
        assert_eq!(hangs_after(|_| tokens(5.0)), Some(60));
        assert_eq!(hangs_after(|_| None), Some(60), "it answers nothing at all");
        assert_eq!(hangs_after(|second| tokens(to_f64(second))), None, "slow");
        assert_eq!(hangs_after(|second| tokens(to_f64(second.min(100)))), Some(180), "slow, until it hangs");
        let waiting = |second: u64| Some(vec![("generation_tokens", 5.0), ("requests_waiting", to_f64(second))]);
        assert_eq!(hangs_after(waiting), Some(60), "a growing queue is not work");
        assert_eq!(
            hangs_after(|second| if second < 40 { None } else { tokens(5.0) }),
            Some(90),
            "one page is not enough"
        );
    }

    #[test]
    fn a_chunk_restarts_the_silence() {
        let mut check = HangCheck::new(TENTH * 10);
        assert_eq!(check.step(TENTH * 5), SilenceStep::RequestPage);
        assert!(!check.compare_page(TENTH * 5, None));
        assert_eq!(check.step(TENTH * 9), SilenceStep::Wait);
        assert_eq!(check.step(TENTH * 2), SilenceStep::Wait);
        assert_eq!(check.step(TENTH * 9), SilenceStep::RequestPage, "the page is requested again");
        assert!(!check.compare_page(TENTH * 9, None));
        assert_eq!(check.step(TENTH * 10), SilenceStep::RequestPage);
        assert!(check.compare_page(TENTH * 10, None));
    }
}
