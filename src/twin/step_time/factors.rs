//! Factors on the terms of the step time. They express the deviation of a machine from its preset.

use std::ops::{Index, IndexMut};

/// A group of terms that share a factor. Communication between devices has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TermFactor {
    /// Reading weights: the linear layers for a single token, the output head, and the sampler.
    Weights,
    /// The cost of further tokens in the linear layers.
    Compute,
    Attention,
    /// Launching the kernels outside of captured graphs.
    Launch,
    /// The host's work for a step.
    Host,
    /// The work of the API server: parsing, tokenising, streaming.
    Frontend,
}

impl TermFactor {
    pub const ALL: [Self; 6] =
        [Self::Weights, Self::Compute, Self::Attention, Self::Launch, Self::Host, Self::Frontend];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Compute => "compute",
            Self::Attention => "attention",
            Self::Launch => "launch",
            Self::Host => "host",
            Self::Frontend => "frontend",
        }
    }
}

/// One factor for each group, 1 by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors([f64; TermFactor::ALL.len()]);

impl Factors {
    pub const ONE: Self = Self([1.0; TermFactor::ALL.len()]);
}

impl Index<TermFactor> for Factors {
    type Output = f64;

    fn index(&self, factor: TermFactor) -> &f64 {
        &self.0[factor as usize]
    }
}

impl IndexMut<TermFactor> for Factors {
    fn index_mut(&mut self, factor: TermFactor) -> &mut f64 {
        &mut self.0[factor as usize]
    }
}
