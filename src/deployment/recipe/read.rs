//! Reads a recipe from its YAML tree.

use std::collections::BTreeMap;

use super::hardware::{ANY, ByHardware};
use super::node::{CUT_OFF, RecipeNode};
use super::{
    FeatureMode, FlagBlock, MinDevices, MinRelease, Recipe, RecipeError, RecipeFeature, RecipeFormat, RecipeVariant,
    StrategySettings,
};
use crate::deployment::yaml::{YamlNode, YamlValue, read_documents};
use crate::engines;
use crate::facts::EngineVersion;

/// The keys of a recipe.
const KEYS: [&str; 17] = [
    "meta",
    "model",
    "dependencies",
    "features",
    "opt_in_features",
    "hardware_opt_in_features",
    "variants",
    "compatible_strategies",
    "default_strategy",
    "strategy_hardware",
    "strategy_min_gpus",
    "strategy_overrides",
    "hardware_overrides",
    "hardware_notes",
    "kv_offload_support",
    "omni",
    GUIDE,
];

/// The last key of every published recipe.
const GUIDE: &str = "guide";

/// The mark of hardware, strategies and modes that do not work together.
const UNSUPPORTED: &str = "unsupported";

/// Precisions that only one brand and generation computes with, unless a variant names others.
const BOUND_PRECISIONS: [&str; 2] = ["nvfp4", "fp4"];

/// Returns the root of a text with one YAML mapping, or the problem with its line.
pub(super) fn root_of(text: &str) -> Result<YamlNode, (Option<usize>, String)> {
    let mut documents = read_documents(text).map_err(|problem| (problem.line, problem.problem))?;
    match (documents.pop(), documents.is_empty()) {
        (Some(root), true) if matches!(root.value, YamlValue::Map(_)) => Ok(root),
        _ => Err((None, "is not a recipe: it is not one YAML mapping".to_owned())),
    }
}

impl Recipe {
    /// Reads the text of a file.
    pub(super) fn from_text(file: &str, text: &str) -> Result<Self, RecipeError> {
        let format = engines::default_engine().recipes();
        let hint = "leave out the recipe: recipes are for engines with known flags";
        let format = format.ok_or_else(|| RecipeError::of_file(file, None, "the engine has no recipes", hint))?;
        let root = root_of(text).map_err(|(line, problem)| RecipeError::of_file(file, line, problem, CUT_OFF))?;
        Self::read(file, &root, format)
    }

