//! Random numbers that never change: each is a function of seed, purpose, index and position.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::stats::{low_u32, to_f64};

/// The purpose of a random number. Two purposes never share a stream. The values are part of every workload's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DrawPurpose {
    /// Tokens that belong to one session alone; the stream is the session's index.
    Prompt = 0,
    /// Lengths and other choices of a session.
    Choice = 1,
    /// Tokens that sessions share; the stream is the group.
    Shared = 2,
    /// Blocks of a trace that sessions share; the stream is the block's hash.
    Block = 3,
    /// Messages of a conversation after its first.
    Message = 4,
    /// Pixels.
    Pixel = 5,
    /// The order of a file's rows.
    Order = 6,
    /// The choice of a workload in a mixture.
    Mixture = 7,
}

/// Returns the generator of one purpose and index.
pub(super) fn rng(seed: u64, purpose: DrawPurpose, index: u64) -> ChaCha8Rng {
    let mut rng = if purpose == DrawPurpose::Prompt {
        ChaCha8Rng::seed_from_u64(seed)
    } else {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8] = purpose as u8;
        ChaCha8Rng::from_seed(key)
    };
    rng.set_stream(index);
    rng
}

/// Draws a number below `range`, which is at least 1, by Canon's method with one correction. The bias is below 2^-32.
/// The method is implemented here, because a library may change its method and with it every prompt.
#[inline]
pub(super) fn below(rng: &mut ChaCha8Rng, range: u32) -> u32 {
    let halves = |number: u32| {
        let product = u64::from(number) * u64::from(range);
        ((product >> 32) as u32, low_u32(product))
    };
    let (high, low) = halves(rng.next_u32());
    if low > range.wrapping_neg() {
        let (more, _) = halves(rng.next_u32());
        return high + u32::from(low.checked_add(more).is_none());
    }
    high
}

/// Draws a number from `min` to `max`, both included.
pub(super) fn between(rng: &mut ChaCha8Rng, min: u32, max: u32) -> u32 {
    match (max - min).checked_add(1) {
        Some(range) => min + below(rng, range),
        None => rng.next_u32(),
    }
}

/// Draws a number from 0 to below 1, with 53 random bits.
pub(super) fn unit(rng: &mut ChaCha8Rng) -> f64 {
    let bits = to_f64(rng.next_u64() >> 11);
    bits / 9_007_199_254_740_992.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    #[test]
    fn random_numbers_match_the_library_of_the_first_studies() {
        let (mut own, mut library) = (rng(7, DrawPurpose::Prompt, 3), rng(7, DrawPurpose::Prompt, 3));
        for range in (1..2_000).chain([u32::MAX - 5, 3_000_000_000]) {
            assert_eq!(below(&mut own, range), library.random_range(0..range), "{range}");
        }
    }

    #[test]
    fn purposes_and_indices_have_streams_of_their_own() {
        let first = |purpose, index| rng(1, purpose, index).next_u64();
        let all = [
            first(DrawPurpose::Prompt, 0),
            first(DrawPurpose::Prompt, 1),
            first(DrawPurpose::Choice, 0),
            first(DrawPurpose::Order, 0),
        ];
        for (at, number) in all.iter().enumerate() {
            assert!(!all[..at].contains(number));
        }
    }

    #[test]
    fn a_unit_is_below_one_and_spread_evenly() {
        let mut rng = rng(1, DrawPurpose::Choice, 0);
        let numbers: Vec<_> = (0..10_000).map(|_| unit(&mut rng)).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = numbers.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
