//! Prompts of random token ids and fixed lengths.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Prompt, Session, Workload};

/// Token ids below this are often special (padding, end of sequence, control) and are left out.
const FIRST_TOKEN: u32 = 256;

/// This share of the vocabulary, its end, is left out too. Many models pad it (Qwen2 has 151,936 rows and 151,665 tokens),
/// and some releases of vLLM refuse a prompt that holds an id beyond the tokenizer's last: "Token id is out of vocabulary".
const LEFT_OUT: u32 = 16;

/// `input_len` random token ids in, `output_len` tokens out, both for every request. Requests share no prefix, except by chance.
#[derive(Clone, Debug)]
pub struct Random {
    pub input_len: u32,
    pub output_len: u32,
    pub vocab_size: u32,
    pub seed: u64,
}

impl Workload for Random {
    fn session(&self, index: u64) -> Session {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(index);
        let first = FIRST_TOKEN.min(self.vocab_size / 2);
        let end = self.vocab_size - self.vocab_size / LEFT_OUT;
        let prompt = (0..self.input_len).map(|_| rng.random_range(first..end)).collect();
        Session::single(Prompt::Tokens(prompt), self.output_len)
    }

    fn longest(&self) -> u64 {
        u64::from(self.input_len) + u64::from(self.output_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(workload: &Random, index: u64) -> Vec<u32> {
        match workload.session(index).turns.remove(0).request.prompt {
            Prompt::Tokens(tokens) => tokens,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_same_index_gives_the_same_request_and_another_index_another() {
        let workload = Random { input_len: 16, output_len: 4, vocab_size: 4096, seed: 7 };
        assert_eq!(workload.session(3), workload.session(3));
        assert_ne!(workload.session(3), workload.session(4));
        assert_eq!(prompt(&workload, 3).len(), 16);
        assert!(prompt(&workload, 5).iter().all(|token| (256..4096).contains(token)));
    }

    #[test]
    fn ids_that_a_tokenizer_may_lack_are_left_out() {
        let workload = Random { input_len: 4096, output_len: 4, vocab_size: 151_936, seed: 7 };
        let most = (0..40).flat_map(|index| prompt(&workload, index)).max();
        assert!(most.is_some_and(|most| (142_000..142_440).contains(&most)), "{most:?}");
    }

    #[test]
    fn a_tiny_vocabulary_is_enough() {
        let workload = Random { input_len: 64, output_len: 1, vocab_size: 2, seed: 0 };
        assert!(prompt(&workload, 0).iter().all(|token| *token < 2));
    }
}
