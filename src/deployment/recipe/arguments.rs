//! The arguments and environment variables of one configuration, in a recipe's order of precedence.

use std::collections::BTreeMap;

use super::hardware::{ByHardware, HardwareKeys};
use super::{FeatureMode, FlagBlock, Recipe, RecipeFeature, RecipeVariant, StrategySettings};
use crate::engine::RecipeStrategy;

/// Bytes of a unit of memory in recipes.
pub(super) const GB: u64 = 1_000_000_000;

/// The choices that lead to one configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecipeChoice<'r> {
    pub(super) recipe: &'r Recipe,
    pub(super) variant: &'r RecipeVariant,
    pub(super) strategy: &'static RecipeStrategy,
    pub(super) hardware: HardwareKeys,
    /// The devices of the machine, and the bytes of each.
    pub(super) devices: u32,
    pub(super) device_memory: Option<u64>,
}

impl<'r> RecipeChoice<'r> {
    /// Returns the arguments. Of two equal flags the later one counts.
    pub(super) fn arguments(&self) -> Vec<String> {
        let mut words = Vec::new();
        let extend = |words: &mut Vec<String>, blocks: Vec<&FlagBlock>| {
            words.extend(blocks.into_iter().flat_map(|block| block.args.iter().cloned()));
        };
        extend(&mut words, self.general_blocks());
        words.extend(self.strategy.args.iter().map(|word| (*word).to_owned()));
        words.extend([format!("--{}", self.strategy.size_flag), self.size().to_string()]);
        extend(&mut words, self.specific_blocks());
        for feature in self.recipe.features.iter().filter(|feature| self.is_on(feature)) {
            words.extend(self.arguments_of(feature).iter().cloned());
        }
        words
    }

    /// Returns the environment variables.
    pub(super) fn environment(&self) -> BTreeMap<String, String> {
        let blocks = self.general_blocks().into_iter().chain(self.specific_blocks());
        blocks.flat_map(|block| block.env.clone()).collect()
    }

    /// Returns whether the recipe lists this hardware.
    pub(super) fn is_listed(&self) -> bool {
        let has =
            |map: &ByHardware<FlagBlock>| self.hardware.exact(map).is_some() || self.hardware.family(map).is_some();
        has(&self.recipe.overrides)
            || has(&self.variant.overrides)
            || self.settings().is_some_and(|settings| has(&settings.overrides))
            || self.hardware.exact(&self.recipe.support).is_some()
    }

    /// Returns the names of the features that the recipe leaves to the user.
    pub(super) fn features_off(&self) -> Vec<&'r str> {
        let off = self.recipe.features.iter().filter(|feature| self.is_possible(feature) && !self.is_on(feature));
        off.map(|feature| feature.name.as_str()).collect()
    }

    /// Returns the number of devices of the strategy. It can be larger than that of the machine.
    fn size(&self) -> u32 {
        if !self.strategy.may_use_fewer {
            return self.devices;
        }
        let declared = self.hardware.nearest(&self.variant.size);
        let declared = declared.or_else(|| self.hardware.nearest(&self.settings()?.size));
        let fits_on_one = || Some(u64::from(self.variant.min_memory_gb?) * GB <= self.device_memory?);
        match declared {
            Some(size) => *size,
            None if fits_on_one() == Some(true) => 1,
            None => self.devices,
        }
    }

    fn settings(&self) -> Option<&'r StrategySettings> {
        self.recipe.strategy_settings.get(self.strategy.name)
    }

    /// Returns the blocks that the strategy's own flags take precedence over.
    fn general_blocks(&self) -> Vec<&'r FlagBlock> {
        let mut blocks = vec![&self.recipe.base, &self.variant.block];
        blocks.extend(self.hardware.exact(&self.variant.overrides));
        blocks
    }

    /// Returns the blocks that take precedence over the strategy's own flags. A strategy's block for the generation
    /// replaces those of the recipe and of the variant.
    fn specific_blocks(&self) -> Vec<&'r FlagBlock> {
        let settings = self.settings();
        let mut blocks: Vec<_> = settings.map(|settings| &settings.block).into_iter().collect();
        if let Some(instead) = settings.and_then(|settings| self.hardware.family(&settings.overrides)) {
            blocks.push(instead);
        } else {
            blocks.extend(self.hardware.family(&self.recipe.overrides));
            blocks.extend(self.hardware.family(&self.variant.overrides));
        }
        blocks.extend(self.hardware.exact(&self.recipe.overrides));
        blocks.extend(settings.and_then(|settings| self.hardware.exact(&settings.overrides)));
        blocks
    }

    /// Returns whether the hardware and the strategy have a feature.
    fn is_possible(&self, feature: &RecipeFeature) -> bool {
        let is_for_strategy =
            feature.strategies.is_empty() || feature.strategies.iter().any(|name| name == self.strategy.name);
        is_for_strategy && self.hardware.nearest(&feature.support) != Some(&false)
    }

    /// Returns whether a feature is on without a decision of the user.
    fn is_on(&self, feature: &RecipeFeature) -> bool {
        let is_listed = |names: &[String]| names.contains(&feature.name);
        let opt_in = is_listed(&self.recipe.opt_in)
            || self.hardware.nearest(&self.recipe.hardware_opt_in).is_some_and(|names| is_listed(names));
        self.is_possible(feature) && (!opt_in || self.variant.modes.contains_key(&feature.name))
    }

    fn arguments_of(&self, feature: &'r RecipeFeature) -> &'r [String] {
        let Some(mode) = self.mode_of(feature) else {
            return self.hardware.family(&feature.overrides).unwrap_or(&feature.args);
        };
        self.hardware.nearest(&mode.overrides).unwrap_or(&mode.args)
    }

    /// Returns the feature's mode: the first possible one of the variant's, the feature's default, and all others.
    fn mode_of(&self, feature: &'r RecipeFeature) -> Option<&'r FeatureMode> {
        let is_possible = |mode: &&FeatureMode| {
            let has_variant = mode.variants.is_empty() || mode.variants.contains(&self.variant.name);
            has_variant && self.hardware.nearest(&mode.support) != Some(&false)
        };
        let possible: Vec<_> = feature.modes.iter().filter(is_possible).collect();
        let preferred = [self.variant.modes.get(&feature.name), feature.default_mode.as_ref()];
        let named = |name: &String| possible.iter().find(|mode| mode.name == *name);
        preferred.into_iter().flatten().find_map(named).or(possible.first()).copied()
    }
}
