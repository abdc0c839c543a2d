//! Recipes: launch flags that people recommend for a model, by variant, hardware and strategy.
//!
//! They are opinions and not measurements. Only structured fields count; the launch lines in a recipe's guide are not
//! read. Keys, strategies and flags that differ between engines are in [`RecipeFormat`].

mod arguments;
#[cfg(test)]
mod builder_tests;
#[cfg(test)]
mod folder_tests;
mod hardware;
mod model_name;
mod node;
mod points;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use hardware::ByHardware;
pub use points::{RecipePoint, RecipePoints, RecipeTarget};
use read::root_of;

use super::opened::read_file;
use crate::engine::RecipeFormat;
use crate::facts::EngineVersion;

/// An error in a recipe: the place, the problem and the next step. It contains no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RecipeError {
    /// The path of the file.
    pub file: String,
    pub line: Option<usize>,
    /// The dotted path of the key. Empty if the error concerns the whole file.
    pub key: String,
    pub problem: String,
    pub hint: String,
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl RecipeError {
    /// Creates an error that concerns no single key.
    fn of_file(file: &str, line: Option<usize>, problem: impl Into<String>, hint: &str) -> Self {
        Self { file: file.to_owned(), line, key: String::new(), problem: problem.into(), hint: hint.to_owned() }
    }
}

/// A recipe: the flags for one model and its variants.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The path of the file.
    pub file: String,
    /// The model's name in the hub.
    pub model_id: String,
    format: &'static RecipeFormat,
    min_release: Option<MinRelease>,
    base: FlagBlock,
    features: Vec<RecipeFeature>,
    /// The features that are off, and those that are off on some hardware.
    opt_in: Vec<String>,
    hardware_opt_in: ByHardware<Vec<String>>,
    variants: Vec<RecipeVariant>,
    strategies: Vec<String>,
    default_strategy: Option<String>,
    strategy_settings: BTreeMap<String, StrategySettings>,
    /// Whether a strategy is supported, by strategy and hardware.
    strategy_support: BTreeMap<String, ByHardware<bool>>,
    min_devices: Vec<MinDevices>,
    overrides: ByHardware<FlagBlock>,
    /// Whether the model is supported.
    support: ByHardware<bool>,
    /// Whether the model needs a server beside the engine's own one.
    needs_other_server: bool,
    /// Remarks on the file.
    notes: Vec<String>,
}

/// The oldest release that serves a model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MinRelease {
    text: String,
    /// [`EngineVersion::LATEST`] for a build that was not released yet.
    version: EngineVersion,
}

/// Flags and environment variables of one part of a recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FlagBlock {
    args: Vec<String>,
    env: BTreeMap<String, String>,
}

/// An option of a model, such as speculative decoding.
#[derive(Clone, Debug)]
struct RecipeFeature {
    name: String,
    args: Vec<String>,
    overrides: ByHardware<Vec<String>>,
    /// Alternatives; one of them is used. Then `args` is empty.
    modes: Vec<FeatureMode>,
    support: ByHardware<bool>,
    default_mode: Option<String>,
    /// The strategies that the feature is for. Empty if it is for all.
    strategies: Vec<String>,
}

/// One of a feature's alternatives.
#[derive(Clone, Debug)]
struct FeatureMode {
    name: String,
    args: Vec<String>,
    overrides: ByHardware<Vec<String>>,
    support: ByHardware<bool>,
    /// The variants that have the mode. Empty if all have it.
    variants: Vec<String>,
}

/// A checkpoint of the model, or other flags for the same checkpoint.
#[derive(Clone, Debug)]
struct RecipeVariant {
    name: String,
    /// The checkpoint. `None` for that of the recipe.
    model_id: Option<String>,
    /// The only brand and generation that compute with the precision of its weights.
    precision_brand: Option<String>,
    precision_generation: Option<String>,
    /// The only profiles that the variant is for. Empty if it is for all.
    profiles: Vec<String>,
    /// Memory of all devices together, in units of 10^9 bytes.
    min_memory_gb: Option<u32>,
    min_release: Option<MinRelease>,
    block: FlagBlock,
    overrides: ByHardware<FlagBlock>,
    /// The number of devices for a strategy that may use fewer than all.
    size: ByHardware<u32>,
    /// The modes of features that the variant turns on, by feature.
    modes: BTreeMap<String, String>,
}

/// A recipe's changes to a strategy.
#[derive(Clone, Debug, Default)]
struct StrategySettings {
    block: FlagBlock,
    size: ByHardware<u32>,
    overrides: ByHardware<FlagBlock>,
}

/// The smallest number of devices of a strategy or a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MinDevices {
    /// A strategy or a profile. `None` for all.
    key: Option<String>,
    /// The strategy, if `key` is a profile.
    strategy: Option<String>,
    count: u32,
}

/// Reads a recipe. The format is that of the engine that is assumed if none is named.
///
/// # Errors
/// If the file cannot be read, is not a recipe, or is cut off. The error names the key.
pub fn read_recipe(path: &str) -> Result<Recipe, RecipeError> {
    let hint = "give the path of a recipe: a YAML file with `model.model_id` and `variants`";
    let text = read_file(path).map_err(|problem| RecipeError::of_file(path, problem.line, problem.problem, hint))?;
    Recipe::from_text(path, &text)
}

/// Returns the model of a text that is a recipe.
pub(crate) fn recipe_model(text: &str) -> Option<String> {
    root_of(text).ok()?.get("model")?.text_of("model_id").map(str::to_owned)
}
