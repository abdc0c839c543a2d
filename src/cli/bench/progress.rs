//! Progress display of `bench`. The load's thread only counts. Another task writes, so that a slow terminal or a full
//! pipe delays no request.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cli::GlobalOptions;
use crate::cli::progress::{ProgressMode, write_json, write_line};
use crate::load::{LoadEvent, LoadPhase, ObserverTick, OutputRate};
use crate::report::number;

/// Intervals of the live line, of plain lines and of JSON lines.
const LIVE_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const JSON_INTERVAL: Duration = Duration::from_secs(1);

/// Progress of the load, written by the load's thread.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveCounts(Arc<Mutex<LoadProgress>>);

#[derive(Clone, Debug, Default)]
struct LoadProgress {
    phase: Option<LoadPhase>,
    total: Option<u64>,
    done: u64,
    failed: u64,
    /// Sum of the times to first token, and their number.
    ttft: (Duration, u32),
    tick: ObserverTick,
    began: Option<Instant>,
    /// The output over the last second.
    speed: OutputRate,
}

impl LiveCounts {
    fn state(&self) -> MutexGuard<'_, LoadProgress> {
        // A panic elsewhere must not end the progress display.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the progress. The load's thread calls it.
    pub(super) fn follow(&self, event: &LoadEvent<'_>) {
        let mut state = self.state();
        match event {
            LoadEvent::Phase { phase, total } => {
                *state = LoadProgress {
                    phase: Some(*phase),
                    total: *total,
                    began: Some(Instant::now()),
                    ..LoadProgress::default()
                };
            }
            LoadEvent::Ended { record, .. } => {
                state.done += 1;
                state.failed += u64::from(record.result.is_err());
                if let Some(ttft) = record.ttft().filter(|_| record.result.is_ok()) {
                    state.ttft.0 += ttft;
                    state.ttft.1 += 1;
                }
            }
            LoadEvent::Tick(tick) => state.tick = *tick,
            LoadEvent::WarmupTick(_) => {}
        }
        state.speed.follow(event);
    }
}

/// Returns the phase's name for the display.
fn name(phase: Option<LoadPhase>) -> &'static str {
    match phase {
        None | Some(LoadPhase::Prepare) => "preparing",
        Some(LoadPhase::Warmup) => "warming up",
        Some(LoadPhase::Measure) => "measuring",
    }
}

impl LoadProgress {
    /// Returns a line such as `measuring 120/1000, 1523 tok/s, 64 in flight, TTFT 51.2 ms, 12 s`.
    fn text(&self) -> String {
        let mut parts = vec![match self.total {
            Some(total) => format!("{} {}/{total}", name(self.phase), self.done),
            None if self.done > 0 => format!("{} {}", name(self.phase), self.done),
            None => name(self.phase).to_owned(),
        }];
        if self.failed > 0 {
            parts.push(format!("{} failed", self.failed));
        }
        if self.phase == Some(LoadPhase::Measure) {
            match self.speed.tokens_per_s() {
                Some(tokens) => parts.push(format!("{} tok/s", number(tokens))),
                // No request has ended yet, so the number of tokens in a chunk is not known.
                None if self.speed.chunks_per_s() > 0.0 => {
                    parts.push(format!("{} chunks/s", number(self.speed.chunks_per_s())));
                }
                None => {}
            }
            parts.push(format!("{} in flight", self.tick.in_flight));
            if self.tick.waiting > 0 {
                parts.push(format!("{} waiting", self.tick.waiting));
            }
        }
        parts.extend(self.ttft_ms().map(|ttft| format!("TTFT {} ms", number(ttft))));
        parts.extend(self.began.map(|began| format!("{} s", began.elapsed().as_secs())));
        parts.join(", ")
    }

    fn ttft_ms(&self) -> Option<f64> {
        self.ttft.0.checked_div(self.ttft.1).map(|mean| mean.as_secs_f64() * 1e3)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "event": "progress",
            "phase": name(self.phase),
            "done": self.done,
            "total": self.total,
            "failed": self.failed,
            "in_flight": self.tick.in_flight,
            "waiting": self.tick.waiting,
            "chunks_per_s": self.speed.chunks_per_s(),
            "output_tokens_per_s": self.speed.tokens_per_s(),
            "mean_ttft_ms": self.ttft_ms(),
            "elapsed_s": self.began.map(|began| began.elapsed().as_secs_f64()),
        })
    }
}

/// Writes progress and notes to standard error.
pub(super) struct BenchDisplay {
    mode: ProgressMode,
}

impl BenchDisplay {
    pub(super) fn new(global: &GlobalOptions) -> Self {
        Self { mode: ProgressMode::of(global) }
    }

    pub(super) fn note(&self, text: &str) {
        self.mode.note(text);
    }

    pub(super) fn finish(&self) {
        self.mode.finish();
    }

    /// Shows the load's progress until the returned future is dropped.
    pub(super) async fn watch(&self, live: &LiveCounts) -> Infallible {
        let pace = match &self.mode {
            ProgressMode::Quiet => return std::future::pending().await,
            ProgressMode::Live(_) | ProgressMode::View(_) => LIVE_INTERVAL,
            ProgressMode::Lines => LINE_INTERVAL,
            ProgressMode::Json => JSON_INTERVAL,
        };
        let (mut shown, mut last) = (None, Instant::now());
        loop {
            tokio::time::sleep(LIVE_INTERVAL).await;
            let state = live.state().clone();
            let turned = shown != state.phase;
            shown = state.phase;
            if let ProgressMode::Live(bar) = &self.mode {
                bar.set_length(state.total.unwrap_or(0).max(1));
                bar.set_position(state.done);
                bar.set_message(state.text());
                continue;
            }
            if turned || last.elapsed() >= pace {
                last = Instant::now();
                match &self.mode {
                    ProgressMode::Json => write_json(&state.json()),
                    _ => write_line(&state.text()),
                }
            }
        }
    }
}

impl Drop for BenchDisplay {
    /// Removes the live line, so that an error message begins on a line of its own.
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_the_phase_and_its_counts() {
        let live = LiveCounts::default();
        assert_eq!(live.state().text(), "preparing");
        live.follow(&LoadEvent::Phase { phase: LoadPhase::Measure, total: Some(10) });
        live.follow(&LoadEvent::Tick(ObserverTick {
            at: Duration::from_secs(2),
            sent: 4,
            in_flight: 3,
            waiting: 1,
            chunks: 100,
        }));
        assert_eq!(live.state().text(), "measuring 0/10, 50 chunks/s, 3 in flight, 1 waiting, 0 s");
        assert_eq!(live.state().json()["chunks_per_s"], 50.0);
    }

    #[test]
    fn a_phase_begins_with_counts_of_zero() {
        let live = LiveCounts::default();
        live.follow(&LoadEvent::Tick(ObserverTick {
            at: Duration::from_secs(2),
            chunks: 100,
            ..ObserverTick::default()
        }));
        live.follow(&LoadEvent::Phase { phase: LoadPhase::Warmup, total: None });
        assert_eq!(live.state().text(), "warming up, 0 s");
    }
}
