//! What the helper says of the installed engine.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// The installed engine, in its own words.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    pub version: String,
    /// `cpu`, `cuda` and so on, as `vllm.platforms.current_platform` names it.
    pub device: String,
    pub flags: Vec<InstalledFlag>,
    /// Of the packages that some flags need, those that its Python lacks.
    pub absent: BTreeSet<String>,
    /// What it says of the arguments that it was warmed up with.
    pub warm_up: Verdict,
}

/// One flag as the installed engine's parser has it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct InstalledFlag {
    /// Every spelling, with its dashes: `--max-num-seqs`, `--no-enable-prefix-caching`, `-tp`.
    pub names: Vec<String>,
    /// Name of the function that reads the value, for instance `int`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Name of the argparse action, for instance `_StoreAction`.
    pub action: String,
    pub choices: Option<Vec<String>>,
    /// Where it is a plain value.
    pub default: Option<Json>,
}

/// What the engine says of one command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Accept {
        /// The values that it would work with, for instance `max_num_batched_tokens`.
        resolved: Map<String, Json>,
        warnings: Vec<String>,
    },
    Reject {
        stage: Stage,
        /// The engine's own words.
        message: String,
    },
}

/// Who refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The argument parser.
    Arguments,
    /// The configuration classes.
    Configuration,
}

impl Stage {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Configuration => "configuration",
        }
    }
}

impl Verdict {
    /// Stage and message, where the engine refuses.
    #[must_use]
    pub fn rejection(&self) -> Option<(Stage, &str)> {
        match self {
            Self::Accept { .. } => None,
            Self::Reject { stage, message } => Some((*stage, message)),
        }
    }
}

impl Installed {
    /// The flag of this name, which may be written with underscores and without dashes.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&InstalledFlag> {
        let name = format!("--{}", name.trim_start_matches('-').replace('_', "-"));
        self.flags.iter().find(|flag| flag.names.contains(&name))
    }
}
