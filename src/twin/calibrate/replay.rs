//! Replays an observed load on the twin, in virtual time.

use std::time::Duration;

use super::ObservedRun;
use crate::twin::ask::{AddError, Tokens};
use crate::twin::drive::{Drive, DriveObserver, VirtualReply};
use crate::twin::engine::TwinEngine;
use crate::twin::settings::SettingsError;
use crate::twin::source::{ListedArrivals, TwinArrival};
use crate::twin::step_time::StepTime;

/// How the requests of a replayed load arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayedLoad {
    /// Each request arrives at its observed time.
    Open,
    /// The requests arrive in their order, each as soon as one of the `users` is free.
    Closed { users: u32 },
}

/// One observed request of a load, and its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRequest {
    /// Send time since the load's start. For a closed load only the order of the list matters.
    pub at: Duration,
    pub prompt: Tokens<'static>,
    /// Number of generated tokens, at least one.
    pub output_len: u32,
    /// Observed times. `None` for a request that is part of the load but is not compared.
    pub times: Option<RequestTimes>,
}

/// Durations of one request at its client, counted from the send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTimes {
    /// To the first token.
    pub ttft: Duration,
    /// To the last token.
    pub latency: Duration,
}

impl RequestTimes {
    /// Returns the mean time from one token to the next. `None` for a reply of less than two tokens.
    #[must_use]
    pub fn tpot(&self, output_len: u32) -> Option<Duration> {
        let gaps = output_len.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(self.latency.saturating_sub(self.ttft) / gaps)
    }
}

/// The reason why a load cannot be replayed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("request {number} {list} cannot be served: {problem}", list = if *is_earlier { "before the load" } else { "of the load" })]
    Request {
        /// Position in its list, counted from 1.
        number: usize,
        /// Whether it is one of `earlier_requests`.
        is_earlier: bool,
        problem: AddError,
    },
}

impl ReplayError {
    /// Adds the first request of the list that has this problem.
    fn of_request(requests: &[ObservedRequest], is_earlier: bool, problem: AddError) -> Self {
        let has_problem = |request: &ObservedRequest| match problem {
            AddError::Empty => request.prompt.is_empty(),
            AddError::TooLong { prompt, output, .. } => (request.prompt.len(), request.output_len) == (prompt, output),
            AddError::Duplicate(_) => false,
        };
        let number = requests.iter().position(has_problem).map_or(requests.len(), |index| index + 1);
        Self::Request { number, is_earlier, problem }
    }
}

/// Number of concurrent users that send `earlier_requests`. The exact number is unimportant, because only the contents of
/// the cache matter.
const WARMUP_USERS: u32 = 8;

/// An observer that ignores everything.
struct NullObserver;

impl DriveObserver for NullObserver {}

/// Records the times of each request, until all watched requests have ended.
struct ReplyRecorder {
    /// For each request in the order of sending: its index in `times`, and whether it is watched.
    order: Vec<(usize, bool)>,
    times: Vec<RequestTimes>,
    /// Number of watched requests that have not ended.
    watched: usize,
}

impl DriveObserver for ReplyRecorder {
    fn reply(&mut self, reply: VirtualReply) {
        let Some((index, watched)) = usize::try_from(reply.index).ok().and_then(|index| self.order.get(index)) else {
            return;
        };
        self.times[*index] =
            RequestTimes { ttft: reply.ttft, latency: reply.finished().saturating_sub(reply.received_at) };
        self.watched -= usize::from(*watched);
    }

    fn is_done(&self) -> bool {
        self.watched == 0
    }
}

/// Simulates a run with `step_time`. Returns the times of each request in the order of the run, and the number of
/// steps. If some requests have observed times, the replay ends with the last of these, and requests that have not ended
/// by then have times of 0.
///
/// # Errors
/// If the settings are invalid, or one of the requests does not fit.
pub fn replay(run: &ObservedRun, step_time: &StepTime) -> Result<(Vec<RequestTimes>, u64), ReplayError> {
    let engine = || TwinEngine::new(run.settings.clone());
    let mut engines = (0..run.replicas.max(1)).map(|_| engine()).collect::<Result<Vec<_>, _>>()?;
    let before = run.earlier_requests.iter().map(arrival);
    Drive { engines: &mut engines, step_time }
        .run(&mut ListedArrivals::new(before, WARMUP_USERS), &mut NullObserver)
        .map_err(|problem| ReplayError::of_request(&run.earlier_requests, true, problem))?;
    let warmup_steps: u64 = engines.iter().map(|engine| engine.counters().steps).sum();
    let watch_all = run.requests.iter().all(|request| request.times.is_none());
    let is_watched = |request: &ObservedRequest| watch_all || request.times.is_some();
    let mut order: Vec<_> =
        run.requests.iter().enumerate().map(|(index, request)| (index, is_watched(request))).collect();
    if run.load == ReplayedLoad::Open {
        order.sort_by_key(|(index, _)| run.requests[*index].at);
    }
    let watched = order.iter().filter(|(_, watched)| *watched).count();
    let requests = order.iter().map(|(index, _)| arrival(&run.requests[*index])).collect::<Vec<_>>().into_iter();
    let mut recorder = ReplyRecorder { order, times: vec![RequestTimes::default(); run.requests.len()], watched };
    let mut drive = Drive { engines: &mut engines, step_time };
    let replayed = match run.load {
        ReplayedLoad::Closed { users } => drive.run(&mut ListedArrivals::new(requests, users), &mut recorder),
        ReplayedLoad::Open => drive.run_open_loop(requests, &mut recorder),
    };
    replayed.map_err(|problem| ReplayError::of_request(&run.requests, false, problem))?;
    let steps: u64 = engines.iter().map(|engine| engine.counters().steps).sum();
    Ok((recorder.times, steps - warmup_steps))
}

