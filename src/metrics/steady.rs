//! The steady-state part of a run, found by rule.
//!
//! **Drain.** The steady part ends with the last send: afterwards no load is offered, and the server empties. If
//! requests were abandoned at the end of the run, their tokens and latencies are unknown. The steady part then ends
//! earlier, at the run's end minus the longest duration of a known request, so that no request is missing in it.
//!
//! **Warm-up.** The remaining part is divided into 200 intervals. MSER-5 finds the end of the warm-up in two series:
//! the output tokens of each interval, and the number of requests that were due and had not ended. (By Little's law the
//! latter represents the latencies.) MSER-5 forms the `m` means `z` of five neighbouring intervals each. It cuts the
//! first `d` means. This `d` is the one in the first half with the smallest value of
//!
//! ```text
//! sum over i >= d of (z[i] - mean of z[d..])^2 / (m - d)^2
//! ```
//!
//! Sources: White, An effective truncation heuristic for bias reduction in simulation output, Simulation 69, 1997.
//! White, Cobb and Spratt, A comparison of five steady-state truncation heuristics for simulation, WSC 2000.
//!
//! A standard deviation of the means below 1 % counts as 1 %, so that gaps of a millisecond decide nothing.
//!
//! If a `d` beyond the middle makes the expression less than half as large, there is no steady state yet. (The rule as
//! published requires only a smaller value, and rejects one of twelve steady runs of random arrivals by chance.) The
//! last five means are no candidates: five means may be alike by chance.
//!
//! **Plausibility.** The remaining part must have no trend: a straight line through its means may not change
//! significantly by more than 10 % over the part. It must also contain at least 30 requests and last for
//! at least three median durations of a request.

use crate::load::LoadRun;
use crate::stats::{percentile, to_f64};
use crate::trial::MeasuredWindow;

use super::series::{TimeGrid, arrivals, unfinished_requests};

/// Number of equal intervals of the series.
const INTERVALS: usize = 200;

/// Intervals in one of MSER-5's means.
const BATCH_INTERVALS: usize = 5;

/// Means at the end that are no candidates for the beginning.
const EXCLUDED_MEANS: usize = 5;

/// Standard deviation of the means, as a share of their mean, below which a series counts as constant. Users in
/// lockstep send their next requests within a millisecond, and without this limit such gaps decide where the warm-up
/// ends.
const IRRELEVANT_DEVIATION: f64 = 0.01;

/// Required advantage, as a factor, of a cut beyond the middle over the best one before it. A smaller one may be
/// chance.
const MIN_ADVANTAGE: f64 = 2.0;

/// Maximum change by a trend over the steady part, as a share of its mean.
const MAX_TREND: f64 = 0.1;

/// Minimum significance of a trend, in standard errors of its slope. With 20 means or more, chance reaches it in one
/// case of a thousand.
const MIN_TREND_ERRORS: f64 = 4.0;

/// Minimum number of requests in the steady part.
const MIN_REQUESTS: usize = 30;

/// Minimum length of the steady part, in median durations of a request.
const MIN_MEDIAN_DURATIONS: f64 = 3.0;

/// Returns the steady part of a run, or the whole run with the reason if there is none.
#[must_use]
pub(crate) fn steady(run: &LoadRun) -> MeasuredWindow {
    let whole = whole(run);
    find(run, &whole).unwrap_or_else(|reason| MeasuredWindow {
        reason: format!("the whole run, because it has no steady state: {reason}"),
        ..whole
    })
}

/// Returns the window from the first send to the last finish.
#[must_use]
pub(crate) fn whole(run: &LoadRun) -> MeasuredWindow {
    let first = run.records.iter().map(|record| record.sent).min().unwrap_or_default();
    let last = run.records.iter().map(|record| record.end).max().unwrap_or_default();
    MeasuredWindow {
        from_s: first.as_secs_f64(),
        to_s: last.as_secs_f64(),
        steady: false,
        reason: "the whole run, from the first send to the last finish".to_owned(),
        saved_s: None,
        overloaded: false,
    }
}

