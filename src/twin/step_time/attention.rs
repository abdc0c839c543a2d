//! Seconds of attention in all layers: from bytes and operations, or interpolated between measured kernels.

use super::grid::KernelGrid;
use crate::stats::to_f64;
use crate::twin::batch::BatchWork;

/// Wasted work of query tiles at the diagonal and at the ends of prompts, in pairs per prompt token. Derived from a
/// comparison of short and long prompts in the tables of `aiconfigurator`.
const TILE_PAIRS: f64 = 512.0;
/// The number of sequences for which a profile's `tail` is valid. It is smaller for more sequences: 0.06 at 64, 0.02 at
/// 128 and 0.005 at 256 in the profiles' own tables.
const TAIL_SEQUENCES: f64 = 64.0;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Attention {
    Formula(Formula),
    Measured(Box<MeasuredKernels>),
}

/// Seconds of attention from the model's shape and the device's rates, before the division by tensor-parallel devices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Formula {
    /// Constant seconds of a step.
    pub(crate) floor_s: f64,
    /// Seconds per sequence of the batch.
    pub(crate) sequence_s: f64,
    /// Seconds per cached token that is read.
    pub(crate) read_s: f64,
    /// Factor on the reads of decodes in a batch with prompts.
    pub(crate) mixed: f64,
    /// Seconds per pair of a prompt token and a token that it attends to.
    pub(crate) pair_s: f64,
}

/// Kernels measured on uniform batches. The axes of the [`KernelGrid`]s are the prompt tokens of the step, their
/// context in the cache, the number of decodes, and the context of each decode.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeasuredKernels {
    /// Decodes alone. Axes: number of decodes, context of each.
    pub(crate) decode: KernelGrid<2>,
    /// One prompt alone. Axes: its tokens, its context.
    pub(crate) prompt: KernelGrid<2>,
    /// Prompts and decodes together, with all four axes.
    pub(crate) mixed: KernelGrid<4>,
    /// Position, 0 to 1, of the time of 64 decodes with unequal contexts. 0 is the time with the mean context for all,
    /// 1 that with the longest one for all.
    pub(crate) tail: f64,
}

impl Attention {
    pub(super) fn time(&self, work: &BatchWork) -> f64 {
        match self {
            Self::Formula(formula) => formula.time(work),
            Self::Measured(measured) => measured.time(work),
        }
    }
}

impl Formula {
    fn time(&self, work: &BatchWork) -> f64 {
        let decodes = to_f64(work.decode_context);
        let pairs = to_f64(work.prompt_pairs) + TILE_PAIRS * f64::from(work.prompt_tokens);
        let read = if work.prompt_tokens > 0 { decodes * self.mixed + to_f64(work.prompt_context) } else { decodes };
        self.floor_s + self.sequence_s * f64::from(work.sequences) + self.read_s * read + self.pair_s * pairs
    }
}

impl MeasuredKernels {
    fn time(&self, work: &BatchWork) -> f64 {
        let decodes = f64::from(work.decodes);
        let mean = if work.decodes > 0 { to_f64(work.decode_context) / decodes } else { 0.0 };
        if work.prompt_tokens > 0 {
            return self.prompts(work, |tokens, context| match work.decodes {
                0 => self.prompt.at([tokens, context]),
                _ => self.mixed.at([tokens, context, decodes, mean]),
            });
        }
        if work.decodes == 0 {
            return 0.0;
        }
        let even = self.decode.at([decodes, mean]);
        let longest = self.decode.at([decodes, f64::from(work.decode_longest)]);
        even + self.tail * (TAIL_SEQUENCES / decodes).min(1.0) * (longest - even).max(0.0)
    }

    /// Treats all prompts of the step as one prompt with the same numbers of tokens and pairs. Several prompts may have
    /// fewer pairs than one prompt of that length without context. The cost of that prompt is then reduced in
    /// proportion to the pairs.
    fn prompts(&self, work: &BatchWork, at: impl Fn(f64, f64) -> f64) -> f64 {
        let tokens = f64::from(work.prompt_tokens);
        let pairs = to_f64(work.prompt_pairs);
        let alone = tokens * (tokens + 1.0) / 2.0;
        if pairs >= alone {
            return at(tokens, (pairs - alone) / tokens);
        }
        let least = at(self.prompt.first(), 0.0);
        least + (at(tokens, 0.0) - least).max(0.0) * pairs / alone
    }
}
