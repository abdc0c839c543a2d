//! Builds the workload from the arguments.

use std::path::PathBuf;
use std::time::Duration;

use super::arguments::WorkArgs;
use super::target::{ServedModel, vocab_size};
use crate::cli::CommandFailure;
use crate::cli::failure::{INVALID, USAGE};
use crate::load::{LoadTarget, RequestApi};
use crate::workload::{Pruning, Think, TokenLength, WorkloadError, WorkloadSpec, WorkloadSurroundings};

/// Default vocabulary size: Llama 2's. Nearly every model has at least as many tokens.
const DEFAULT_VOCABULARY: u32 = 32_000;

/// Default lengths in tokens, as of `vllm bench serve`'s random prompts.
const DEFAULT_INPUT: TokenLength = TokenLength::Exact(1024);
const DEFAULT_OUTPUT: TokenLength = TokenLength::Exact(128);

/// Defaults of prompts that share a prefix (its tokens, the number of prefixes), and of conversations (requests).
const DEFAULT_PREFIX: u32 = 512;
const DEFAULT_GROUPS: u32 = 8;
const DEFAULT_TURNS: TokenLength = TokenLength::Exact(4);

/// Default width and height of an image, in pixels.
const DEFAULT_IMAGE: (u32, u32) = (512, 512);

/// The workload kinds to which each argument applies.
const ARGUMENT_KINDS: &[(&str, &[&str])] = &[
    ("--input-len", &["random", "prefix", "conversation", "image"]),
    ("--output-len", &["random", "sharegpt", "jsonl", "prefix", "conversation", "image"]),
    ("--range-ratio", &["random", "prefix", "conversation", "image"]),
    ("--prefix-len", &["random", "prefix", "conversation"]),
    ("--prefix-groups", &["prefix"]),
    ("--prefix-share", &["prefix"]),
    ("--turns", &["conversation"]),
    ("--user-len", &["conversation"]),
    ("--think-time", &["conversation"]),
    ("--image-size", &["image"]),
    ("--images", &["image"]),
    ("--dataset", &["sharegpt", "jsonl", "trace"]),
    ("--trace", &["trace"]),
];

impl WorkArgs {
    /// Returns the first argument that describes a workload. `--dataset` and the arguments about the model do not
    /// count.
    pub(super) fn described(&self) -> Option<&'static str> {
        ARGUMENT_KINDS.iter().map(|(flag, _)| *flag).find(|flag| *flag != "--dataset" && self.is_given(flag))
    }

    fn is_given(&self, flag: &str) -> bool {
        match flag {
            "--input-len" => self.input_len.is_some(),
            "--output-len" => self.output_len.is_some(),
            "--range-ratio" => self.range_ratio.is_some(),
            "--prefix-len" => self.prefix_len.is_some(),
            "--prefix-groups" => self.prefix_groups.is_some(),
            "--prefix-share" => self.prefix_share.is_some(),
            "--turns" => self.turns.is_some(),
            "--user-len" => self.user_len.is_some(),
            "--think-time" => self.think_time.is_some(),
            "--image-size" => !self.image_size.is_empty(),
            "--images" => self.images.is_some(),
            "--dataset" => self.dataset.is_some(),
            "--trace" => self.trace.is_some(),
            _ => false,
        }
    }

    /// Returns the workload that the arguments describe. `prompts` is the number to take from a `ShareGPT`
    /// file.
    pub(super) fn spec(&self, prompts: Option<u64>) -> Result<WorkloadSpec, CommandFailure> {
        let file = self.trace.clone().or_else(|| self.dataset.clone());
        let found = match (&self.workload, &self.trace, &self.dataset) {
            (Some(kind), ..) => kind.clone(),
            (None, Some(_), _) => "trace".to_owned(),
            (None, None, Some(dataset)) => {
                WorkloadSpec::of_file(dataset).map_err(|error| failure(&error))?.kind().to_owned()
            }
            (None, None, None) => "random".to_owned(),
        };
        let kind = found.as_str();
        for (flag, kinds) in ARGUMENT_KINDS {
            if self.is_given(flag) && !kinds.contains(&kind) {
                let message = format!("{flag} does not apply to a {kind} workload");
                return Err(
                    CommandFailure::new(USAGE, message).with_hint(format!("it applies to: {}", kinds.join(", ")))
                );
            }
        }
        self.of_kind(kind, file, prompts)
    }

    fn of_kind(&self, kind: &str, path: Option<PathBuf>, prompts: Option<u64>) -> Result<WorkloadSpec, CommandFailure> {
        let ratio = |length: TokenLength| match self.range_ratio {
            Some(ratio) => {
                length.with_range_ratio(ratio).map_err(|problem| usage(&format!("--range-ratio: {problem}")))
            }
            None => Ok(length),
        };
        let input_len = || ratio(self.input_len.unwrap_or(DEFAULT_INPUT));
        let output_len = || ratio(self.output_len.unwrap_or(DEFAULT_OUTPUT));
        // Replies in a file have lengths of their own. An exact length replaces all of them.
        let only = match self.output_len {
            Some(TokenLength::Exact(length)) => Some(length),
            Some(other) if matches!(kind, "sharegpt" | "jsonl") => {
                return Err(usage(&format!("--output-len {other}: a {kind} workload takes a single number")));
            }
            _ => None,
        };
        Ok(match kind {
            "sharegpt" => {
                let prompts = prompts.map_or(WorkloadSpec::PROMPTS, |n| u32::try_from(n).unwrap_or(u32::MAX));
                WorkloadSpec::ShareGpt { path, prompts, output_len: only, pruning: Pruning::default() }
            }
            "jsonl" => WorkloadSpec::Jsonl { path, output_len: only },
            "trace" => WorkloadSpec::Trace { path },
            "prefix" => WorkloadSpec::Prefix {
                groups: self.prefix_groups.unwrap_or(DEFAULT_GROUPS),
                prefix_len: self.prefix_len.unwrap_or(DEFAULT_PREFIX),
                share: self.prefix_share.unwrap_or(1.0),
                suffix_len: input_len()?,
                output_len: output_len()?,
            },
            "conversation" => WorkloadSpec::Conversation {
                turns: self.turns.unwrap_or(DEFAULT_TURNS),
                system_len: self.prefix_len.unwrap_or(0),
                first_len: input_len()?,
                user_len: match self.user_len {
                    Some(length) => ratio(length)?,
                    None => input_len()?,
                },
                output_len: output_len()?,
                think: self.think_time.map_or(Think::Fixed(Duration::ZERO), Think::Exponential),
            },
            "image" => WorkloadSpec::Image {
                sizes: if self.image_size.is_empty() { vec![DEFAULT_IMAGE] } else { self.image_size.clone() },
                count: self.images.unwrap_or(1),
                input_len: input_len()?,
                output_len: output_len()?,
            },
            _ => WorkloadSpec::Random {
                input_len: input_len()?,
                output_len: output_len()?,
                prefix_len: self.prefix_len.unwrap_or(0),
            },
        })
    }

    /// Returns the model's tokenizer: the given one, or that in the directory that the server names.
    pub(super) fn tokenizer(&self, served: &ServedModel) -> Option<PathBuf> {
        let own = || served.directory.clone().filter(|directory| directory.join("tokenizer.json").is_file());
        self.tokenizer.clone().or_else(own)
    }

    /// Returns the server's capabilities and the known facts about the model.
    pub(super) fn surroundings(&self, target: &LoadTarget, served: &ServedModel, seed: u64) -> WorkloadSurroundings {
        let directory = self.tokenizer.as_deref().or(served.directory.as_deref());
        let vocab_size = self.vocab_size.or_else(|| vocab_size(directory?));
        WorkloadSurroundings {
            seed,
            vocab_size: Some(vocab_size.unwrap_or(DEFAULT_VOCABULARY)),
            max_model_len: served.max_model_len,
            tokenizer: self.tokenizer(served),
            takes_tokens: target.dialect.takes_tokens(target.api),
            chat: target.api == RequestApi::Chat,
            approximate: false,
        }
    }
}

