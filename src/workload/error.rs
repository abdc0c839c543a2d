//! Errors of building a workload.

use std::path::PathBuf;

/// The problem, with the name, the limit and the actual value. [`hint`](Self::hint) returns the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// A value of the specification is out of its range.
    #[error("{key}: {problem}")]
    Value { key: &'static str, problem: String },
    #[error("{sum} = {longest} tokens; the limit of the model is {holds}")]
    TooLong { key: &'static str, sum: String, longest: u64, holds: u64 },
    #[error("the size of the vocabulary is not in the model's config.json; give it here")]
    NoVocabulary,
    #[error("the model's tokenizer is not known")]
    NoTokenizer,
    #[error("the tokenizer {path} cannot be read: {problem}")]
    Tokenizer { path: PathBuf, problem: String },
    /// No text of the tokenizer's words has exactly the requested number of tokens.
    #[error("no text of exactly {asked} tokens was found; the nearest has {got}")]
    Inexact { asked: u64, got: u64 },
    #[error("a {kind} workload needs a file with its requests")]
    NoFile { kind: &'static str },
    #[error("{file} cannot be read: {problem}")]
    Read { file: PathBuf, problem: String },
    /// One line of a data file. Lines count from 1.
    #[error("{file}:{line}: {problem}")]
    Row { file: PathBuf, line: u64, problem: String },
    #[error("{file} contains no usable request{}", left_out_text(.left_out))]
    Empty { file: PathBuf, left_out: Vec<LeftOut> },
    /// The requested interface does not take such prompts.
    #[error("{what} cannot be sent to {api}")]
    Api { what: String, api: &'static str },
}

/// The number of rows of a file that are left out for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The reason as a fragment: `longer than the limit of the model`.
    pub reason: String,
    pub rows: u64,
}

fn left_out_text(left_out: &[LeftOut]) -> String {
    let texts: Vec<_> = left_out.iter().map(|left_out| format!("; {} {}", left_out.rows, left_out.reason)).collect();
    texts.concat()
}

impl WorkloadError {
    /// Returns the key of the specification that caused the error.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::Value { key, .. } | Self::TooLong { key, .. } => key,
            Self::NoVocabulary => "vocab_size",
            Self::NoTokenizer | Self::Tokenizer { .. } | Self::Inexact { .. } | Self::Api { .. } => "kind",
            Self::NoFile { .. } | Self::Read { .. } | Self::Row { .. } | Self::Empty { .. } => "path",
        }
    }

    /// Returns the problem without its key.
    #[must_use]
    pub fn problem(&self) -> String {
        if let Self::Value { problem, .. } = self { problem.clone() } else { self.to_string() }
    }

    /// Returns the remedy.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self {
            Self::TooLong { .. } => "use shorter requests",
            Self::NoTokenizer => "give a directory that holds the model's tokenizer.json, or send token ids",
            Self::Tokenizer { .. } => "give the tokenizer.json of the model that is served",
            Self::Inexact { .. } => "use longer prompts, or send token ids",
            Self::NoFile { .. } => "give its path, as `path` or with --dataset",
            Self::Api { .. } => "choose the other interface (`api`), or another workload",
            Self::Empty { .. } => "give a file with requests within the limit of the model",
            Self::Value { .. } | Self::NoVocabulary | Self::Read { .. } | Self::Row { .. } => return None,
        })
    }
}
