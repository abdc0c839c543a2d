//! Captured graphs: which batches use one, and to which size these are padded.

/// Largest batch, in tokens, for which a graph is captured by default: `max_cudagraph_capture_size` in vLLM's
/// `config/vllm.py`.
const LARGEST: u32 = 512;

/// The sizes that vLLM captures: 1, 2, 4, then every 8 up to 256, then every 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Graphs {
    largest: u32,
}

impl Graphs {
    /// No graphs: every kernel is launched by itself.
    pub(super) const NONE: Self = Self { largest: 0 };

    /// Returns vLLM's default: sizes up to twice `max_num_seqs`, because a decode may verify a draft, and up to 512.
    pub(super) fn of(max_num_seqs: u32) -> Self {
        Self { largest: LARGEST.min(max_num_seqs.saturating_mul(2)) }
    }

    /// Returns the size of the graph that is replayed for this number of tokens. `None` if the kernels are launched one
    /// by one.
    pub(super) fn padded(self, tokens: u32) -> Option<u32> {
        let size = match tokens {
            0..=2 => tokens.max(1),
            3..=4 => 4,
            5..=256 => tokens.next_multiple_of(8),
            _ => tokens.checked_next_multiple_of(16)?,
        };
        (size <= self.largest).then_some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_padded_to_the_next_captured_size() {
        let graphs = Graphs::of(256);
        let sizes: Vec<_> = [1, 2, 3, 5, 9, 35, 256, 257, 512, 513].map(|tokens| graphs.padded(tokens)).to_vec();
        let captured = [1, 2, 4, 8, 16, 40, 256, 272, 512].map(Some);
        assert_eq!(sizes[..9], captured);
        assert_eq!(sizes[9], None);
        assert_eq!(Graphs::of(20).padded(41), None, "two tokens for each of twenty sequences");
        assert_eq!(Graphs::NONE.padded(1), None);
        assert_eq!(Graphs::of(u32::MAX).padded(u32::MAX), None);
    }
}
