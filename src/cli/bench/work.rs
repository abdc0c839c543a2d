//! What to ask: the workload from the arguments.

use std::sync::Arc;

use super::arguments::WorkArgs;
use super::target::{Served, vocab_size};
use crate::cli::Failure;
use crate::cli::failure::USAGE;
use crate::workload::{Random, Workload};

/// Nearly every model's vocabulary has so many tokens, Llama 2's no more.
const USUAL_VOCABULARY: u32 = 32_000;

pub(super) fn build(args: &WorkArgs, served: &Served, seed: u64) -> Result<Arc<dyn Workload>, Failure> {
    let number = |text: &Option<String>, usual: u32| {
        let text = text.as_deref().map(str::parse).transpose();
        text.map(|number| number.unwrap_or(usual)).map_err(|_| Failure::new(USAGE, "not a number"))
    };
    let directory = args.tokenizer.as_deref().or(served.directory.as_deref());
    let vocab_size = args.vocab_size.or_else(|| vocab_size(directory?)).unwrap_or(USUAL_VOCABULARY);
    Ok(Arc::new(Random {
        input_len: number(&args.input_len, 1024)?,
        output_len: number(&args.output_len, 128)?,
        vocab_size,
        seed,
    }))
}
