//! Sizes of memory in GiB.

use super::{f64_to_u64, to_f64};

/// Bytes of a GiB.
pub const GIB: u64 = 1 << 30;

/// Returns bytes in GiB.
#[inline]
#[must_use]
pub fn gib(bytes: u64) -> f64 {
    to_f64(bytes) / to_f64(GIB)
}

/// Returns GiB in bytes, truncated; it saturates.
#[inline]
#[must_use]
pub fn gib_to_bytes(gib: f64) -> u64 {
    f64_to_u64(gib * to_f64(GIB))
}

/// Returns the text of a size for a person: `79.2 GiB`.
#[must_use]
pub fn gib_text(bytes: u64) -> String {
    format!("{:.1} GiB", gib(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_converted_in_both_directions_and_written_with_one_decimal() {
        assert_eq!((gib(3 * GIB / 2).to_bits(), gib_to_bytes(1.5)), (1.5_f64.to_bits(), 3 * GIB / 2));
        assert_eq!([-1.0, 1e99].map(gib_to_bytes), [0, u64::MAX]);
        assert_eq!((gib_text(GIB / 4), gib_text(3 * GIB / 2)), ("0.2 GiB".to_owned(), "1.5 GiB".to_owned()));
    }
}
