//! Verdict on the load generator: a sample is void if the load could not keep up.
//!
//! A sample is void if one of the following conditions holds. At each limit the client changes the measured quantity by
//! about a tenth, or by more than the project's accuracy of 10 ms at the 99th percentile.
//!
//! - The load's thread used more than 90 % of a core. One thread is a queue with one server. At 90 % an event waits
//!   nine times as long as it takes, and beyond that the wait grows without bound.
//! - The kernel does not timestamp arriving bytes, and the 99th percentile of the load's lag is too large. Its limit is
//!   10 % of the median TPOT, but at least 2 ms and at most 10 ms. (Timers fire up to 1 ms late on a thread without
//!   work.) The lag is then part of every latency.
//! - The last bytes of replies waited too long for the load, in a closed loop (or with limited places and all sessions
//!   due at once). The limit of the mean wait is 5 % of the median E2EL, but at least 10 ms. Every user sends its next
//!   request late by this wait, and that share of the throughput is missing.
//! - The first requests of an open loop's sessions were late, although they did not wait for a place. The limit of the
//!   99th percentile is 10 % of the mean gap between arrivals, but at least 10 ms. Lateness counts in the latencies,
//!   and it changes the arrivals' pattern. Requests that waited for a place are excluded: the server delayed them.
//! - Sessions of an open loop were sent at less than 95 % of the rate at which they were due, and none had to wait.
//! - More than 1 % of the requests, and more than two, were due before they had been generated.
//!
//! If the load's thread was ready to run but had no processor for more than 5 % of the window, the reasons of waiting,
//! lag and lateness name this cause.
//!
//! Fewer than 50 replies or 150 reads are no evidence of a wait or a lag: a single pause of the machine would dominate
//! them.

use crate::load::{ArrivalPattern, ClientUse, LoadPlan, LoadRun, RequestRecord};
use crate::stats::{median, percentile, to_f64};
use crate::trial::ClientReport;

use super::{milliseconds, tpot_ms};

/// A share of one core.
const MAX_CPU_SHARE: f64 = 0.9;
/// A share of the rate at which sessions were due.
const MIN_RATE_SHARE: f64 = 0.95;
/// A share of the requests.
const MAX_STARVED_SHARE: f64 = 0.01;
/// A number of requests.
const HARMLESS_STARVED: u64 = 2;
/// A share of the window.
const MAX_PROCESSOR_WAIT: f64 = 0.05;
/// Minimum number of reads for a verdict on the lag.
const MIN_READS: usize = 150;
/// Minimum number of completed replies for a verdict on their wait.
const MIN_REPLIES: usize = 50;
/// Milliseconds that are harmless in every comparison.
const HARMLESS_MS: f64 = 10.0;
/// Inaccuracy of the timers themselves, in milliseconds.
const TIMER_ERROR_MS: f64 = 2.0;
/// Minimum number of sends for a verdict on their rate.
const MIN_SENDS: usize = 20;

