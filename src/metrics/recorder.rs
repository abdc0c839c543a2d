//! Recorder of a running load: a series per second and a histogram. Their size does not depend on the number of tokens.
//! The observer of the load feeds them.

use std::time::Duration;

use serde::Serialize;

use crate::load::{LoadEvent, LoadPhase, RequestRecord};
use crate::trial::Distribution;

use super::histogram::Histogram;
use super::milliseconds;
use super::series::arrivals;

/// One second of the measurement window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct RecordedSecond {
    /// Seconds since the window's start.
    pub at_s: u64,
    pub sent: u64,
    pub completed: u64,
    pub failed: u64,
    /// Output tokens of completed requests that arrived in this second. Each chunk counts as an equal share of its
    /// request's tokens.
    pub output_tokens: f64,
    /// Maximum number of requests in flight at a tick of this second. `None` without a tick.
    pub in_flight: Option<usize>,
    /// Like `in_flight`, for sessions that wait for a place.
    pub waiting: Option<usize>,
    /// Mean TTFT of the first tokens that arrived in this second.
    pub mean_ttft_ms: Option<f64>,
    pub max_ttft_ms: Option<f64>,
}

/// Sums over one second.
#[derive(Clone, Debug, Default)]
struct SecondSums {
    sent: u64,
    completed: u64,
    failed: u64,
    output_tokens: f64,
    in_flight: Option<usize>,
    waiting: Option<usize>,
    first_tokens: u32,
    ttft_ms: f64,
    max_ttft_ms: f64,
}

/// The measurement window so far: 100 bytes for each second, and several hundred kilobytes for the histogram.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowRecorder {
    seconds: Vec<SecondSums>,
    itl_ns: Histogram,
}

impl WindowRecorder {
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Records an event. Only events of the measurement window count.
    pub(crate) fn on(&mut self, event: &LoadEvent<'_>) {
        match event {
            LoadEvent::Ended { phase: LoadPhase::Measure, record } => self.ended(record),
            LoadEvent::Tick(tick) => {
                let second = self.at(tick.at);
                second.in_flight = second.in_flight.max(Some(tick.in_flight));
                second.waiting = second.waiting.max(Some(tick.waiting));
            }
            LoadEvent::Ended { .. } | LoadEvent::Phase { .. } | LoadEvent::WarmupTick(_) => {}
        }
    }

    fn ended(&mut self, record: &RequestRecord) {
        self.at(record.sent).sent += 1;
        if record.result.is_err() {
            self.at(record.end).failed += 1;
            return;
        }
        self.at(record.end).completed += 1;
        for (at, share) in arrivals(record) {
            self.at(Duration::try_from_secs_f64(at).unwrap_or_default()).output_tokens += share;
        }
        if let (Some(ttft), Some(first)) = (record.ttft(), record.chunks.first()) {
            let ttft = milliseconds(ttft);
            let second = self.at(record.sent + Duration::from_micros(u64::from(*first)));
            second.first_tokens += 1;
            second.ttft_ms += ttft;
            second.max_ttft_ms = second.max_ttft_ms.max(ttft);
        }
        if !record.thinned {
            record.gaps().for_each(|gap| self.itl_ns.add(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX)));
        }
    }

    fn at(&mut self, at: Duration) -> &mut SecondSums {
        let place = usize::try_from(at.as_secs()).unwrap_or(usize::MAX);
        if place >= self.seconds.len() {
            self.seconds.resize_with(place + 1, SecondSums::default);
        }
        &mut self.seconds[place]
    }

    /// Returns every second so far. A request enters the series when it ends. The last seconds therefore still change,
    /// and requests that are abandoned at the end of a run are missing.
    #[must_use]
    pub(crate) fn series(&self) -> Vec<RecordedSecond> {
        let second = |(at_s, sums): (u64, &SecondSums)| RecordedSecond {
            at_s,
            sent: sums.sent,
            completed: sums.completed,
            failed: sums.failed,
            output_tokens: sums.output_tokens,
            in_flight: sums.in_flight,
            waiting: sums.waiting,
            mean_ttft_ms: (sums.first_tokens > 0).then(|| sums.ttft_ms / f64::from(sums.first_tokens)),
            max_ttft_ms: (sums.first_tokens > 0).then_some(sums.max_ttft_ms),
        };
        (0..).zip(&self.seconds).map(second).collect()
    }

    /// Returns the ITL over all gaps so far, in milliseconds. Percentiles are accurate within 0.05 %. Mean and
    /// deviation are exact.
    #[must_use]
    pub(crate) fn itl_ms(&self) -> Option<Distribution> {
        self.itl_ns.distribution(1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{ObserverTick, RequestError};
    use crate::metrics::example::record;

    fn seen(records: &[RequestRecord]) -> WindowRecorder {
        let mut recorder = WindowRecorder::new();
        for record in records {
            recorder.on(&LoadEvent::Ended { phase: LoadPhase::Measure, record });
        }
        recorder
    }

    #[test]
    fn every_second_has_what_happened_in_it() {
        let failed = RequestRecord { result: Err(RequestError::Reset(String::new())), ..record(1200, &[100]) };
        let mut recorder = seen(&[record(100, &[400, 1000, 2000]), record(900, &[200, 300]), failed]);
        let tick = |at, in_flight| ObserverTick {
            at: Duration::from_millis(at),
            in_flight,
            waiting: 1,
            ..ObserverTick::default()
        };
        recorder.on(&LoadEvent::Tick(tick(1100, 2)));
        recorder.on(&LoadEvent::Tick(tick(1200, 3)));
        recorder.on(&LoadEvent::Ended { phase: LoadPhase::Warmup, record: &record(0, &[1]) });
        let seconds = recorder.series();
        assert_eq!(seconds.len(), 3);
        let counts: Vec<_> = seconds.iter().map(|second| (second.sent, second.completed, second.failed)).collect();
        assert_eq!(counts, [(2, 0, 0), (1, 1, 1), (0, 1, 0)]);
        let tokens: Vec<_> = seconds.iter().map(|second| second.output_tokens.round()).collect();
        assert_eq!(tokens, [1.0, 3.0, 1.0]);
        assert_eq!((seconds[1].in_flight, seconds[1].waiting, seconds[0].in_flight), (Some(3), Some(1), None));
        assert_eq!(
            (seconds[0].mean_ttft_ms, seconds[1].max_ttft_ms, seconds[2].max_ttft_ms),
            (Some(400.0), Some(200.0), None)
        );
    }

    #[test]
    fn a_day_fits_in_memory() {
        // 100 bytes for each of 86,400 seconds.
        assert!(size_of::<SecondSums>() <= 104, "{}", size_of::<SecondSums>());
    }
}