    fn read(file: &str, root: &YamlNode, format: &'static RecipeFormat) -> Result<Self, RecipeError> {
        let root = RecipeNode::root(file, root);
        if !root.names().any(|name| name == "model") {
            let hint = "give a recipe: a YAML file with `model.model_id`, `variants` and `compatible_strategies`";
            return Err(root.error("is not a recipe: it has no key `model`", hint));
        }
        let model = root.required("model")?;
        let variants = root.required("variants")?;
        let read_variant = |(name, node): (String, RecipeNode<'_>)| RecipeVariant::read(name, &node, format);
        Ok(Self {
            file: file.to_owned(),
            model_id: model.required("model_id")?.text()?,
            format,
            min_release: MinRelease::read(&model, format)?,
            base: FlagBlock { args: words_of(&model, "base_args")?, env: model.map_of("base_env", RecipeNode::text)? },
            features: read_features(&root)?,
            opt_in: root.texts_of("opt_in_features")?,
            hardware_opt_in: root.map_of("hardware_opt_in_features", RecipeNode::texts)?,
            variants: variants.entries()?.into_iter().map(read_variant).collect::<Result<_, _>>()?,
            strategies: root.required("compatible_strategies")?.texts()?,
            default_strategy: root.text_of("default_strategy")?,
            strategy_settings: root.map_of("strategy_overrides", |node| StrategySettings::read(node, format))?,
            strategy_support: root.map_of("strategy_hardware", read_support)?,
            min_devices: read_min_devices(&root)?,
            overrides: read_blocks(&root, format)?,
            support: match root.get("meta")? {
                Some(meta) => meta.map_of("hardware", is_supported)?,
                None => BTreeMap::new(),
            },
            needs_other_server: root.get("omni")?.is_some(),
            notes: notes_on(&root),
        })
    }
}

/// Returns remarks on keys that are missing or unknown.
fn notes_on(root: &RecipeNode<'_>) -> Vec<String> {
    let unknown = root.names().filter(|name| !KEYS.contains(name));
    let mut notes: Vec<_> =
        unknown.map(|name| format!("the recipe's key `{name}` is not known and not used")).collect();
    if !root.names().any(|name| name == GUIDE) {
        notes.push(format!("the recipe has no `{GUIDE}`, its usual last key: the file may be cut off"));
    }
    notes
}

/// Reads arguments. Words that contain a flag and its value are divided.
fn words_of(node: &RecipeNode<'_>, key: &str) -> Result<Vec<String>, RecipeError> {
    let divide = |word: String| match word.split_once(' ') {
        Some((flag, value)) if word.starts_with("--") => vec![flag.to_owned(), value.trim_start().to_owned()],
        _ => vec![word],
    };
    Ok(node.texts_of(key)?.into_iter().flat_map(divide).collect())
}

fn is_supported(node: &RecipeNode<'_>) -> Result<bool, RecipeError> {
    Ok(node.text()? != UNSUPPORTED)
}

fn read_support(node: &RecipeNode<'_>) -> Result<ByHardware<bool>, RecipeError> {
    node.entries()?.into_iter().map(|(name, node)| Ok((name, is_supported(&node)?))).collect()
}

fn read_blocks(node: &RecipeNode<'_>, format: &RecipeFormat) -> Result<ByHardware<FlagBlock>, RecipeError> {
    node.map_of("hardware_overrides", |node| FlagBlock::read(node, format))
}

/// Reads a number of devices: one for all hardware, or a mapping by hardware.
fn read_size(node: &RecipeNode<'_>) -> Result<ByHardware<u32>, RecipeError> {
    match node.get("tp")? {
        None => Ok(BTreeMap::new()),
        Some(sizes) if sizes.is_map() => node.map_of("tp", RecipeNode::number),
        Some(size) => Ok([(ANY.to_owned(), size.number()?)].into()),
    }
}

impl FlagBlock {
    fn read(node: &RecipeNode<'_>, format: &RecipeFormat) -> Result<Self, RecipeError> {
        let mut args = words_of(node, "extra_args")?;
        args.extend(words_of(node, format.strategy_args_key)?);
        let mut env = node.map_of("env", RecipeNode::text)?;
        env.extend(node.map_of("extra_env", RecipeNode::text)?);
        Ok(Self { args, env })
    }
}

impl MinRelease {
    fn read(node: &RecipeNode<'_>, format: &RecipeFormat) -> Result<Option<Self>, RecipeError> {
        let Some(node) = node.get(format.min_release_key)? else { return Ok(None) };
        let text = node.text()?;
        let version = match text.parse() {
            Ok(version) => version,
            Err(_) if text == "nightly" => EngineVersion::LATEST,
            Err(problem) => return Err(node.error(problem.to_string(), "write a release, or `nightly`")),
        };
        Ok(Some(Self { text, version }))
    }
}

impl RecipeVariant {
    fn read(name: String, node: &RecipeNode<'_>, format: &RecipeFormat) -> Result<Self, RecipeError> {
        let precision = node.text_of("precision")?;
        let is_bound = precision.as_deref().is_some_and(|precision| BOUND_PRECISIONS.contains(&precision));
        let (brand, generation) = match node.get("precision_hardware")? {
            Some(bound) => (bound.text_of("brand")?, bound.text_of("generation")?),
            None if is_bound => (Some("nvidia".to_owned()), Some("blackwell".to_owned())),
            None => (None, None),
        };
        Ok(Self {
            name,
            model_id: node.text_of("model_id")?,
            precision_brand: brand,
            precision_generation: generation,
            profiles: node.texts_of("supported_hardware")?,
            min_memory_gb: node.get("vram_minimum_gb")?.map(|node| node.number()).transpose()?,
            min_release: MinRelease::read(node, format)?,
            block: FlagBlock::read(node, format)?,
            overrides: read_blocks(node, format)?,
            size: read_size(node)?,
            modes: node.map_of("default_modes", RecipeNode::text)?,
        })
    }
}

impl StrategySettings {
    fn read(node: &RecipeNode<'_>, format: &RecipeFormat) -> Result<Self, RecipeError> {
        Ok(Self {
            block: FlagBlock::read(node, format)?,
            size: read_size(node)?,
            overrides: read_blocks(node, format)?,
        })
    }
}

fn read_features(root: &RecipeNode<'_>) -> Result<Vec<RecipeFeature>, RecipeError> {
    let Some(features) = root.get("features")? else { return Ok(Vec::new()) };
    let read = |(name, node): (String, RecipeNode<'_>)| {
        let modes = match node.get("modes")? {
            Some(modes) => modes.entries()?.into_iter().map(FeatureMode::read).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        Ok(RecipeFeature {
            name,
            args: words_of(&node, "args")?,
            overrides: node.map_of("hardware_overrides", |node| words_of(node, "args"))?,
            modes,
            support: node.map_of("hardware", is_supported)?,
            default_mode: node.text_of("default_mode")?,
            strategies: node.texts_of("strategies")?,
        })
    };
    features.entries()?.into_iter().map(read).collect()
}

impl FeatureMode {
    fn read((name, node): (String, RecipeNode<'_>)) -> Result<Self, RecipeError> {
        Ok(Self {
            name,
            args: words_of(&node, "args")?,
            overrides: node.map_of("hardware_overrides", |node| words_of(node, "args"))?,
            support: node.map_of("hardware", is_supported)?,
            variants: node.texts_of("variants")?,
        })
    }
}

/// Reads the smallest numbers of devices: one for all, or by strategy, by profile, or by both.
fn read_min_devices(root: &RecipeNode<'_>) -> Result<Vec<MinDevices>, RecipeError> {
    let Some(node) = root.get("strategy_min_gpus")? else { return Ok(Vec::new()) };
    if !node.is_map() {
        return Ok(vec![MinDevices { key: None, strategy: None, count: node.number()? }]);
    }
    let mut found = Vec::new();
    for (key, node) in node.entries()? {
        if !node.is_map() {
            found.push(MinDevices { key: Some(key), strategy: None, count: node.number()? });
            continue;
        }
        for (strategy, node) in node.entries()? {
            found.push(MinDevices { key: Some(key.clone()), strategy: Some(strategy), count: node.number()? });
        }
    }
    Ok(found)
}
