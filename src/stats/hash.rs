//! The 64-bit FNV-1a hash. It detects changes, and is no protection against forgery.

/// A hash over bytes that arrive in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Fnv1a(u64);

impl Fnv1a {
    /// Creates the hash of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Returns the hash with these bytes appended.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// Returns the hash.
    #[must_use]
    pub fn value(self) -> u64 {
        self.0
    }
}

impl Default for Fnv1a {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hashes_are_those_of_the_reference() {
        // Test vectors of the FNV draft (draft-eastlake-fnv).
        assert_eq!(Fnv1a::new().value(), 0xcbf2_9ce4_8422_2325);
        assert_eq!(Fnv1a::new().with(b"a").value(), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(Fnv1a::new().with(b"foo").with(b"bar").value(), 0x8594_4171_f739_67e8);
    }
}
