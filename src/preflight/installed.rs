//! The properties of the installed engine, as the helper reports them.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// The installed engine, as it describes itself.
#[derive(Clone, Debug, PartialEq)]
pub struct InstalledEngine {
    pub version: String,
    /// `cpu`, `cuda` and so on, as `vllm.platforms.current_platform` names it in vLLM.
    pub device: String,
    /// `None` if the engine describes its flags in another way, which [`Engine::read_release`] reads.
    ///
    /// [`Engine::read_release`]: crate::engine::Engine::read_release
    pub flags: Option<Vec<InstalledFlag>>,
    /// The optional packages that the engine's Python lacks. Some flags need them.
    pub missing_packages: BTreeSet<String>,
    /// The verdict on the arguments of the warm-up.
    pub warm_up: PreflightVerdict,
}

/// One flag of the installed engine's parser.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct InstalledFlag {
    /// Every spelling, with its leading dashes: `--max-num-seqs`, `--no-enable-prefix-caching`, `-tp`.
    pub names: Vec<String>,
    /// The name of the function that reads the value, for instance `int`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The name of the argparse action, for instance `_StoreAction`.
    pub action: String,
    pub choices: Option<Vec<String>>,
    /// The default, if it is a plain value.
    pub default: Option<Json>,
}

/// The engine's verdict on one command line.
#[derive(Clone, Debug, PartialEq)]
pub enum PreflightVerdict {
    Accept {
        /// The values that it would work with, for instance `max_num_batched_tokens`.
        resolved: Map<String, Json>,
        warnings: Vec<String>,
    },
    Reject {
        stage: RefusalStage,
        /// The engine's message, unchanged.
        message: String,
    },
}

/// The part of the engine that refuses a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalStage {
    /// The argument parser.
    Arguments,
    /// The configuration classes.
    Configuration,
}

impl RefusalStage {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Configuration => "configuration",
        }
    }
}

impl PreflightVerdict {
    /// Returns the stage and the message if the engine refuses.
    #[must_use]
    pub fn rejection(&self) -> Option<(RefusalStage, &str)> {
        match self {
            Self::Accept { .. } => None,
            Self::Reject { stage, message } => Some((*stage, message)),
        }
    }
}

impl InstalledEngine {
    /// Returns the flag with this name. Underscores count as dashes. The leading dashes may be missing.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&InstalledFlag> {
        let name = format!("--{}", name.trim_start_matches('-').replace('_', "-"));
        self.flags.iter().flatten().find(|flag| flag.names.contains(&name))
    }
}
