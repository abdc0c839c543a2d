//! The part of a recipe's format that differs between engines: names of keys, strategies and flags.

use crate::config::Value;

/// Facts about the recipes for an engine. A recipe is a file of launch flags that people recommend for a model.
#[derive(Clone, Copy, Debug)]
pub struct RecipeFormat {
    /// The key with the oldest release that serves the model.
    pub min_release_key: &'static str,
    /// The key with the arguments of a strategy, an alternative to `extra_args`.
    pub strategy_args_key: &'static str,
    /// The strategies on one host.
    pub strategies: &'static [RecipeStrategy],
    /// Flags that decide how a model is loaded or how replies are read. All launches of a study share them.
    pub shared_flags: &'static [&'static str],
}

/// A division of the model between the devices of one host.
#[derive(Clone, Copy, Debug)]
pub struct RecipeStrategy {
    pub name: &'static str,
    /// Flags without a value.
    pub args: &'static [&'static str],
    /// The flag with the number of devices, without dashes.
    pub size_flag: &'static str,
    /// Whether a model that fits on one device uses only one, and a recipe may state the number. Other strategies use
    /// all devices.
    pub may_use_fewer: bool,
    pub min_devices: u32,
}

impl RecipeFormat {
    /// Returns the strategy with this name, if it needs only one host.
    #[must_use]
    pub fn strategy(&self, name: &str) -> Option<&'static RecipeStrategy> {
        self.strategies.iter().find(|strategy| strategy.name == name)
    }

    /// Returns whether a flag asks for one device, the engine's default.
    #[must_use]
    pub fn is_one_device(&self, flag: &str, value: &Value) -> bool {
        value.as_i64() == Some(1) && self.strategies.iter().any(|strategy| strategy.size_flag == flag)
    }
}
