//! Comparison of greedy replies with those of the baseline, for flags that may change the output.
//!
//! Each launch answers the bundled prompts in passes with different batches, because batching alone changes greedy
//! replies. The reference is therefore the agreement of the baseline with itself.
//!
//! ```text
//! agreement of two replies   length of the common prefix / length of the longer reply, in characters; 1 if equal
//! agreement                  mean over the prompts of the agreement between launch and baseline, in different passes
//! own agreement              the same between passes of the baseline: of two launches, or of one if there is one
//! test                       exact permutation test over the prompts, one-sided
//! ```

mod permutation;
mod prompts;
mod verdict;

use serde::{Deserialize, Serialize};

pub(crate) use prompts::{CheckedPrompt, PROMPTS, find_prompt};
pub(crate) use verdict::{GuardVerdict, ReplyComparison, compare};

/// The largest number of tokens of a reply.
pub(crate) const MAX_TOKENS: u32 = 24;

/// The number of requests in flight in each pass. The numbers differ, so that the batches of the passes do.
pub(crate) const PASSES: [usize; 2] = [4, 7];

/// The greedy replies of one launch: for each pass of [`PASSES`] the replies to [`PROMPTS`], in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GreedyReplies {
    pub passes: Vec<Vec<String>>,
}

/// The replies of a launch, and their comparison with the baseline's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckedReplies {
    pub replies: GreedyReplies,
    /// Whether the launch has the baseline's values of all flags that may change the output. Its replies are then a
    /// reference.
    pub is_reference: bool,
    /// `None` for the first reference, and if there is no reference.
    pub comparison: Option<ReplyComparison>,
}

impl CheckedReplies {
    /// Returns the violation of the limit `min_agreement`: 0 if it is kept. Without a significant difference it is kept.
    /// A launch without replies, although the baseline has some, violates every limit above 0.
    #[must_use]
    pub fn violation(&self, min_agreement: f64) -> f64 {
        let kept = match &self.comparison {
            _ if self.is_reference => 1.0,
            Some(comparison) => comparison.kept(),
            None if self.replies.is_complete() => 1.0,
            None => 0.0,
        };
        (min_agreement - kept).max(0.0)
    }

    /// Returns the agreement as a share of the baseline's own; `None` without a comparison.
    #[must_use]
    pub fn relative_agreement(&self) -> Option<f64> {
        if self.is_reference { Some(1.0) } else { self.comparison.as_ref().map(ReplyComparison::relative_agreement) }
    }
}

impl std::fmt::Display for CheckedReplies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.comparison {
            Some(comparison) => comparison.fmt(f),
            None if self.is_reference => f.write_str("the reference of the other launches"),
            None if self.replies.is_complete() => f.write_str("not compared: the baseline has no replies"),
            None => f.write_str("not compared: the server did not answer every prompt"),
        }
    }
}

impl GreedyReplies {
    /// Returns whether there is a reply to every prompt in every pass.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.passes.len() == PASSES.len() && self.passes.iter().all(|pass| pass.len() == PROMPTS.len())
    }

    /// Returns the number of correct replies to a prompt over the passes.
    fn correct(&self, prompt: usize) -> u32 {
        let is_correct = |pass: &Vec<String>| {
            pass.get(prompt).zip(PROMPTS.get(prompt)).is_some_and(|(reply, prompt)| prompt.is_correct(reply))
        };
        u32::try_from(self.passes.iter().filter(|pass| is_correct(pass)).count()).unwrap_or(u32::MAX)
    }
}
