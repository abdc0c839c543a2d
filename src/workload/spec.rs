//! Specification of a workload in a study file or on the command line, and the construction of the workload.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::conversation::{Conversation, Think};
use super::image::Image;
use super::length::TokenLength;
use super::mixture::Mixture;
use super::prefix::Prefix;
use super::sharegpt::{self, Pruning};
use super::tokenizer::Tokenizer;
use super::trace::TraceWorkload;
use super::writer::TextWriter;
use super::{Workload, WorkloadError, jsonl};

/// A workload before it is built. Lengths are in tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadSpec {
    /// Random tokens. All prompts begin with the same `prefix_len` tokens, which come on top of `input_len`.
    Random { input_len: TokenLength, output_len: TokenLength, prefix_len: u32 },
    /// Up to `prompts` conversations of a ShareGPT file. The reply's length is the recorded one, or `output_len`.
    ShareGpt { path: Option<PathBuf>, prompts: u32, output_len: Option<u32>, pruning: Pruning },
    /// Prompts, one JSON object for each line. `output_len` applies to lines without one.
    Jsonl { path: Option<PathBuf>, output_len: Option<u32> },
    /// Random tokens of recorded lengths: a trace of Azure, `BurstGPT` or Mooncake, or lengths alone.
    Trace { path: Option<PathBuf> },
    /// A `share` of the prompts, from 0 to 1, begins with one of `groups` prefixes.
    Prefix { groups: u32, prefix_len: u32, share: f64, suffix_len: TokenLength, output_len: TokenLength },
    /// Sessions of several turns. All sessions begin with the same `system_len` tokens.
    Conversation {
        turns: TokenLength,
        system_len: u32,
        first_len: TokenLength,
        user_len: TokenLength,
        output_len: TokenLength,
        think: Think,
    },
    /// `count` images of one of the sizes (width and height in pixels), then `input_len` tokens of text.
    Image { sizes: Vec<(u32, u32)>, count: u32, input_len: TokenLength, output_len: TokenLength },
    /// Each session comes from one of the workloads, with a probability in proportion to its weight.
    Mixture { parts: Vec<(f64, WorkloadSpec)> },
}

/// The facts about server and model that a workload is built for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadSurroundings {
    pub seed: u64,
    pub vocab_size: Option<u32>,
    /// Limit of prompt and output of a request together. Longer recorded requests are left out. A generated workload
    /// that may exceed it is an error.
    pub max_model_len: Option<u64>,
    /// The model's directory, or a `tokenizer.json`.
    pub tokenizer: Option<PathBuf>,
    /// Whether the server takes token ids at the requested interface.
    pub takes_tokens: bool,
    /// Whether requests go to `/v1/chat/completions`. Lengths are then those of the messages' texts, and the model's
    /// chat template adds some tokens.
    pub chat: bool,
    /// Whether texts may consist of usual words of about one token each, because the model's tokenizer is not known.
    pub approximate: bool,
}

impl WorkloadSurroundings {
    pub(super) fn read_tokenizer(&self) -> Result<Tokenizer, WorkloadError> {
        Tokenizer::read(self.tokenizer.as_deref().ok_or(WorkloadError::NoTokenizer)?)
    }
}

impl WorkloadSpec {
    /// The names of all kinds.
    pub const KINDS: [&str; 8] = ["random", "sharegpt", "jsonl", "trace", "prefix", "conversation", "image", "mixture"];

    /// Returns a workload of random tokens of fixed lengths.
    #[must_use]
    pub fn random(input_len: u32, output_len: u32) -> Self {
        Self::Random {
            input_len: TokenLength::Exact(input_len),
            output_len: TokenLength::Exact(output_len),
            prefix_len: 0,
        }
    }