fn usage(message: &str) -> CommandFailure {
    CommandFailure::new(USAGE, message)
}

/// Returns the failure of a workload: invalid data for errors in a file, wrong usage for errors in arguments.
pub(super) fn failure(error: &WorkloadError) -> CommandFailure {
    let code = match error {
        WorkloadError::Tokenizer { .. }
        | WorkloadError::Read { .. }
        | WorkloadError::Row { .. }
        | WorkloadError::Empty { .. } => INVALID,
        _ => USAGE,
    };
    let hint = match error {
        WorkloadError::NoTokenizer => Some("give a directory that holds the model's tokenizer.json with --tokenizer"),
        WorkloadError::NoFile { .. } => Some("name the file with --dataset or --trace"),
        WorkloadError::Api { .. } => Some("choose the other interface with --api, or another --workload"),
        _ => error.hint(),
    };
    let failure = CommandFailure::new(code, error.to_string());
    match hint {
        Some(hint) => failure.with_hint(hint),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        work: WorkArgs,
    }

    fn spec(words: &str) -> Result<WorkloadSpec, CommandFailure> {
        Line::try_parse_from(["bench"].into_iter().chain(words.split_whitespace())).unwrap().work.spec(Some(5))
    }

    #[test]
    fn default_prompts_are_those_of_vllm_bench_serve() {
        assert_eq!(spec("").unwrap(), WorkloadSpec::random(1024, 128));
        assert_eq!(spec("--input-len 7 --output-len 3").unwrap(), WorkloadSpec::random(7, 3));
        let around = spec("--input-len 100 --range-ratio 50%").unwrap();
        let WorkloadSpec::Random { input_len, .. } = around else { panic!("{around:?}") };
        assert_eq!(input_len, TokenLength::Range { min: 50, max: 150 });
    }

    #[test]
    fn the_kind_of_a_dataset_is_detected_and_a_trace_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("prompts");
        std::fs::write(&path, "{\"prompt\": \"hello\"}\n").unwrap();
        let dataset = format!("--dataset {}", path.display());
        assert_eq!(spec(&dataset).unwrap(), WorkloadSpec::Jsonl { path: Some(path.clone()), output_len: None });
        let trace = spec(&format!("--trace {}", path.display())).unwrap();
        assert_eq!(trace, WorkloadSpec::Trace { path: Some(path) });
        assert!(spec("--dataset /no/such/file").is_err());
    }

    #[test]
    fn an_argument_without_effect_is_refused() {
        assert!(spec("--turns 3").is_err());
        assert!(spec("--workload conversation --turns 3..5").is_ok());
        assert!(spec("--workload image --prefix-len 3").is_err());
        assert!(spec("--workload trace --trace x --output-len 3").is_err());
        assert!(spec("--workload jsonl --dataset x --output-len 3..5").is_err());
    }

    #[test]
    fn every_kind_of_the_command_line_is_one_of_the_workloads() {
        for (kind, _) in crate::cli::bench::arguments::WORKLOAD_KINDS {
            assert_eq!(spec(&format!("--workload {kind}")).unwrap().kind(), *kind);
            assert!(WorkloadSpec::KINDS.contains(kind));
        }
        assert!(ARGUMENT_KINDS.iter().all(|(_, kinds)| kinds.iter().all(|kind| WorkloadSpec::KINDS.contains(kind))));
    }
}
