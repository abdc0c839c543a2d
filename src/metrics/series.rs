//! Tokens and requests over time, in equal intervals.

use std::time::Duration;

use crate::load::RequestRecord;
use crate::stats::{f64_to_usize, to_f64};

/// Returns the arrivals of a request's output tokens, each as an instant (seconds since the run's start) and a number
/// of tokens. Each content chunk has an equal share of the tokens. If only the times of the first and the last chunk
/// were kept, the others are spread evenly between them.
pub(super) fn arrivals(record: &RequestRecord) -> impl Iterator<Item = (f64, f64)> {
    let chunks = if record.thinned { record.chunk_count as usize } else { record.chunks.len() };
    let share = f64::from(record.output_tokens) / to_f64(chunks.max(1));
    let sent = record.sent.as_secs_f64();
    let at = move |micros: f64| sent + micros / 1e6;
    let first = record.chunks.first().copied().map_or(0.0, f64::from);
    let last = record.chunks.last().copied().map_or(0.0, f64::from);
    (0..chunks).map(move |i| {
        let micros = if record.thinned {
            first + (last - first) * to_f64(i) / to_f64(chunks - 1).max(1.0)
        } else {
            f64::from(record.chunks[i])
        };
        (at(micros), share)
    })
}

/// A part of the run's time, in seconds, divided into equal intervals.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TimeGrid {
    pub(super) from: f64,
    pub(super) width: f64,
    pub(super) sums: Vec<f64>,
}

impl TimeGrid {
    /// Creates `n` intervals from `from` to `to`.
    pub(super) fn new(from: f64, to: f64, n: usize) -> Self {
        Self { from, width: (to - from) / to_f64(n), sums: vec![0.0; n] }
    }

    /// Adds to the interval of this instant. Instants outside are ignored, but the end counts as inside.
    pub(super) fn add(&mut self, at: f64, value: f64) {
        let place = (at - self.from) / self.width;
        let n = self.sums.len();
        if place >= 0.0 && place <= to_f64(n) {
            let place = f64_to_usize(place).min(n - 1);
            self.sums[place] += value;
        }
    }

    /// Returns the sum and the length of each interval: observations for batch means.
    pub(super) fn per_second(&self) -> Vec<(f64, f64)> {
        self.sums.iter().map(|sum| (*sum, self.width)).collect()
    }
}

/// Returns the number of requests that were due and had not ended, in the middle of each of `n` intervals.
pub(super) fn unfinished_requests(records: &[RequestRecord], from: f64, to: f64, n: usize) -> Vec<f64> {
    let width = (to - from) / to_f64(n);
    // Index of the first interval whose middle is not before the instant.
    let place = |at: Duration| {
        let place = ((at.as_secs_f64() - from) / width - 0.5).ceil().clamp(0.0, to_f64(n));

        f64_to_usize(place)
    };
    let mut changes = vec![0.0; n + 1];
    for record in records {
        changes[place(record.due)] += 1.0;
        changes[place(record.end)] -= 1.0;
    }
    let mut present = 0.0;
    changes.truncate(n);
    for change in &mut changes {
        present += *change;
        *change = present;
    }
    changes
}

/// Returns two maxima over all seconds: output tokens, and completed requests that were in flight in that second.
/// Seconds are counted from the first send, as in `calculate_metrics` of vllm/benchmarks/serve.py. That function counts
/// each chunk as one token.
pub(super) fn peaks<'a>(completed: impl Iterator<Item = &'a RequestRecord> + Clone) -> Option<(f64, u64)> {
    let begin = completed.clone().map(|record| record.sent).min()?.as_secs_f64();
    let last = |record: &RequestRecord| {
        record.sent.as_secs_f64() + f64::from(record.chunks.last().copied().unwrap_or(0)) / 1e6
    };
    let end = completed.clone().map(last).fold(begin, f64::max);
    let second = |at: f64| f64_to_usize((at - begin).max(0.0));
    let (mut tokens, mut changes) = (vec![0.0_f64; second(end) + 1], vec![0_i64; second(end) + 2]);
    for record in completed {
        for (at, share) in arrivals(record) {
            tokens[second(at).min(second(end))] += share;
        }
        changes[second(record.sent.as_secs_f64())] += 1;
        changes[second(last(record)) + 1] -= 1;
    }
    let present = changes.iter().scan(0, |present, change| {
        *present += change;
        Some(*present)
    });
    let most = present.max().and_then(|most| u64::try_from(most).ok())?;
    Some((tokens.into_iter().fold(0.0, f64::max), most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::example::record;

    #[test]
    fn tokens_arrive_with_their_chunks() {
        let mut two = record(1000, &[500, 700]);
        two.output_tokens = 5;
        let close = |found: &[(f64, f64)], expected: &[(f64, f64)]| {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(a, b)| (a.0 - b.0).abs() < 1e-9 && (a.1 - b.1).abs() < 1e-9)
        };
        assert!(close(&arrivals(&two).collect::<Vec<_>>(), &[(1.5, 2.5), (1.7, 2.5)]));
        let thinned = RequestRecord { thinned: true, chunk_count: 5, ..two };
        let expected = [1.5, 1.55, 1.6, 1.65, 1.7].map(|at| (at, 1.0));
        assert!(close(&arrivals(&thinned).collect::<Vec<_>>(), &expected));
        assert_eq!(arrivals(&record(0, &[])).count(), 0);
    }

    #[test]
    fn a_request_is_present_from_due_to_end() {
        let records = [record(0, &[1000]), record(500, &[1000]), record(3000, &[900])];
        // Middles at 0.25, 0.75, ... 3.75 s.
        assert_eq!(unfinished_requests(&records, 0.0, 4.0, 8), [1.0, 2.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    }

    #[test]
    fn peaks_are_counted_in_seconds_from_the_first_send() {
        let records = [record(500, &[100, 900, 1100]), record(900, &[200]), record(1600, &[10])];
        assert_eq!(peaks(records.iter()), Some((3.0, 2)));
        assert_eq!(peaks([].iter()), None);
    }

    #[test]
    fn a_grid_keeps_what_lies_within_it() {
        let mut grid = TimeGrid::new(1.0, 3.0, 4);
        for at in [0.9, 1.0, 1.6, 3.0, 3.1] {
            grid.add(at, 2.0);
        }
        assert_eq!(grid.sums, [2.0, 2.0, 0.0, 2.0]);
        assert_eq!(grid.per_second()[1], (2.0, 0.5));
    }
}
