//! Prompts of random token ids and fixed lengths.

use super::draw::DrawPurpose;
use super::writer::{TextPiece, TextWriter};
use super::{UserSession, Workload};

/// `input_len` random token ids in, `output_len` tokens out, both for every request. Requests share no prefix, except
/// by chance. Ids that may be special or that a tokenizer may lack are not drawn: the first 256, or the first half of a
/// vocabulary below 512, and the last sixteenth.
#[derive(Clone, Debug)]
pub struct RandomWorkload {
    pub input_len: u32,
    pub output_len: u32,
    /// At least 2.
    pub vocab_size: u32,
    pub seed: u64,
}

impl Workload for RandomWorkload {
    fn session(&self, index: u64) -> UserSession {
        let piece = TextPiece::new(DrawPurpose::Prompt, index, self.input_len);
        UserSession::single(TextWriter::of_ids(self.seed, self.vocab_size).prompt([piece]), self.output_len)
    }

    fn longest(&self) -> u64 {
        u64::from(self.input_len) + u64::from(self.output_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::tokens;

    #[test]
    fn the_same_index_gives_the_same_request_and_another_index_another() {
        let workload = RandomWorkload { input_len: 16, output_len: 4, vocab_size: 4096, seed: 7 };
        assert_eq!(workload.session(3), workload.session(3));
        assert_ne!(workload.session(3), workload.session(4));
        assert_eq!(tokens(&workload, 3).len(), 16);
        assert!(tokens(&workload, 5).iter().all(|token| (256..4096).contains(token)));
    }

    #[test]
    fn ids_that_a_tokenizer_may_lack_are_left_out() {
        let workload = RandomWorkload { input_len: 4096, output_len: 4, vocab_size: 151_936, seed: 7 };
        // The last sixteenth of the ids is left out: 15/16 of 151,936 is 142,440.
        let most = (0..40).flat_map(|index| tokens(&workload, index)).max();
        assert!(most.is_some_and(|most| (142_000..142_440).contains(&most)), "{most:?}");
    }

    #[test]
    fn a_tiny_vocabulary_is_enough() {
        let workload = RandomWorkload { input_len: 64, output_len: 1, vocab_size: 2, seed: 0 };
        assert!(tokens(&workload, 0).iter().all(|token| *token < 2));
    }
}