fn find(run: &LoadRun, whole: &MeasuredWindow) -> Result<MeasuredWindow, String> {
    let mut services: Vec<f64> =
        run.records.iter().map(|record| record.end.saturating_sub(record.sent).as_secs_f64()).collect();
    services.sort_by(f64::total_cmp);
    let (Some(median), Some(longest)) = (percentile(&services, 50.0), services.last()) else {
        return Err("no request ended".to_owned());
    };
    let from = whole.from_s;
    let last = run.records.iter().map(|record| record.sent).max().unwrap_or_default().as_secs_f64();
    let known = if run.unfinished > 0 {
        last.min(run.ended.saturating_duration_since(run.began).as_secs_f64() - longest)
    } else {
        last
    };
    let long = |from: f64, to: f64| {
        let (length, least) = (to - from, MIN_MEDIAN_DURATIONS * median);
        if length > 0.0 && length >= least {
            return Ok(());
        }
        Err(format!(
            "load was offered for {:.1} s, but {least:.1} s (three median requests) are needed",
            length.max(0.0)
        ))
    };
    long(from, known)?;

    let mut tokens = TimeGrid::new(from, known, INTERVALS);
    for record in run.records.iter().filter(|record| record.result.is_ok()) {
        arrivals(record).for_each(|(at, share)| tokens.add(at, share));
    }
    let present = unfinished_requests(&run.records, from, known, INTERVALS);
    let begin = |series: &[f64], name: &str| {
        mser5(series).ok_or_else(|| format!("{name} had not settled by the middle of the run"))
    };
    let cut = begin(&tokens.sums, "the output tokens per second")?.max(begin(&present, "the unfinished requests")?);
    for (series, name) in [(&tokens.sums, "the output tokens per second"), (&present, "the unfinished requests")] {
        let change = trend(&series[cut..]);
        if change.abs() > MAX_TREND {
            return Err(format!("{name} still changed by {:+.0} % in the part after the warm-up", change * 100.0));
        }
    }

    let begin = from + to_f64(cut) * tokens.width;
    long(begin, known)?;
    let sent = run.records.iter().filter(|record| (begin..=known).contains(&record.sent.as_secs_f64())).count();
    if sent < MIN_REQUESTS {
        return Err(format!("{sent} requests were sent in the steady part, but {MIN_REQUESTS} are needed"));
    }
    let reason = format!(
        "steady: {:.1} s of warm-up (MSER-5) and {:.1} s of drain are cut off",
        begin - from,
        (whole.to_s - known).max(0.0)
    );
    Ok(MeasuredWindow { from_s: begin, to_s: known, steady: true, reason, saved_s: None, overloaded: false })
}

/// Returns the number of values that MSER-5 cuts off at the beginning of a series. Returns `None` if a cut beyond the
/// middle is far better, because the warm-up then does not end in the first half. Also returns `None` for fewer than
/// ten means.
#[must_use]
pub(crate) fn mser5(series: &[f64]) -> Option<usize> {
    let means: Vec<f64> =
        series.chunks_exact(BATCH_INTERVALS).map(|batch| batch.iter().sum::<f64>() / to_f64(BATCH_INTERVALS)).collect();
    if means.len() < 2 * EXCLUDED_MEANS {
        return None;
    }
    let error = |cut: usize| {
        let left = &means[cut..];
        let n = to_f64(left.len());
        let mean = left.iter().sum::<f64>() / n;
        let squares: f64 = left.iter().map(|value| (value - mean).powi(2)).sum();
        squares.max(n * (mean * IRRELEVANT_DEVIATION).powi(2)) / (n * n)
    };
    let least = |cuts: std::ops::Range<usize>| cuts.map(|cut| (cut, error(cut))).min_by(|a, b| a.1.total_cmp(&b.1));
    let middle = means.len() / 2;
    let (first, second) = (least(0..middle + 1)?, least(middle + 1..means.len() - EXCLUDED_MEANS));
    let settled = second.is_none_or(|second| second.1 * MIN_ADVANTAGE >= first.1);
    settled.then_some(first.0 * BATCH_INTERVALS)
}