/// Judges the load generator in a run that was driven by this plan.
#[must_use]
pub(crate) fn validity(run: &LoadRun, plan: &LoadPlan) -> ClientReport {
    let client = &run.client;
    let (cpu_s, wall_s) = (client.cpu.as_secs_f64(), client.wall.as_secs_f64());
    // With the other arrivals a session is due when it is sent.
    let timed = !matches!(plan.arrival, ArrivalPattern::Closed | ArrivalPattern::AtOnce);
    // If all sessions are due at once but wait for places, each is sent when another has ended, as in a closed loop.
    let open = timed || plan.arrival == ArrivalPattern::AtOnce && plan.concurrency.is_none();
    let lags: Vec<f64> = client.lags_us.iter().map(|lag| f64::from(*lag) / 1e3).collect();
    let first_turns = || run.records.iter().filter(|record| record.turn == 0);
    let mut lateness: Vec<f64> =
        first_turns().filter(|record| !record.queued).map(|record| milliseconds(record.lateness())).collect();
    lateness.sort_by(f64::total_cmp);
    let completed: Vec<&RequestRecord> = run.records.iter().filter(|record| record.result.is_ok()).collect();
    let mut report = ClientReport {
        cpu_s,
        cpu_share: if wall_s > 0.0 { cpu_s / wall_s } else { 0.0 },
        processor_wait_s: client.processor_wait.map(|waited| waited.as_secs_f64()),
        realtime: client.realtime,
        p50_lag_ms: percentile(&lags, 50.0),
        p99_lag_ms: percentile(&lags, 99.0),
        max_lag_ms: (!lags.is_empty()).then(|| f64::from(client.max_lag_us) / 1e3),
        mean_turnaround_ms: (!completed.is_empty()).then(|| milliseconds(client.turnaround) / to_f64(completed.len())),
        p99_lateness_ms: percentile(&lateness, 99.0).filter(|_| timed),
        achieved_rate: rate(first_turns().map(|record| record.sent.as_secs_f64())),
        offered_rate: rate(first_turns().map(|record| record.due.as_secs_f64())).filter(|_| timed),
        peak_in_flight: client.peak_in_flight as u64,
        starved: client.starved,
        kernel_stamps: client.kernel_stamps,
        valid: true,
        reasons: Vec::new(),
    };
    let cause = processor_wait_cause(&report, wall_s).unwrap_or_default();
    let caused = |reason: Option<String>| reason.map(|reason| reason + &cause);
    let reasons = [
        overload_reason(&report),
        caused(lag_reason(&report, client, &completed)),
        caused(turnaround_reason(&report, &completed).filter(|_| !open)),
        caused(lateness_reason(&report)),
        slow_rate_reason(&report, run),
        starvation_reason(&report, run),
    ];
    report.reasons = reasons.into_iter().flatten().collect();
    report.valid = report.reasons.is_empty();
    report
}

/// Returns the rate of instants per second, or `None` for fewer than two and if all are equal.
fn rate(at: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut n, mut first, mut last) = (0_usize, f64::INFINITY, f64::NEG_INFINITY);
    for at in at {
        (n, first, last) = (n + 1, first.min(at), last.max(at));
    }
    (n > 1 && last > first).then(|| to_f64(n - 1) / (last - first))
}

fn overload_reason(report: &ClientReport) -> Option<String> {
    (report.cpu_share > MAX_CPU_SHARE).then(|| {
        format!(
            "the load generator used {:.0} % of its processor core, more than {:.0} %: it was the bottleneck",
            report.cpu_share * 100.0,
            MAX_CPU_SHARE * 100.0
        )
    })
}

fn lag_reason(report: &ClientReport, client: &ClientUse, completed: &[&RequestRecord]) -> Option<String> {
    if client.kernel_stamps || client.lags_us.len() < MIN_READS {
        return None;
    }
    let tenth = median(completed.iter().filter_map(|record| tpot_ms(record))).map_or(HARMLESS_MS, |tpot| tpot / 10.0);
    let (lag, limit) = (report.p99_lag_ms?, tenth.clamp(TIMER_ERROR_MS, HARMLESS_MS));
    (lag > limit).then(|| {
        format!(
            "the load generator's event loop lagged by {lag:.1} ms (p99), more than {limit:.1} ms: the latencies \
             include this lag"
        )
    })
}

fn turnaround_reason(report: &ClientReport, completed: &[&RequestRecord]) -> Option<String> {
    let e2el = median(completed.iter().filter_map(|record| record.e2el()).map(milliseconds)).unwrap_or(0.0);
    let (waited, limit) = (report.mean_turnaround_ms?, HARMLESS_MS.max(0.05 * e2el));
    (completed.len() >= MIN_REPLIES && waited > limit).then(|| {
        format!(
            "complete replies waited {waited:.1} ms (mean) for the load generator, more than {limit:.1} ms: the next \
             requests were sent late by this time"
        )
    })
}

