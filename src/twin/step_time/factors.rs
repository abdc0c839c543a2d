//! Factors on the terms of the step time. They express the deviation of a machine from its preset.

use std::ops::{Index, IndexMut};
use std::str::FromStr;

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

/// Reads `weights=1.2,host=0.8`. Groups that are not named keep the factor 1.
impl FromStr for Factors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut factors = Self::ONE;
        for part in text.split(',') {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("'{part}' is not of the form TERM=FACTOR"))?;
            let group = TermFactor::ALL.into_iter().find(|group| group.name() == name).ok_or_else(|| {
                let names: Vec<_> = TermFactor::ALL.into_iter().map(TermFactor::name).collect();
                format!("invalid choice: '{name}' (choose from {})", names.join(", "))
            })?;
            let number = value.parse::<f64>().map_err(|_| format!("invalid float value: '{value}'"))?;
            if !(0.01..=100.0).contains(&number) {
                return Err(format!("{value} is not between 0.01 and 100"));
            }
            factors[group] = number;
        }
        Ok(factors)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_read_by_the_names_of_their_groups() {
        let factors: Factors = "weights=1.25,frontend=0.5".parse().unwrap();
        let mut expected = Factors::ONE;
        (expected[TermFactor::Weights], expected[TermFactor::Frontend]) = (1.25, 0.5);
        assert_eq!(factors, expected);
        for (text, problem) in [
            ("weights", "'weights' is not of the form TERM=FACTOR"),
            ("wights=1", "invalid choice: 'wights' (choose from weights, compute, "),
            ("host=x", "invalid float value: 'x'"),
            ("host=0", "0 is not between 0.01 and 100"),
            ("host=NaN", "NaN is not between 0.01 and 100"),
        ] {
            let refusal = text.parse::<Factors>().unwrap_err();
            assert!(refusal.starts_with(problem), "{refusal}");
        }
    }
}