    /// Returns the name in study files.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        let place = match self {
            Self::Random { .. } => 0,
            Self::ShareGpt { .. } => 1,
            Self::Jsonl { .. } => 2,
            Self::Trace { .. } => 3,
            Self::Prefix { .. } => 4,
            Self::Conversation { .. } => 5,
            Self::Image { .. } => 6,
            Self::Mixture { .. } => 7,
        };
        Self::KINDS[place]
    }

    /// Returns the workload that a data file is for, by its first line that is not empty. A JSON array is ShareGPT's.
    /// JSON lines are prompts or, with `input_length`, a trace. Any other file is a trace in CSV.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of_file(path: &Path) -> Result<Self, WorkloadError> {
        let mut line = Vec::new();
        let read = File::open(path).and_then(|file| {
            // Enough for the first line of a trace. The file may be a single line of hundreds of megabytes.
            let mut reader = std::io::Read::take(BufReader::new(file), 1 << 20);
            while line.trim_ascii().is_empty() && reader.read_until(b'\n', &mut line)? > 0 {}
            Ok(())
        });
        read.map_err(|error| WorkloadError::Read { file: path.to_owned(), problem: error.to_string() })?;
        let line = line.trim_ascii();
        let found = Some(path.to_owned());
        let is_trace =
            || serde_json::from_slice::<serde_json::Value>(line).is_ok_and(|row| row.get("input_length").is_some());
        Ok(match line.first() {
            Some(b'[') => {
                Self::ShareGpt { path: found, prompts: Self::PROMPTS, output_len: None, pruning: Pruning::default() }
            }
            Some(b'{') if !is_trace() => Self::Jsonl { path: found, output_len: None },
            _ => Self::Trace { path: found },
        })
    }

    /// Default number of conversations to take, as in `vllm bench serve --num-prompts`.
    pub const PROMPTS: u32 = 1000;

    /// Sets the data file if it is missing, in the parts of a mixture too. Returns whether it was missing anywhere.
    pub fn set_dataset(&mut self, file: &Path) -> bool {
        match self {
            Self::ShareGpt { path, .. } | Self::Jsonl { path, .. } | Self::Trace { path } if path.is_none() => {
                *path = Some(file.to_owned());
                true
            }
            Self::Mixture { parts } => {
                let filled = parts.iter_mut().map(|(_, part)| part.set_dataset(file));
                filled.fold(false, |any, filled| any | filled)
            }
            _ => false,
        }
    }

    /// Returns whether no two prompts have a common part by design. A hit of the prefix cache then means that the
    /// server has processed the same prompt before.
    #[must_use]
    pub fn has_unique_prompts(&self) -> bool {
        matches!(self, Self::Random { prefix_len: 0, .. } | Self::Image { .. })
    }

    /// Raises the number of conversations of a `ShareGPT` file to at least `least`, in the parts of a mixture too.
    pub fn set_prompts(&mut self, least: u32) {
        match self {
            Self::ShareGpt { prompts, .. } => *prompts = least.max(*prompts),
            Self::Mixture { parts } => parts.iter_mut().for_each(|(_, part)| part.set_prompts(least)),
            _ => {}
        }
    }

    /// Returns the data files of the workload, in order.
    #[must_use]
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::ShareGpt { path, .. } | Self::Jsonl { path, .. } | Self::Trace { path } => {
                path.as_deref().into_iter().collect()
            }
            Self::Mixture { parts } => parts.iter().flat_map(|(_, part)| part.files()).collect(),
            _ => Vec::new(),
        }
    }

    /// Reads the data and the tokenizer, if there are any, and validates everything.
    ///
    /// # Errors
    /// The error names the key, or the file, line, field and value. See [`WorkloadError`].
    pub fn build(&self, surroundings: &WorkloadSurroundings) -> Result<Arc<dyn Workload>, WorkloadError> {
        let span = |key: &'static str, length: &TokenLength| length.resolve(key, surroundings.max_model_len);
        let file = |path: &'_ Option<PathBuf>| path.clone().ok_or(WorkloadError::NoFile { kind: self.kind() });
        Ok(match self {
            Self::Random { input_len, output_len, prefix_len } => {
                let (suffix, output) = (span("input_len", input_len)?, span("output_len", output_len)?);
                let prefix = if *prefix_len > 0 { format!("prefix_len {prefix_len} + ") } else { String::new() };
                let sum = format!("{prefix}input_len {} + output_len {}", suffix.max, output.max);
                let total = u64::from(*prefix_len) + suffix.longest() + output.longest();
                surroundings.check_fits(total, "input_len", sum)?;
                let (groups, shared_len) = (u32::from(*prefix_len > 0), *prefix_len);
                let writer = TextWriter::new(surroundings)?;
                writer.check(suffix.min + shared_len)?;
                Arc::new(Prefix { writer, groups, shared_len, share: 1.0, suffix, output })
            }
            Self::ShareGpt { path, prompts, output_len, pruning } => {
                Arc::new(sharegpt::read(&file(path)?, *prompts, *output_len, *pruning, surroundings)?)
            }
            Self::Jsonl { path, output_len } => Arc::new(jsonl::read(&file(path)?, *output_len, surroundings)?),
            Self::Trace { path } => {
                let file = file(path)?;
                Arc::new(TraceWorkload::read(&file, TextWriter::new(surroundings)?, surroundings.max_model_len)?)
            }
            Self::Prefix { groups, prefix_len, share, suffix_len, output_len } => {
                let (suffix, output) = (span("suffix_len", suffix_len)?, span("output_len", output_len)?);
                let (groups, prefix_len, share) = (*groups, *prefix_len, *share);
                at_least_one("groups", groups)?;
                at_least_one("prefix_len", prefix_len)?;
                if !(0.0..=1.0).contains(&share) {
                    return Err(invalid("share", format!("{share} is not between 0 and 1")));
                }
                let sum = format!("prefix_len {prefix_len} + suffix_len {} + output_len {}", suffix.max, output.max);
                let total = u64::from(prefix_len) + suffix.longest() + output.longest();
                surroundings.check_fits(total, "prefix_len", sum)?;
                let writer = TextWriter::new(surroundings)?;
                writer.check(suffix.min)?;
                Arc::new(Prefix { writer, groups, shared_len: prefix_len, share, suffix, output })
            }
            Self::Conversation { turns, system_len, first_len, user_len, output_len, think } => {
                let turns = span("turns", turns)?;
                if turns.max > Conversation::MAX_TURNS {
                    let most = Conversation::MAX_TURNS;
                    return Err(invalid("turns", format!("{} is more than {most}", turns.max)));
                }
                let conversation = Conversation {
                    chat: surroundings.chat,
                    turns,
                    system_len: *system_len,
                    first: span("first_len", first_len)?,
                    user: span("user_len", user_len)?,
                    output: span("output_len", output_len)?,
                    think: *think,
                    writer: TextWriter::new(surroundings)?,
                };
                let sum = format!("the last of {} turns with its history", conversation.turns.max);
                surroundings.check_fits(conversation.longest(), "turns", sum)?;
                conversation.writer.check(conversation.first.min.min(conversation.user.min))?;
                Arc::new(conversation)
            }
            Self::Image { sizes, count, input_len, output_len } => {
                if !surroundings.chat {
                    return Err(WorkloadError::Api { what: "images".to_owned(), api: "/v1/completions" });
                }
                at_least_one("count", *count)?;
                check_sizes(sizes)?;
                let (input, output) = (span("input_len", input_len)?, span("output_len", output_len)?);
                let sum = format!("input_len {} + output_len {}", input.max, output.max);
                surroundings.check_fits(input.longest() + output.longest(), "input_len", sum)?;
                let writer = TextWriter::new(surroundings)?;
                writer.check(input.min)?;
                Arc::new(Image { writer, sizes: sizes.clone(), count: *count, input, output })
            }
            Self::Mixture { parts } => {
                let total: f64 = parts.iter().map(|(weight, _)| weight).sum();
                if let Some((weight, _)) = parts.iter().find(|(weight, _)| !(weight.is_finite() && *weight >= 0.0)) {
                    return Err(invalid("weight", format!("{weight} is not a number of at least 0")));
                }
                if total <= 0.0 {
                    return Err(invalid("part", "no part has a weight above 0".to_owned()));
                }
                let build = |(weight, part): &(f64, Self)| Ok((weight / total, part.build(surroundings)?));
                let parts = parts.iter().map(build).collect::<Result<_, WorkloadError>>()?;
                Arc::new(Mixture { seed: surroundings.seed, parts })
            }
        })
    }
}

impl WorkloadSurroundings {
    fn check_fits(&self, longest: u64, key: &'static str, sum: String) -> Result<(), WorkloadError> {
        match self.max_model_len {
            Some(holds) if longest > holds => Err(WorkloadError::TooLong { key, sum, longest, holds }),
            _ => Ok(()),
        }
    }
}

fn invalid(key: &'static str, problem: String) -> WorkloadError {
    WorkloadError::Value { key, problem }
}

fn at_least_one(key: &'static str, number: u32) -> Result<(), WorkloadError> {
    if number == 0 { Err(invalid(key, "must be at least 1".to_owned())) } else { Ok(()) }
}

fn check_sizes(sizes: &[(u32, u32)]) -> Result<(), WorkloadError> {
    if sizes.is_empty() {
        return Err(invalid("sizes", "is empty".to_owned()));
    }
    for (width, height) in sizes {
        let pixels = u64::from(*width) * u64::from(*height);
        if pixels == 0 || pixels > Image::MAX_PIXELS {
            let problem = format!("{width} x {height} is not between 1 and {} pixels", Image::MAX_PIXELS);
            return Err(invalid("sizes", problem));
        }
    }
    Ok(())
}