/// Returns the change of a straight line through the means of a series, from its start to its end, as a share of the
/// mean. Returns 0 if the change is not significant.
fn trend(series: &[f64]) -> f64 {
    let means: Vec<f64> =
        series.chunks_exact(BATCH_INTERVALS).map(|batch| batch.iter().sum::<f64>() / to_f64(BATCH_INTERVALS)).collect();
    let n = to_f64(means.len());
    let (mean, middle) = (means.iter().sum::<f64>() / n, (n - 1.0) / 2.0);
    let off = || means.iter().enumerate().map(|(i, value)| (to_f64(i) - middle, value - mean));
    let spread: f64 = off().map(|(x, _)| x * x).sum();
    let slope = off().map(|(x, y)| x * y).sum::<f64>() / spread;
    let rest: f64 = off().map(|(x, y)| (y - slope * x).powi(2)).sum();
    let error = (rest / (n - 2.0) / spread).sqrt();
    if mean > 0.0 && n > 2.0 && slope.abs() > MIN_TREND_ERRORS * error { slope * n / mean } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::load::{ArrivalPattern, RequestRecord, instants};
    use crate::metrics::example::{record, run};

    fn noisy(n: usize, value: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        (0..n).map(|i| value(to_f64(i)) + rng.random_range(-5.0..5.0)).collect()
    }

    #[test]
    fn mser_cuts_what_is_before_the_plateau() {
        for ramp in [0_u32, 20, 40, 80] {
            let ramp = f64::from(ramp);
            let series = noisy(200, |i| if i < ramp { 100.0 * i / ramp } else { 100.0 });
            let cut = to_f64(mser5(&series).unwrap());
            assert!((ramp - 15.0..=ramp + 30.0).contains(&cut), "{cut} of a ramp of {ramp}");
        }
        assert_eq!(mser5(&[7.3; 100]), Some(0));
    }

    #[test]
    fn deviations_far_below_the_mean_decide_nothing() {
        // Users in lockstep: gaps of a millisecond between requests, which end in the second half by chance.
        let series: Vec<f64> = (0..200).map(|i| if i < 150 && i % 17 == 0 { 7.99 } else { 8.0 }).collect();
        assert_eq!(mser5(&series), Some(0));
    }

    #[test]
    fn a_trend_has_no_plateau_and_neither_has_a_short_series() {
        assert_eq!(mser5(&noisy(200, |i| i)), None);
        assert_eq!(mser5(&[1.0; 49]), None);
        let change = trend(&noisy(200, |i| 100.0 + 0.2 * i));
        assert!((change - 0.33).abs() < 0.03, "{change}");
        assert!(trend(&noisy(200, |_| 100.0)).abs() < 1e-12);
    }

    /// Returns the records of a closed loop of `users` users. Their requests take half a second and have five chunks.
    /// The users' first sends are `stagger` ms apart, and nothing is sent after `offered` ms.
    fn closed(users: u64, stagger: u64, offered: u64) -> Vec<RequestRecord> {
        let of = |user: u64| (0..).map(move |i| user * stagger + i * 500).take_while(move |sent| *sent <= offered);
        let mut records: Vec<_> =
            (0..users).flat_map(of).map(|sent| record(sent, &[100, 200, 300, 400, 500])).collect();
        records.sort_by_key(|record| record.end);
        records
    }

    #[test]
    fn warm_up_and_drain_are_cut_off() {
        let window = steady(&run(closed(10, 300, 20_000)));
        assert!(window.steady, "{}", window.reason);
        // The last of the users comes at 2.7 s, and the last request goes out shortly before 20 s.
        assert!((2.0..4.5).contains(&window.from_s) && (19.5..=20.0).contains(&window.to_s), "{window:?}");
        assert!(window.reason.contains("MSER-5"), "{}", window.reason);
    }

    #[test]
    fn users_who_all_begin_at_once_and_stay_in_step_are_steady() {
        let window = steady(&run(closed(10, 0, 20_000)));
        assert!(window.steady && window.from_s < 10.0, "{window:?}");
    }

    #[test]
    fn random_arrivals_at_a_server_that_keeps_up_are_steady() {
        let found = |seed| {
            let arrival = ArrivalPattern::Rate { per_s: 20.0, burstiness: 1.0 };
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut of = |at: Duration| {
                let scale = rng.random_range(1..=8_u32);
                let chunks: Vec<u32> = (1..=10).map(|i| i * 20 * scale).collect();
                record(u64::try_from(at.as_millis()).unwrap(), &chunks)
            };
            let records: Vec<_> = instants(&arrival, seed, Some(1200)).map(&mut of).collect();
            let window = steady(&run(records));
            window.steady
        };
        let steady = (0..100).filter(|seed| found(*seed)).count();
        assert!(steady >= 97, "{steady} of 100");
    }

    #[test]
    fn a_run_that_is_too_short_is_used_as_a_whole_with_the_reason() {
        let window = steady(&run(closed(10, 0, 0)));
        assert_eq!((window.steady, window.from_s, window.to_s), (false, 0.0, 0.5));
        assert!(window.reason.contains("0.0 s, but 1.5 s"), "{}", window.reason);
        let few = steady(&run(closed(2, 0, 5000)));
        assert!(!few.steady && few.reason.contains("requests were sent in the steady part, but 30"), "{}", few.reason);
        let none = steady(&run(Vec::new()));
        assert!(!none.steady && none.reason.contains("no request ended"), "{}", none.reason);
    }

    #[test]
    fn a_queue_that_grows_is_no_steady_state() {
        // The server takes 100 ms per request, and a request arrives every 80 ms.
        let records =
            (0..400_u64).map(|i| RequestRecord { end: Duration::from_millis((i + 1) * 100), ..record(i * 80, &[10]) });
        let window = steady(&run(records.collect()));
        assert!(!window.steady && window.reason.contains("had not settled"), "{}", window.reason);
    }

    #[test]
    fn requests_abandoned_at_the_end_shorten_the_window() {
        let mut run = run(closed(10, 50, 20_000));
        run.records.retain(|record| record.end <= Duration::from_secs(20));
        (run.ended, run.unfinished) = (run.began + Duration::from_secs(20), 10);
        let window = steady(&run);
        assert!(window.steady && (window.to_s - 19.5).abs() < 1e-9, "{window:?}");
    }
}
