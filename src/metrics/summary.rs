//! Reduction of one run to one measurement.

use std::collections::BTreeMap;

use crate::load::{LoadRun, RequestRecord};
use crate::stats::{f64_to_u64, percentile, to_f64};
use crate::trial::{Interval, MeasuredWindow, Measurement};

use super::confidence::{RatioEstimate, batch_means, batched, batches, clustering, percentile_interval};
use super::distribution::{distribution, speeds};
use super::series::{TimeGrid, arrivals, peaks};
use super::{Latency, RunPart, Slo, SummaryOptions, milliseconds, steady, tpot_ms, validity, whole};

/// Reduces a run to numbers, as the documentation of the module `metrics` defines them.
#[must_use]
pub(crate) fn summarize(run: &LoadRun, options: &SummaryOptions<'_>) -> Measurement {
    let window = match options.window {
        RunPart::Whole => whole(run),
        RunPart::Steady => steady(run),
    };
    summarize_within(window, run, options)
}

/// Like `summarize`, for a given part of the run instead of the part in the options.
#[must_use]
pub(crate) fn summarize_within(window: MeasuredWindow, run: &LoadRun, options: &SummaryOptions<'_>) -> Measurement {
    let mut measurement = counts(run, &window, &options.goodput);
    add_latencies(run, &window, options, &mut measurement);
    add_throughput_intervals(run, &window, &options.goodput, &mut measurement);
    measurement.client = options.plan.map(|plan| validity(run, plan));
    // A run without records has no window.
    measurement.window = (!run.records.is_empty()).then_some(window);
    measurement
}

/// Counts requests and tokens.
fn counts(run: &LoadRun, window: &MeasuredWindow, goodput: &[Slo]) -> Measurement {
    let mut measurement = Measurement { duration_s: window.to_s - window.from_s, ..Measurement::default() };
    let mut arrived = 0.0;
    let mut good = (!goodput.is_empty()).then_some(0);
    for record in &run.records {
        let ended = window.contains(record.end.as_secs_f64());
        if let Err(error) = &record.result {
            if ended {
                measurement.failed += 1;
                *measurement.errors.entry(error.class()).or_default() += 1;
            }
            continue;
        }
        let first =
            record.chunks.first().map_or(record.end, |at| record.sent + std::time::Duration::from_micros((*at).into()));
        if !window.steady || window.contains(first.as_secs_f64()) {
            measurement.total_input_tokens += u64::from(record.prompt_tokens);
            if let Some(cached) = record.cached_tokens {
                *measurement.cached_prompt_tokens.get_or_insert(0) += u64::from(cached);
            }
        }
        if window.steady {
            arrived += arrivals(record).filter(|(at, _)| window.contains(*at)).map(|(_, share)| share).sum::<f64>();
        } else {
            measurement.total_output_tokens += u64::from(record.output_tokens);
        }
        if ended {
            measurement.completed += 1;
            // A request that lacks a limited latency keeps and breaks no limit, so the goodput is unknown.
            good = good.zip(keeps_all_limits(goodput, record)).map(|(good, kept)| good + u64::from(kept));
        }
    }
    if window.steady {
        let arrived = f64_to_u64(arrived.round());
        measurement.total_output_tokens = arrived;
    }
    measurement.good_requests = good;
    let successful = run.records.iter().filter(|record| record.result.is_ok());
    let peaks = peaks(successful.filter(|record| window.contains(record.sent.as_secs_f64())));
    measurement.max_output_tokens_per_s = peaks.map(|(tokens, _)| tokens);
    measurement.max_concurrent_requests = peaks.map(|(_, requests)| requests);
    measurement
}

/// Returns whether a request keeps every limit, or `None` if one cannot be judged.
fn keeps_all_limits(goodput: &[Slo], record: &RequestRecord) -> Option<bool> {
    goodput.iter().try_fold(true, |kept, slo| Some(kept && slo.is_kept(record)?))
}