fn lateness_reason(report: &ClientReport) -> Option<String> {
    let (late, rate) = (report.p99_lateness_ms?, report.offered_rate?);
    let limit = HARMLESS_MS.max(100.0 / rate);
    (late > limit)
        .then(|| format!("requests were sent {late:.1} ms (p99) after they were due, more than {limit:.1} ms"))
}

/// Returns the reason that the load was late although it had little to do, as the end of a sentence.
fn processor_wait_cause(report: &ClientReport, wall_s: f64) -> Option<String> {
    let waited = report.processor_wait_s.filter(|waited| *waited > MAX_PROCESSOR_WAIT * wall_s)?;
    let remedy = if report.realtime {
        "leave it a processor that nothing else uses"
    } else {
        "allow it a real-time priority (`ulimit -r 1` or CAP_SYS_NICE), or leave it a processor that the engine does not use"
    };
    Some(format!(
        " (its thread was ready for {waited:.1} s of {wall_s:.1} s while other programs used the processors: {remedy})"
    ))
}

fn slow_rate_reason(report: &ClientReport, run: &LoadRun) -> Option<String> {
    let (achieved, offered) = (report.achieved_rate?, report.offered_rate?);
    let enough = run.records.len() >= MIN_SENDS && !run.records.iter().any(|record| record.queued);
    (enough && achieved < MIN_RATE_SHARE * offered).then(|| {
        format!(
            "sessions were sent at {achieved:.2} per second, less than {:.0} % of the {offered:.2} per second that were due",
            MIN_RATE_SHARE * 100.0
        )
    })
}

