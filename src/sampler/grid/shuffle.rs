//! A permutation of `0..count` that is computed for each index on its own.
//!
//! A Feistel network permutes the numbers of an even count of bits, with any round function. A number that it maps to
//! `count` or beyond is mapped again until the result is below `count` (J. Black and P. Rogaway, "Ciphers with
//! arbitrary finite domains", 2002).

#[derive(Clone, Copy, Debug)]
pub(super) struct Shuffle {
    count: u64,
    half_bits: u32,
    key: u64,
}

const ROUNDS: u64 = 6;

impl Shuffle {
    /// Creates a permutation of at most `2^62` numbers. Equal seeds and streams give the same order.
    pub(super) fn new(count: u64, seed: u64, stream: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), key: mix(mix(seed).wrapping_add(stream)) }
    }

    /// Returns the number at `place`, which is below `count`.
    pub(super) fn at(&self, place: u64) -> u64 {
        let mut number = place;
        loop {
            number = self.network(number);
            if number < self.count {
                return number;
            }
        }
    }

    fn network(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            let key = self.key.wrapping_add(round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finalizer of `SplitMix64` (G. Steele, D. Lea and C. Flood, 2014).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
