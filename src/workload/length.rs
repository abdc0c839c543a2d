//! A number of tokens as in a study file: exact, a range, or the rest of the model's length.

use rand_chacha::ChaCha8Rng;

use super::WorkloadError;
use super::draw::between;
use crate::stats::f64_to_u32;

/// A number of tokens (or of turns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLength {
    Exact(u32),
    /// Drawn evenly for each request, both ends included.
    Range {
        min: u32,
        max: u32,
    },
    /// The model's longest sequence less this number of tokens: `max_model_len - 2048`.
    BelowMaxModelLen(u32),
}

impl TokenLength {
    /// Returns the range that `vllm bench serve --random-range-ratio` draws from: `floor(length * (1 - ratio))` to
    /// `ceil(length * (1 + ratio))`, at least 1 (`get_sampling_params` in `vllm/benchmarks/datasets/utils.py`). Unlike
    /// vLLM's, the length includes tokens that a tokenizer adds by itself.
    ///
    /// # Errors
    /// If the ratio is not from 0 to below 1, or the length depends on the model.
    pub fn with_range_ratio(self, ratio: f64) -> Result<Self, String> {
        if !(0.0..1.0).contains(&ratio) {
            return Err(format!("{ratio} is not at least 0 and below 1"));
        }
        let Self::Exact(length) = self else {
            return Err("needs input_len and output_len as single numbers".to_owned());
        };
        let of = |value: f64| f64_to_u32(value).max(1);
        let length = f64::from(length);
        let (min, max) = (of((length * (1.0 - ratio)).floor()), of((length * (1.0 + ratio)).ceil()));
        Ok(if min == max { Self::Exact(min) } else { Self::Range { min, max } })
    }

    /// Returns the smallest and the largest number. `key` names the length in errors.
    pub(super) fn resolve(self, key: &'static str, max_model_len: Option<u64>) -> Result<LengthSpan, WorkloadError> {
        let invalid = |problem: String| WorkloadError::Value { key, problem };
        let span = match self {
            Self::Exact(length) => LengthSpan { min: length, max: length },
            Self::Range { min, max } => LengthSpan { min, max },
            Self::BelowMaxModelLen(less) => {
                let holds = max_model_len.ok_or_else(|| {
                    invalid("depends on max_model_len, which is not known: give the model's directory".to_owned())
                })?;
                let rest = holds.saturating_sub(u64::from(less));
                let rest = u32::try_from(rest).unwrap_or(u32::MAX);
                if rest == 0 {
                    return Err(invalid(format!("max_model_len {holds} - {less} leaves no token")));
                }
                LengthSpan { min: rest, max: rest }
            }
        };
        if span.min == 0 {
            return Err(invalid("must be at least 1".to_owned()));
        }
        if span.min > span.max {
            return Err(invalid(format!("min {} is larger than max {}", span.min, span.max)));
        }
        Ok(span)
    }
}

impl std::fmt::Display for TokenLength {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(length) => write!(f, "{length}"),
            Self::Range { min, max } => write!(f, "{min}..{max}"),
            Self::BelowMaxModelLen(less) => write!(f, "max_model_len - {less}"),
        }
    }
}

/// Parses `512`, `100..200`, `max_model_len` or `max_model_len - 2048`.
impl std::str::FromStr for TokenLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error =
            || format!("{text:?} is not a length: write a number, a range \"100..200\" or \"max_model_len - 2048\"");
        let number = |text: &str| text.trim().parse().map_err(|_| error());
        if let Some(rest) = text.trim().strip_prefix("max_model_len") {
            return match rest.trim().strip_prefix('-') {
                Some(less) => number(less).map(Self::BelowMaxModelLen),
                None if rest.is_empty() => Ok(Self::BelowMaxModelLen(0)),
                None => Err(error()),
            };
        }
        match text.split_once("..") {
            Some((min, max)) => Ok(Self::Range { min: number(min)?, max: number(max)? }),
            None => number(text).map(Self::Exact),
        }
    }
}

/// A range of lengths, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LengthSpan {
    pub(super) min: u32,
    pub(super) max: u32,
}

impl LengthSpan {
    /// Draws a length. An exact length takes no random number, so that a range beside it draws the same values.
    pub(super) fn draw(self, rng: &mut ChaCha8Rng) -> u32 {
        if self.min == self.max { self.min } else { between(rng, self.min, self.max) }
    }

    pub(super) fn longest(self) -> u64 {
        u64::from(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_rounds_outward_as_vllm_bench_serve_does() {
        assert_eq!(TokenLength::Exact(100).with_range_ratio(0.25), Ok(TokenLength::Range { min: 75, max: 125 }));
        assert_eq!(TokenLength::Exact(5).with_range_ratio(0.5), Ok(TokenLength::Range { min: 2, max: 8 }));
        assert_eq!(TokenLength::Exact(1).with_range_ratio(0.9), Ok(TokenLength::Range { min: 1, max: 2 }));
        assert_eq!(TokenLength::Exact(7).with_range_ratio(0.0), Ok(TokenLength::Exact(7)));
        assert!(TokenLength::Exact(7).with_range_ratio(1.0).is_err());
    }

    #[test]
    fn a_length_is_read_as_it_is_written() {
        for length in [
            TokenLength::Exact(5),
            TokenLength::Range { min: 2, max: 9 },
            TokenLength::BelowMaxModelLen(2048),
            TokenLength::BelowMaxModelLen(0),
        ] {
            assert_eq!(length.to_string().parse(), Ok(length));
        }
        assert_eq!("max_model_len".parse(), Ok(TokenLength::BelowMaxModelLen(0)));
        for text in ["", "x", "3..", "max_model_len + 3", "-1"] {
            assert!(text.parse::<TokenLength>().is_err_and(|error| error.contains("max_model_len - 2048")), "{text}");
        }
    }

    #[test]
    fn the_rest_of_the_model_length_is_at_least_one_token() {
        assert_eq!(
            TokenLength::BelowMaxModelLen(2048).resolve("input_len", Some(4096)),
            Ok(LengthSpan { min: 2048, max: 2048 })
        );
        for (length, holds, problem) in [
            (TokenLength::BelowMaxModelLen(2048), Some(2048), "input_len: max_model_len 2048 - 2048 leaves no token"),
            (TokenLength::BelowMaxModelLen(1), None, "input_len: depends on max_model_len, which is not known"),
            (TokenLength::Exact(0), None, "input_len: must be at least 1"),
            (TokenLength::Range { min: 3, max: 2 }, None, "input_len: min 3 is larger than max 2"),
        ] {
            let error = length.resolve("input_len", holds).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{error}");
        }
    }
}