fn arrival(request: &ObservedRequest) -> TwinArrival {
    TwinArrival { at: request.at, prompt: request.prompt.clone(), output_len: request.output_len, priority: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::twin::{DevicePreset, Scheduling, Settings, test_model};

    fn run(load: ReplayedLoad, at_ms: &[u64]) -> ObservedRun {
        let settings = Settings {
            resolved: ResolvedConfig {
                max_model_len: 256,
                max_num_batched_tokens: 256,
                ..crate::twin::tests::settings().resolved
            },
            num_blocks: 500,
            ..crate::twin::tests::settings()
        };
        let prior = StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &settings).unwrap();
        let request = |at: &u64| ObservedRequest {
            at: Duration::from_millis(*at),
            prompt: Tokens::Count(50),
            output_len: 20,
            times: None,
        };
        ObservedRun {
            settings,
            replicas: 1,
            prior,
            earlier_requests: Vec::new(),
            load,
            requests: at_ms.iter().map(request).collect(),
            steps: None,
        }
    }

    fn times(run: &ObservedRun) -> Vec<RequestTimes> {
        replay(run, &run.prior).unwrap().0
    }

    #[test]
    fn an_idle_engine_waits_for_the_next_arrival() {
        let times = times(&run(ReplayedLoad::Open, &[5000, 0]));
        assert_eq!(times[0], times[1]);
        let gap = times[0].tpot(20).unwrap();
        assert!((Duration::from_millis(5)..Duration::from_millis(10)).contains(&gap), "{gap:?}");
    }

    #[test]
    fn an_arrival_during_a_step_waits_one_more_if_the_next_is_already_scheduled() {
        let mean = |async_scheduling| {
            // The second request comes at every moment of a step, over more than one step.
            let ttft = |at| {
                let mut run = run(ReplayedLoad::Open, &[0, at]);
                run.settings.scheduling = Scheduling { async_scheduling, ..Scheduling::default() };
                let device = DevicePreset::find("h100").unwrap();
                run.prior = StepTime::new(&test_model(), device, &run.settings).unwrap().without_frontend();
                times(&run)[1].ttft
            };
            (20..48).map(ttft).sum::<Duration>() / 28
        };
        let (ahead, after) = (mean(true), mean(false));
        assert!(ahead > after + Duration::from_millis(3), "{ahead:?} {after:?}");
    }

    #[test]
    fn each_user_sends_one_request_after_the_other_regardless_of_the_times() {
        let run = run(ReplayedLoad::Closed { users: 1 }, &[0, 0, 900]);
        let (times, steps) = replay(&run, &run.prior).unwrap();
        assert!(times.iter().all(|each| each.latency == times[0].latency), "{times:?}");
        assert_eq!(steps, 60);
    }

    #[test]
    fn earlier_prompts_are_in_the_cache_and_take_no_time() {
        let prompt = |last: u32| Tokens::Ids((0..200).chain([last]).collect::<Vec<_>>().into());
        let mut cold = run(ReplayedLoad::Open, &[0]);
        cold.settings.resolved.prefix_caching = true;
        cold.requests[0].prompt = prompt(1);
        let mut warm = cold.clone();
        warm.earlier_requests = vec![ObservedRequest { prompt: prompt(2), ..cold.requests[0].clone() }];
        let ((cold_times, cold_steps), (warm_times, warm_steps)) =
            (replay(&cold, &cold.prior).unwrap(), replay(&warm, &warm.prior).unwrap());
        assert!(warm_times[0].ttft < cold_times[0].ttft, "{warm_times:?} {cold_times:?}");
        assert_eq!(warm_steps, cold_steps);
    }

    #[test]
    fn the_watched_ones_have_the_times_that_they_have_when_all_are() {
        let mut some = run(ReplayedLoad::Open, &[4000, 0, 5, 10]);
        let all = times(&some);
        for request in &mut some.requests[2..] {
            request.times = Some(RequestTimes::default());
        }
        let seen = times(&some);
        assert_eq!(seen[2..], all[2..]);
        assert_eq!(seen[0], RequestTimes::default());
    }

    #[test]
    fn a_request_that_never_fits_is_named() {
        let mut long = run(ReplayedLoad::Open, &[0, 1, 2]);
        long.requests[1].prompt = Tokens::Count(250);
        let error = replay(&long, &long.prior).unwrap_err();
        assert_eq!(
            error.to_string(),
            "request 2 of the load cannot be served: 250 prompt and 20 output tokens exceed max_model_len 256"
        );
    }
}
