//! Plan of a load from the arguments of `bench`. Contradictory arguments are refused.

use std::time::Duration;

use super::arguments::LoadArgs;
use crate::cli::CommandFailure;
use crate::cli::failure::USAGE;
use crate::load::{ArrivalPattern, LoadPlan};
use crate::workload::Workload;

/// Default number of requests, as in `vllm bench serve --num-prompts`.
const DEFAULT_REQUESTS: u64 = 1000;

/// Default time limit of one request. It is long because requests may wait behind a thousand others, and that is no
/// failure.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(10);

/// Default duration limit of a run with `--until` and without `--duration` and `--num-requests`, in case that it does not
/// reach its precision.
const DEFAULT_MAX_DURATION: Duration = Duration::from_mins(30);

/// Properties of a run that other arguments than those of the load determine.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTraits {
    /// Whether the arguments request a trace.
    pub(super) replays_trace: bool,
    /// Whether the run ends as soon as its numbers are precise.
    pub(super) ends_when_precise: bool,
}

/// Returns the plan of one run.
pub(super) fn build_plan(args: &LoadArgs, workload: &dyn Workload, run: RunTraits) -> Result<LoadPlan, CommandFailure> {
    let has_time_stamps = workload.due(0).is_some();
    if args.trace_factor.is_some() && !has_time_stamps {
        let message = "--trace-factor scales time stamps, but this workload has none";
        return Err(CommandFailure::new(USAGE, message).with_hint("replay a file with time stamps: --trace FILE"));
    }
    let arrival = arrival(args, has_time_stamps);
    if run.replays_trace && !has_time_stamps && args.rate.is_none() && args.ramp.is_none() && args.concurrency.is_none()
    {
        let message = "--trace: the file has no time stamps, so the send times are not defined";
        return Err(CommandFailure::new(USAGE, message).with_hint("add --rate R or --concurrency N"));
    }
    let stated_requests = args.num_requests.or(if run.replays_trace { workload.len() } else { None });
    let has_rate = matches!(arrival, ArrivalPattern::Ramp { .. } | ArrivalPattern::Rate { .. });
    if has_rate && stated_requests.is_none() && args.duration.is_none() && !run.ends_when_precise {
        let message = "the load has no end: a rate needs a number of requests, a duration or a precision";
        return Err(CommandFailure::new(USAGE, message).with_hint("add --num-requests N, --duration S or --until 2%"));
    }
    let has_other_end = args.duration.is_some() || run.ends_when_precise;
    let requests = stated_requests.or((!has_other_end).then_some(DEFAULT_REQUESTS));
    if arrival == ArrivalPattern::AtOnce && requests.is_none() {
        let message = "all requests are sent at once, but their number is not given";
        return Err(CommandFailure::new(USAGE, message).with_hint("add --num-requests N, --concurrency N or --rate R"));
    }
    let concurrency = args.concurrency.map(|n| n as usize);
    Ok(LoadPlan {
        arrival,
        seed: args.seed,
        concurrency,
        requests,
        duration: args.duration.or((run.ends_when_precise && requests.is_none()).then_some(DEFAULT_MAX_DURATION)),
        warmup: args.warmup.unwrap_or(0),
        request_timeout: args.request_timeout.unwrap_or(DEFAULT_TIMEOUT),
        allow_eos: args.allow_eos,
        // Only for the fields that `bench` does not set. The two numbers are replaced above.
        ..LoadPlan::closed(1, 1)
    })
}

/// Returns the arrival pattern.
fn arrival(args: &LoadArgs, has_time_stamps: bool) -> ArrivalPattern {
    let burstiness = args.burstiness.unwrap_or(1.0);
    match (args.ramp, args.rate) {
        (Some(ramp), _) => {
            ArrivalPattern::Ramp { from_per_s: ramp.from, to_per_s: ramp.to, over: ramp.over, burstiness }
        }
        (None, Some(rate)) if rate.is_finite() => ArrivalPattern::Rate { per_s: rate, burstiness },
        (None, None) if has_time_stamps => ArrivalPattern::Trace { factor: args.trace_factor.unwrap_or(1.0) },
        (None, None) if args.concurrency.is_some() => ArrivalPattern::Closed,
        // A rate of `inf`, or no argument that determines the send times.
        (None, _) => ArrivalPattern::AtOnce,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::bench::arguments::WorkArgs;
    use crate::workload::{Prompt, UserSession};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        work: WorkArgs,
        #[command(flatten)]
        load: LoadArgs,
    }

    /// A workload whose sessions are due one second apart if it is `stamped`.
    #[derive(Debug)]
    struct Made {
        stamped: bool,
    }

    impl Workload for Made {
        fn session(&self, _index: u64) -> UserSession {
            UserSession::single(Prompt::Text(String::new()), 1)
        }

        fn longest(&self) -> u64 {
            1
        }

        fn len(&self) -> Option<u64> {
            self.stamped.then_some(7)
        }

        fn due(&self, index: u64) -> Option<Duration> {
            self.stamped.then(|| Duration::from_secs(index))
        }
    }

    fn plan(words: &str, stamped: bool) -> Result<LoadPlan, CommandFailure> {
        let line = Line::try_parse_from(["bench"].into_iter().chain(words.split_whitespace())).unwrap();
        let run = RunTraits { replays_trace: stamped, ends_when_precise: words.contains("60s") };
        build_plan(&line.load, &Made { stamped }, run)
    }

    #[test]
    fn defaults_are_those_of_vllm_bench_serve() {
        let once = plan("", false).unwrap();
        assert_eq!((once.arrival, once.requests, once.concurrency), (ArrivalPattern::AtOnce, Some(1000), None));
        let closed = plan("--concurrency 4", false).unwrap();
        assert_eq!(
            (closed.arrival, closed.requests, closed.concurrency),
            (ArrivalPattern::Closed, Some(1000), Some(4))
        );
        let capped = plan("--concurrency 4 --rate inf", false).unwrap();
        assert_eq!((capped.arrival, capped.concurrency), (ArrivalPattern::AtOnce, Some(4)));
        let rate = plan("--rate 2 --burstiness 0.5 --num-requests 3", false).unwrap();
        assert_eq!(rate.arrival, ArrivalPattern::Rate { per_s: 2.0, burstiness: 0.5 });
    }

    #[test]
    fn a_duration_replaces_the_number_of_requests() {
        let closed = plan("--concurrency 4 --duration 5m", false).unwrap();
        assert_eq!((closed.requests, closed.duration), (None, Some(Duration::from_mins(5))));
        assert!(plan("--duration 5m", false).is_err(), "all at once, for ever");
        assert!(plan("--rate 2", false).is_err());
        assert!(plan("--rate 2 --duration 9", false).is_ok());
        assert!(plan("--ramp 1:2:3", false).is_err());
    }

    #[test]
    fn a_trace_is_replayed_once_unless_a_rate_is_given() {
        let trace = plan("--trace-factor 0.5", true).unwrap();
        assert_eq!((trace.arrival, trace.requests), (ArrivalPattern::Trace { factor: 0.5 }, Some(7)));
        assert_eq!(plan("--rate inf", true).unwrap().arrival, ArrivalPattern::AtOnce);
        assert!(plan("--trace-factor 0.5", false).is_err());
    }
}