fn starvation_reason(report: &ClientReport, run: &LoadRun) -> Option<String> {
    let share = to_f64(report.starved) / to_f64(run.records.len() + run.unfinished).max(1.0);
    (share > MAX_STARVED_SHARE && report.starved > HARMLESS_STARVED).then(|| {
        format!(
            "{} times a session was due before its requests were generated: for more than {:.0} % of the requests",
            report.starved,
            MAX_STARVED_SHARE * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::example::{record, run};

    fn open() -> LoadPlan {
        LoadPlan { arrival: ArrivalPattern::Rate { per_s: 20.0, burstiness: 1.0 }, ..LoadPlan::closed(1, 1) }
    }

    /// Returns a hundred requests, one every 50 ms. Each takes 400 ms, at 20 ms per token.
    fn good() -> LoadRun {
        let chunks: Vec<u32> = (1..=20).map(|i| i * 20).collect();
        let mut run = run((0..100).map(|i| record(i * 50, &chunks)).collect());
        run.client.cpu = Duration::from_secs(1);
        run.client.wall = Duration::from_secs(5);
        run.client.lags_us = (0..100).map(|i| i * 10).collect();
        run.client.max_lag_us = 5000;
        run.client.kernel_stamps = true;
        run
    }

    fn reasons(run: &LoadRun, plan: &LoadPlan) -> Vec<String> {
        let report = validity(run, plan);
        assert_eq!(report.valid, report.reasons.is_empty());
        report.reasons
    }

    /// Returns the only reason.
    fn reason(run: &LoadRun, plan: &LoadPlan) -> String {
        let mut reasons = reasons(run, plan);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons.remove(0)
    }

    #[test]
    fn a_load_that_keeps_up_is_valid_and_reports_itself() {
        let closed = LoadPlan::closed(8, 100);
        let report = validity(&good(), &open());
        assert_eq!((report.valid, reasons(&good(), &closed).len()), (true, 0));
        assert_eq!((report.cpu_s, report.cpu_share, report.max_lag_ms), (1.0, 0.2, Some(5.0)));
        assert!(
            (report.offered_rate.unwrap() - 20.0).abs() < 1e-9 && report.p99_lateness_ms == Some(0.0),
            "{report:?}"
        );
        assert!((report.p99_lag_ms.unwrap() - 0.9801).abs() < 1e-9, "{report:?}");
        assert_eq!(validity(&good(), &closed).offered_rate, None);
        assert!(reasons(&run(Vec::new()), &open()).is_empty());
    }

    #[test]
    fn a_busy_thread_voids() {
        let mut run = good();
        run.client.cpu = Duration::from_millis(4600);
        assert!(reason(&run, &open()).contains("used 92 % of its processor core, more than 90 %"));
    }

    #[test]
    fn a_lag_voids_where_it_is_part_of_the_latencies() {
        let mut run = good();
        run.client.lags_us = vec![3000; 150];
        assert!(reasons(&run, &open()).is_empty());
        run.client.kernel_stamps = false;
        assert!(reason(&run, &open()).contains("3.0 ms (p99), more than 2.0 ms: the latencies include this lag"));
        run.client.lags_us.truncate(149);
        assert!(reasons(&run, &open()).is_empty(), "a pause of the machine is no lag that lasts");
    }

    #[test]
    fn replies_that_wait_void_a_closed_loop() {
        let mut run = good();
        run.client.turnaround = Duration::from_millis(100 * 19);
        assert!(reasons(&run, &LoadPlan::closed(8, 100)).is_empty());
        run.client.turnaround = Duration::from_millis(100 * 25);
        assert!(
            reason(&run, &LoadPlan::closed(8, 100))
                .contains("25.0 ms (mean) for the load generator, more than 20.0 ms")
        );
        let capped = LoadPlan { arrival: ArrivalPattern::AtOnce, ..LoadPlan::closed(8, 100) };
        assert!(reason(&run, &capped).contains("the next requests"));
        assert!(reasons(&run, &LoadPlan { concurrency: None, ..capped }).is_empty());
        assert!(reasons(&run, &open()).is_empty(), "an open loop's next send does not wait for a reply");
        run.records.truncate(49);
        assert!(reasons(&run, &LoadPlan::closed(8, 100)).is_empty(), "too few to tell");
    }

    #[test]
    fn a_reason_names_the_lack_of_a_processor_as_its_cause() {
        let mut run = good();
        run.client.turnaround = Duration::from_secs(3);
        run.client.processor_wait = Some(Duration::from_millis(250));
        assert!(
            reason(&run, &LoadPlan::closed(8, 100)).ends_with("sent late by this time"),
            "5 % of the window explain little"
        );
        run.client.processor_wait = Some(Duration::from_millis(2600));
        let text = reason(&run, &LoadPlan::closed(8, 100));
        assert!(
            text.contains("late by this time (its thread was ready for 2.6 s of 5.0 s while")
                && text.contains("ulimit -r 1")
        );
        run.client.realtime = true;
        assert!(reason(&run, &LoadPlan::closed(8, 100)).ends_with("leave it a processor that nothing else uses)"));
        run.client.turnaround = Duration::ZERO;
        assert!(reasons(&run, &LoadPlan::closed(8, 100)).is_empty(), "what did no harm is no reason");
    }

    #[test]
    fn late_requests_void_unless_they_waited_for_a_place() {
        let mut run = good();
        for record in &mut run.records[..10] {
            record.sent += Duration::from_millis(30);
        }
        assert!(reason(&run, &open()).contains("30.0 ms (p99) after they were due, more than 10.0 ms"));
        for record in &mut run.records[..10] {
            record.queued = true;
        }
        assert!(reasons(&run, &open()).is_empty());
    }

    #[test]
    fn a_rate_that_was_not_reached_voids() {
        let mut run = good();
        for record in &mut run.records {
            record.sent = record.due + record.due / 9;
        }
        let reasons = reasons(&run, &open());
        assert!(reasons[1].contains("18.00 per second, less than 95 % of the 20.00 per second"), "{reasons:?}");
        assert_eq!(reasons.len(), 2);
    }

    #[test]
    fn requests_that_were_not_ready_void() {
        let mut run = good();
        run.client.starved = 2;
        assert!(reasons(&run, &open()).is_empty());
        run.client.starved = 3;
        assert!(reason(&run, &open()).contains("3 times a session was due before"));
    }
}
