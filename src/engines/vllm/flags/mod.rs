//! The flags of `vllm serve` by release.

#[cfg(test)]
mod tests;

use crate::flag::FlagBook;

/// Sources: `vllm serve --help` and `vllm/engine/arg_utils.py` of each release; forms of JSON flags: `vllm/config`.
pub static FLAGS: FlagBook = FlagBook::new("vLLM", include_str!("flags.json"), include_str!("forms.json"));
