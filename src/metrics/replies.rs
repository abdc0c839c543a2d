//! Compact data of each request of a run, taken from its records.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::load::{ArrivalPattern, LoadPlan, LoadRun, RequestRecord, warmup};
use crate::trial::Replies;
use crate::twin;
use crate::workload::{SessionTurn, Workload};

/// Prompts are compared in pieces of this many tokens, the smallest default size of a KV cache block on a GPU.
const BLOCK_TOKENS: usize = 16;

/// Maximum number of kept warm-up requests: enough for every beginning that prompts share.
const MAX_WARMUP_REQUESTS: u64 = 200;

/// Returns the warm-up and the first requests of a run, at most [`Replies::MAX_STORED`]. `workload` contains their prompts.
#[must_use]
pub(crate) fn replies(run: &LoadRun, plan: &LoadPlan, workload: &dyn Workload) -> Replies {
    let mut records: Vec<&RequestRecord> = run.records.iter().collect();
    records.sort_by_key(|record| (record.sent, record.session, record.turn));
    let single = records.iter().all(|record| record.turn == 0);
    let users = plan.concurrency.filter(|_| plan.arrival == ArrivalPattern::Closed && single);
    let mut columns = ReplyColumns {
        replies: Replies {
            users: users.and_then(|users| u32::try_from(users).ok()),
            complete: records.len() <= Replies::MAX_STORED && run.unfinished == 0,
            ..Replies::default()
        },
        prompts: PromptPrefixes::default(),
    };
    for (synthetic_prompt, output_len) in warmup_prompts(plan, workload) {
        columns.add(&synthetic_prompt, 0, output_len);
        columns.answered(0, None);
        columns.replies.warmup += 1;
    }
    for record in records.into_iter().take(Replies::MAX_STORED) {
        let done = record.result.is_ok();
        let output = if done && record.output_tokens > 0 { record.output_tokens } else { record.requested_tokens };
        columns.add(&prompt_of(workload, record), record.prompt_tokens, output);
        let times = record.chunks.first().zip(record.chunks.last()).filter(|_| done);
        columns.answered(micros(record.sent), times.map(|(first, last)| (u64::from(*first), u64::from(*last))));
    }
    columns.replies
}

struct ReplyColumns {
    replies: Replies,
    prompts: PromptPrefixes,
}

impl ReplyColumns {
    /// Adds a prompt. `counted` is its length by the server's count, or 0 without a count.
    fn add(&mut self, prompt: &[u32], counted: u32, output_len: u32) {
        let len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        let (shared, with) = self.prompts.add(prompt);
        let counted = if counted > 0 { counted } else { len };
        // The shared length is scaled, because the server's tokens of a text may differ from those compared here.
        let shared = u64::from(shared) * u64::from(counted) / u64::from(len.max(1));
        let replies = &mut self.replies;
        replies.prompt_tokens.push(counted);
        replies.output_tokens.push(output_len);
        replies.shared_tokens.push(u32::try_from(shared).unwrap_or(counted));
        replies.shared_with.push(with);
    }

    /// Adds the times of a reply in microseconds: its send, and its first and last chunk after the send.
    fn answered(&mut self, sent: u64, times: Option<(u64, u64)>) {
        self.replies.sent_us.push(sent);
        self.replies.ttft_us.push(times.map(|(first, _)| first));
        self.replies.latency_us.push(times.map(|(_, last)| last));
    }
}

/// Returns the prompts of the warm-up, and the lengths of their replies.
fn warmup_prompts(plan: &LoadPlan, workload: &dyn Workload) -> Vec<(Vec<u32>, u32)> {
    let most = plan.warmup.min(MAX_WARMUP_REQUESTS);
    let turns = (warmup(plan).first..).flat_map(|session| workload.warmup_session(session).turns);
    let request = |turn: SessionTurn| (twin::tokens(turn.request.prompt), turn.request.output_len);
    turns.take(usize::try_from(most).unwrap_or(0)).map(request).collect()
}

fn prompt_of(workload: &dyn Workload, record: &RequestRecord) -> Vec<u32> {
    let turns = workload.session(record.session).turns;
    let turn = turns.into_iter().nth(record.turn as usize);
    turn.map_or_else(Vec::new, |turn| twin::tokens(turn.request.prompt))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Known beginnings of prompts, each with the first prompt that had it.
#[derive(Default)]
struct PromptPrefixes {
    beginnings: HashMap<u64, u32>,
    count: u32,
}

impl PromptPrefixes {
    /// Adds a prompt. Returns the number of tokens that it shares with the beginning of an earlier prompt, and that
    /// prompt's number.
    fn add(&mut self, tokens: &[u32]) -> (u32, u32) {
        let mut hasher = DefaultHasher::new();
        let (mut shared, mut with) = (0, 0);
        for (piece, number) in tokens.chunks_exact(BLOCK_TOKENS).zip(1_usize..) {
            piece.hash(&mut hasher);
            match self.beginnings.entry(hasher.finish()) {
                Entry::Occupied(seen) => (shared, with) = (number * BLOCK_TOKENS, *seen.get()),
                Entry::Vacant(vacant) => {
                    vacant.insert(self.count);
                }
            }
        }
        self.count += 1;
        (u32::try_from(shared).unwrap_or(u32::MAX), with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_like_the_first_one_that_has_as_long_a_beginning() {
        let mut prompts = PromptPrefixes::default();
        let of = |parts: &[(u32, usize)]| -> Vec<u32> {
            parts.iter().flat_map(|(token, count)| std::iter::repeat_n(*token, *count)).collect()
        };
        assert_eq!(prompts.add(&of(&[(1, 32), (2, 32)])), (0, 0));
        assert_eq!(prompts.add(&of(&[(1, 40), (3, 24)])), (32, 0));
        assert_eq!(prompts.add(&of(&[(5, 100)])), (0, 0));
        // The first 50 tokens equal the second prompt's, but only whole pieces count.
        assert_eq!(prompts.add(&of(&[(1, 40), (3, 10)])), (48, 1));
        assert_eq!(prompts.add(&of(&[(1, 15)])), (0, 0));
    }
}
