//! Requests at the times at which they came, through the engine in virtual time.

use std::time::Duration;

use crate::twin::ask::AddError;
use crate::twin::engine::Engine;
use crate::twin::sequence::RequestId;
use crate::twin::settings::{Settings, SettingsError};
use crate::twin::step_time::StepTime;

/// One request of a load. Times are since the load's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When the client sent it.
    pub at: Duration,
    /// Its tokens; only which are equal to another request's matters, and only with prefix caching.
    pub prompt: Vec<u32>,
    /// Tokens that are generated, at least one.
    pub output_len: u32,
}

impl Asked {
    /// A request whose prompt has nothing in common with those of other numbers.
    #[must_use]
    pub fn of_its_own(number: u32, at: Duration, prompt_len: u32, output_len: u32) -> Self {
        // A first token that no other request has makes all of its blocks different.
        let prompt = (0..prompt_len).map(|index| if index == 0 { number } else { index }).collect();
        Self { at, prompt, output_len }
    }
}

/// When the client had the first and the last token, since the load's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub first: Duration,
    pub last: Duration,
}

impl Times {
    /// From the client's sending to its first token.
    #[must_use]
    pub fn ttft(&self, arrival: &Asked) -> Duration {
        self.first.saturating_sub(arrival.at)
    }

    /// From the client's sending to its last token.
    #[must_use]
    pub fn latency(&self, arrival: &Asked) -> Duration {
        self.last.saturating_sub(arrival.at)
    }

    /// Between one token and the next, on average. `None` when there is only one.
    #[must_use]
    pub fn tpot(&self, arrival: &Asked) -> Option<Duration> {
        let gaps = arrival.output_len.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(self.last.saturating_sub(self.first) / gaps)
    }
}

/// A load that these settings cannot serve.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("request {number}: {source}")]
    Request {
        number: usize,
        #[source]
        source: AddError,
    },
}

/// The times of each request, in the order of `arrivals`, which may be any.
///
/// Where the host prepares a step while another one is computed, a request that comes during a step is known to the
/// scheduler one step later than otherwise: the next one is already prepared.
///
/// # Errors
/// When the settings can serve nothing, or not one of the requests.
pub fn replay<'a>(
    settings: &Settings,
    step_time: &StepTime,
    arrivals: impl IntoIterator<Item = &'a Asked>,
) -> Result<Vec<Times>, ReplayError> {
    replay_watched(settings, step_time, arrivals.into_iter().map(|arrival| (arrival, true)))
}

/// The same, until all that are watched have ended; the others may have no times then.
pub(super) fn replay_watched<'a>(
    settings: &Settings,
    step_time: &StepTime,
    arrivals: impl IntoIterator<Item = (&'a Asked, bool)>,
) -> Result<Vec<Times>, ReplayError> {
    let mut engine = Engine::new(settings.clone())?;
    let (arrivals, watched): (Vec<&Asked>, Vec<bool>) = arrivals.into_iter().unzip();
    let mut left = watched.iter().filter(|watched| **watched).count();
    let mut times = vec![Times::default(); arrivals.len()];
    let due =
        |arrival: &Asked| arrival.at + step_time.before_engine(u32::try_from(arrival.prompt.len()).unwrap_or(u32::MAX));
    let mut queue: Vec<(Duration, usize)> =
        arrivals.iter().enumerate().map(|(number, arrival)| (due(arrival), number)).collect();
    queue.sort_unstable();
    let mut queue = queue.into_iter().peekable();
    let (mut now, mut known) = (Duration::ZERO, Duration::ZERO);
    while left > 0 {
        while let Some((_, number)) = queue.next_if(|(due, _)| *due <= known) {
            let arrival = arrivals[number];
            let id = RequestId(number as u64);
            let added = engine.add(id, &arrival.prompt, arrival.output_len, now);
            added.map_err(|source| ReplayError::Request { number, source })?;
        }
        let Some(batch) = engine.step(now) else {
            let Some((due, _)) = queue.peek() else { break };
            now = now.max(*due);
            known = now;
            continue;
        };
        let end = now + step_time.of(&batch.work);
        let delivered = end + step_time.after_engine(batch.work.samples);
        for event in engine.finish(&batch) {
            let Ok(number) = usize::try_from(event.id.0) else { continue };
            let times = &mut times[number];
            if times.first == Duration::ZERO {
                times.first = delivered;
            }
            if event.last {
                left -= usize::from(watched[number]);
                times.last = delivered;
            }
        }
        known = if step_time.is_overlapped() { now } else { end };
        now = end;
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::{DevicePreset, test_model};

    fn settings() -> Settings {
        Settings { max_model_len: 256, max_num_batched_tokens: 256, num_blocks: 500, ..crate::twin::tests::settings() }
    }

    fn step_time() -> StepTime {
        StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &settings()).unwrap()
    }

    fn arrivals(at_ms: &[u64]) -> Vec<Asked> {
        (0..).zip(at_ms).map(|(number, at)| Asked::of_its_own(number, Duration::from_millis(*at), 50, 20)).collect()
    }

    #[test]
    fn an_engine_that_is_idle_waits_for_whoever_comes_next() {
        let arrivals = arrivals(&[5000, 0]);
        let times = replay(&settings(), &step_time(), &arrivals).unwrap();
        assert_eq!(times[0].latency(&arrivals[0]), times[1].latency(&arrivals[1]));
        assert!(times[1].last < arrivals[0].at && times[0].first > arrivals[0].at);
        let gap = times[0].tpot(&arrivals[0]).unwrap();
        assert!((Duration::from_millis(5)..Duration::from_millis(10)).contains(&gap), "{gap:?}");
    }

    #[test]
    fn what_comes_during_a_step_waits_for_one_more_where_the_next_is_already_prepared() {
        let mean = |overlapped| {
            let step_time = step_time().without_frontend().overlapped(overlapped);
            // Over more than one step, wherever in it the second request comes.
            let ttft = |at| {
                let arrivals = arrivals(&[0, at]);
                replay(&settings(), &step_time, &arrivals).unwrap()[1].ttft(&arrivals[1])
            };
            (20..48).map(ttft).sum::<Duration>() / 28
        };
        let (overlapped, after) = (mean(true), mean(false));
        assert!(overlapped > after + Duration::from_millis(3), "{overlapped:?} {after:?}");
    }

    #[test]
    fn the_watched_ones_have_the_times_that_they_have_when_all_are() {
        let arrivals = arrivals(&[0, 5, 10, 4000]);
        let all = replay(&settings(), &step_time(), &arrivals).unwrap();
        let watched = arrivals.iter().zip([false, true, true, false]);
        let some = replay_watched(&settings(), &step_time(), watched).unwrap();
        assert_eq!(some[1..3], all[1..3]);
        assert_eq!(some[3], Times::default());
    }

    #[test]
    fn a_request_that_never_fits_is_named() {
        let long = [Asked::of_its_own(0, Duration::ZERO, 250, 20)];
        let error = replay(&settings(), &step_time(), &long).unwrap_err();
        assert_eq!(error.to_string(), "request 0: 250 prompt and 20 output tokens exceed max_model_len 256");
    }
}