/// Adds the distributions and their confidence intervals.
fn add_latencies(run: &LoadRun, window: &MeasuredWindow, options: &SummaryOptions<'_>, measurement: &mut Measurement) {
    let is_measured = |record: &&RequestRecord| record.result.is_ok() && window.contains(record.sent.as_secs_f64());
    let mut records: Vec<&RequestRecord> = run.records.iter().filter(is_measured).collect();
    // `add_intervals` needs them in the order of time.
    records.sort_by_key(|record| record.sent);
    let values = |of: &dyn Fn(&RequestRecord) -> Option<f64>| -> Vec<f64> {
        records.iter().filter_map(|record| of(record)).collect()
    };

    let confidence = &mut measurement.confidence;
    let [ttft, tpot, e2el] = Latency::ALL.map(|latency| {
        let values = values(&|record| latency.of(record));
        add_intervals(
            &values,
            latency.name(),
            "_ms",
            &[("median", 50.0), ("p50", 50.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0)],
            confidence,
        );
        distribution(values)
    });
    (measurement.ttft_ms, measurement.tpot_ms, measurement.e2el_ms) = (ttft, tpot, e2el);

    let speed = values(&|record| tpot_ms(record).filter(|tpot| *tpot > 0.0).map(|tpot| 1e3 / tpot));
    add_intervals(
        &speed,
        "output_speed",
        "",
        &[("median", 50.0), ("p50", 50.0), ("p10", 10.0), ("p5", 5.0), ("p1", 1.0)],
        confidence,
    );
    measurement.output_speed = speeds(speed);

    if records.iter().any(|record| record.due != record.sent) {
        measurement.lateness_ms = distribution(values(&|record| Some(milliseconds(record.lateness()))));
    }

    // A thinned record lacks some of its gaps. The recorder has counted all of them in a histogram.
    if records.iter().any(|record| record.thinned) {
        measurement.itl_ms = options.recorder.and_then(super::WindowRecorder::itl_ms);
        measurement.approximate = measurement.itl_ms.is_some();
        return;
    }
    // The gaps of one request are correlated. Only the mean has an interval, with whole requests as observations.
    let gaps: Vec<(f64, f64)> =
        records.iter().map(|record| (record.gaps().map(milliseconds).sum(), to_f64(record.gaps().count()))).collect();
    let estimate = batches(gaps.len()).and_then(|k| batch_means(&batched(&gaps, k)));
    if let Some(estimate) = estimate {
        confidence.insert("mean_itl_ms".to_owned(), estimate.into());
    }
    measurement.itl_ms = distribution(records.iter().flat_map(|record| record.gaps()).map(milliseconds).collect());
}

/// Adds the intervals of the mean and the percentiles. The values must be in the order of time, because batch means need
/// it.
fn add_intervals(
    values: &[f64],
    name: &str,
    unit: &str,
    percentiles: &[(&str, f64)],
    confidence: &mut BTreeMap<String, Interval>,
) {
    let each: Vec<(f64, f64)> = values.iter().map(|value| (*value, 1.0)).collect();
    if let Some(mean) = batches(each.len()).and_then(|k| batch_means(&batched(&each, k))) {
        confidence.insert(format!("mean_{name}{unit}"), mean.into());
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    for (statistic, p) in percentiles {
        let factor = percentile(&sorted, *p).map_or(1.0, |at| clustering(values, at));
        if let Some(interval) = percentile_interval(&sorted, *p, factor) {
            confidence.insert(format!("{statistic}_{name}{unit}"), interval);
        }
    }
}

/// Adds the confidence intervals of the throughputs. They need an estimate for each of several parts of the window.
fn add_throughput_intervals(run: &LoadRun, window: &MeasuredWindow, goodput: &[Slo], measurement: &mut Measurement) {
    let successful = || run.records.iter().filter(|record| record.result.is_ok());
    let counted = usize::try_from(measurement.completed).unwrap_or(usize::MAX);
    let Some(k) = batches(counted).filter(|_| window.to_s > window.from_s) else { return };
    let grid = || TimeGrid::new(window.from_s, window.to_s, k);
    let (mut requests, mut output, mut total, mut good) = (grid(), grid(), grid(), grid());
    for record in successful() {
        let is_good = keeps_all_limits(goodput, record) == Some(true);
        let mut add = |at: f64, share: f64| {
            let output_tokens = f64::from(record.output_tokens);
            requests.add(at, share);
            good.add(at, if is_good { share } else { 0.0 });
            output.add(at, share * output_tokens);
            total.add(at, share * (output_tokens + f64::from(record.prompt_tokens)));
        };
        // A request counts as served in proportion to its tokens. Whole requests would end in bursts, and the intervals
        // of requests per second would be wider than those of tokens per second.
        let mut arrived = arrivals(record).peekable();
        if record.output_tokens == 0 || arrived.peek().is_none() {
            add(record.end.as_secs_f64(), 1.0);
        } else {
            arrived.for_each(|(at, tokens)| add(at, tokens / f64::from(record.output_tokens)));
        }
    }
    let has_goodput = measurement.good_requests.is_some();
    let mut add = |name: &str, grid: &TimeGrid| {
        let Some(estimate) = batch_means(&grid.per_second()) else { return };
        // The grid spreads a request over its tokens, but the reported number counts requests and prompts as wholes. The
        // interval is moved to the reported number.
        let value = measurement.metric(name).unwrap_or(estimate.value);
        measurement.confidence.insert(name.to_owned(), RatioEstimate { value, ..estimate }.into());
    };
    add("request_throughput", &requests);
    add("output_throughput", &output);
    add("total_token_throughput", &total);
    if has_goodput {
        add("request_goodput", &good);
    }
}
