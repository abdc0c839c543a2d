//! Calibration of the twin from a study's trials.

use std::time::Duration;

use super::TwinQuestion;
use super::setup::TwinSetup;
use crate::config::Config;
use crate::trial::{Rejection, Replies};
use crate::twin::{
    self, CalibrateError, Calibration, ObservedRequest, ObservedRun, ReplayedLoad, RequestTimes, Tokens,
};

/// A measured trial.
#[derive(Clone, Debug)]
pub struct MeasuredTrial {
    /// The trial's own configuration.
    pub config: Config,
    pub replies: Replies,
    /// Number of the engine's steps in the measurement window, by the server's own counter.
    pub steps: Option<u64>,
    /// Number of KV cache blocks that the engine logged at its start. vLLM's V1 engine reserves one of them.
    pub blocks: Option<u32>,
}

/// The reason why trials give no calibration.
#[derive(Debug, thiserror::Error)]
pub enum LearnError {
    #[error("{0}")]
    Calibrate(#[from] CalibrateError),
    #[error("the twin rejects the configuration of a measured trial: {}: {}", .0.rule, .0.message)]
    Rejected(Rejection),
}

/// Usual largest number of trials in a calibration. More trials make it slower and hardly more accurate.
pub const MAX_TRIALS: usize = 6;
/// Largest number of requests of one trial after its warm-up, for the same reason.
const MAX_REQUESTS: usize = 400;

/// Calibrates the twin from measured trials on the model, engine and device of `question`. The load and the
/// configuration of `question` are ignored. At most `most` trials count, evenly spaced among all. This takes one or two
/// seconds per trial.
///
/// # Errors
/// If the trials have too few replies, or the twin cannot run their configurations.
pub fn calibrate_from_trials(
    question: &TwinQuestion<'_>,
    tried: &[MeasuredTrial],
    most: usize,
) -> Result<Calibration, LearnError> {
    let runs = evenly(tried, most).map(|tried| observed_run(question, tried)).collect::<Result<Vec<_>, _>>()?;
    Ok(twin::calibrate(&runs)?)
}

/// Returns at most `most` evenly spaced elements, including the first and the last.
fn evenly<T>(all: &[T], most: usize) -> impl Iterator<Item = &T> {
    let count = all.len().min(most);
    (0..count).map(move |at| &all[if count > 1 { at * (all.len() - 1) / (count - 1) } else { 0 }])
}

/// Converts a trial to a run for the calibration.
fn observed_run(question: &TwinQuestion<'_>, tried: &MeasuredTrial) -> Result<ObservedRun, LearnError> {
    let question = TwinQuestion { config: tried.config.clone(), ..question.clone() };
    let setup = TwinSetup::resolve(&question).map_err(LearnError::Rejected)?;
    let replies = &tried.replies;
    let mut settings = setup.settings;
    if let Some(blocks) = tried.blocks {
        settings.num_blocks = blocks.saturating_sub(u32::from(!settings.resolved.v0));
    }
    let mut all = requests(replies, setup.time_scale, settings.resolved.prefix_caching);
    let whole = replies.complete && all.len() == replies.len();
    let requests = all.split_off((replies.warmup as usize).min(all.len()));
    let load = replies.users.map_or(ReplayedLoad::Open, |users| ReplayedLoad::Closed { users });
    let steps = tried.steps.filter(|_| whole);
    Ok(ObservedRun {
        settings,
        replicas: setup.replicas,
        prior: setup.prior,
        earlier_requests: all,
        load,
        requests,
        steps,
    })
}

/// Returns the warm-up and the first requests after it, on the device's clock. That clock is `pace` times as fast as
/// the clients' clock.
fn requests(replies: &Replies, pace: f64, prefix_caching: bool) -> Vec<ObservedRequest> {
    let micros = |at: u64| Duration::from_micros(at).mul_f64(pace);
    let mut prompts: Vec<Vec<u32>> = Vec::new();
    let shares = prefix_caching && replies.shared_tokens.iter().any(|shared| *shared > 0);
    let request = |place: usize| {
        let times = replies.ttft_us[place].zip(replies.latency_us[place]);
        let len = replies.prompt_tokens[place];
        let prompt = if shares {
            let prompt = synthetic_prompt(replies, place, &prompts);
            prompts.push(prompt.clone());
            Tokens::Ids(prompt.into())
        } else {
            Tokens::Count(len)
        };
        ObservedRequest {
            at: micros(replies.sent_us[place]),
            prompt,
            output_len: replies.output_tokens[place].max(1),
            times: times.map(|(ttft, latency)| RequestTimes { ttft: micros(ttft), latency: micros(latency) }),
        }
    };
    (0..replies.len().min(replies.warmup as usize + MAX_REQUESTS)).map(request).collect()
}

/// Returns made-up tokens for a prompt: the first `shared_tokens` tokens of the earlier prompt `shared_with`, then one
/// token that no other prompt has, then fillers.
fn synthetic_prompt(replies: &Replies, place: usize, earlier: &[Vec<u32>]) -> Vec<u32> {
    let len = replies.prompt_tokens[place];
    let shared = replies.shared_tokens[place].min(len) as usize;
    let with = earlier.get(replies.shared_with[place] as usize);
    let mut tokens = with.map_or_else(Vec::new, |with| with[..shared.min(with.len())].to_vec());
    // The hash of a block includes all tokens before it. One unique token therefore makes all blocks from there on
    // unique.
    let own = u32::MAX - u32::try_from(place).unwrap_or(0);
    let rest = len - u32::try_from(tokens.len()).unwrap_or(len);
    tokens.extend((0..rest).map(|at| if at == 0 { own } else { at }));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replayed_prompts_share_the_recorded_prefixes() {
        let replies = Replies {
            sent_us: vec![0, 5, 9],
            ttft_us: vec![Some(10), None, Some(7)],
            latency_us: vec![Some(20), None, Some(9)],
            prompt_tokens: vec![40, 40, 20],
            output_tokens: vec![3, 2, 1],
            shared_tokens: vec![0, 32, 16],
            shared_with: vec![0, 0, 1],
            ..Replies::default()
        };
        let seen = requests(&replies, 2.0, true);
        let ids: Vec<_> = seen
            .iter()
            .map(|request| match &request.prompt {
                Tokens::Ids(ids) => ids.to_vec(),
                Tokens::Count(_) => panic!("no ids"),
            })
            .collect();
        assert_eq!(ids.iter().map(Vec::len).collect::<Vec<_>>(), [40, 40, 20]);
        let common = |a: usize, b: usize| ids[a].iter().zip(&ids[b]).take_while(|(a, b)| a == b).count();
        assert_eq!((common(0, 1), common(1, 2), common(0, 2)), (32, 16, 16));
        assert_eq!(seen[2].times.unwrap().ttft, Duration::from_micros(14));
        assert_eq!((seen[1].times, seen[1].at), (None, Duration::from_micros(10)));
        assert!(requests(&replies, 1.0, false).iter().all(|request| matches!(request.prompt, Tokens::Count(_))));
    }

    #[test]
    fn of_many_trials_a_few_are_taken_evenly() {
        let all: Vec<u32> = (0..20).collect();
        assert_eq!(evenly(&all, 6).copied().collect::<Vec<_>>(), [0, 3, 7, 11, 15, 19]);
        assert_eq!(evenly(&all[..2], 6).copied().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(evenly(&all, 1).copied().collect::<Vec<_>>(), [0]);
        assert_eq!(evenly(&[] as &[u32], 6).count(), 0);
    }
}
