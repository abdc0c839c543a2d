//! First points of a study: the configurations that a recipe recommends for a machine.

use std::collections::BTreeSet;

use super::arguments::{GB, RecipeChoice};
use super::hardware::HardwareKeys;
use super::model_name::is_same_checkpoint;
use super::{Recipe, RecipeError, RecipeVariant};
use crate::config::Config;
use crate::engine::{LAUNCH_FLAGS, RecipeStrategy, is_connection_flag};
use crate::engines;
use crate::facts::{Device, EngineVersion};
use crate::flag::{FlagError, FlagTable};
use crate::trial::{is_secret, redact};

/// The study and the machine that the points are for.
#[derive(Clone, Copy, Debug)]
pub struct RecipeTarget<'a> {
    /// The study's model: a name of the hub, or a directory.
    pub model: &'a str,
    /// The installed release.
    pub version: EngineVersion,
    pub device: Device,
    /// The driver's name of the first GPU.
    pub gpu_name: Option<&'a str>,
    /// The flags that the study sets for every launch: its fixed flags and its arguments.
    pub study: &'a Config,
}

/// A configuration that a recipe recommends.
#[derive(Clone, Debug, PartialEq)]
pub struct RecipePoint {
    /// The recipe with its file, strategy and hardware, for people.
    pub source: String,
    pub flags: Config,
}

/// The configurations that a recipe recommends, the preferred one first. There may be none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecipePoints {
    pub points: Vec<RecipePoint>,
    /// Remarks for the user, one line each: parts of the recipe that are left out, and the reason if there is no point.
    pub notes: Vec<String>,
}

/// The parts of a recipe that concern the whole study and not one configuration.
#[derive(Debug, Default)]
struct StudyWideParts {
    flags: Config,
    variables: BTreeSet<String>,
}

impl RecipePoints {
    /// Adds a remark, unless it is there.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

impl Recipe {
    /// Returns the configurations that the recipe recommends for a machine: one for each strategy on one host. They
    /// consist of the base flags, those of the variant, the strategy and the hardware, and the features that are on by
    /// default. Flags that the release does not have are left out with a remark, and so are flags and environment
    /// variables that concern all launches of a study.
    ///
    /// # Errors
    /// If the recipe is for another model.
    pub fn first_points(&self, target: &RecipeTarget<'_>, table: FlagTable) -> Result<RecipePoints, RecipeError> {
        let mut found = RecipePoints { points: Vec::new(), notes: self.notes.clone() };
        let variants = self.variants_of(target.model, &mut found)?;
        let hardware = HardwareKeys::of(target.device, target.gpu_name);
        let gpu = target.device.gpu();
        let devices = gpu.and_then(|gpu| gpu.count).unwrap_or(1);
        let device_memory = gpu.and_then(|gpu| gpu.first(u64::MAX).memory);
        let memory = device_memory.map(|memory| memory * u64::from(devices));
        let chosen = self.find_obstacle(hardware).map_or_else(|| choose_variant(&variants, hardware, memory), Err);
        let variant = match chosen {
            Ok(variant) => variant,
            Err(reason) => {
                found.note(format!("{reason}: it gives no first point"));
                return Ok(found);
            }
        };
        self.note_release(variant, target.version, &mut found);
        let strategies = self.strategies_for(hardware, devices);
        if strategies.is_empty() {
            found.note(format!(
                "the recipe has no strategy for {devices} x {} on one host (it lists {}): it gives no first point",
                hardware.label(),
                self.strategies.join(", ")
            ));
        }
        let mut parts = StudyWideParts::default();
        for strategy in strategies {
            let choice = RecipeChoice { recipe: self, variant, strategy, hardware, devices, device_memory };
            found.add(&choice, target, table, &mut parts);
        }
        found.note_parts(parts, table);
        Ok(found)
    }

    /// Returns the variants that serve the study's model, that with the name `default` first. A recipe may name a model
    /// and serve other checkpoints in place of it.
    fn variants_of(&self, model: &str, found: &mut RecipePoints) -> Result<Vec<&RecipeVariant>, RecipeError> {
        let checkpoint = |variant: &RecipeVariant| variant.model_id.as_ref().unwrap_or(&self.model_id).clone();
        let (mut first, others): (Vec<_>, Vec<_>) = (self.variants.iter())
            .filter(|variant| is_same_checkpoint(model, &checkpoint(variant)))
            .partition(|variant| variant.name == "default");
        first.extend(others);
        if !first.is_empty() {
            return Ok(first);
        }
        if is_same_checkpoint(model, &self.model_id)
            && let Some(default) = self.variants.iter().find(|variant| variant.name == "default")
        {
            found.note(format!("the recipe serves {} in place of {}", checkpoint(default), self.model_id));
            return Ok(vec![default]);
        }
        let mut checkpoints: Vec<_> = self.variants.iter().map(checkpoint).collect();
        checkpoints.dedup();
        Err(RecipeError {
            file: self.file.clone(),
            line: None,
            key: "model.model_id".to_owned(),
            problem: format!("the recipe is for {}, and the study's model is {}", self.model_id, redact(model)),
            hint: format!("give the recipe of this model, or tune one of {}", checkpoints.join(", ")),
        })
    }

    /// Returns the reason for which no variant can be launched here.
    fn find_obstacle(&self, hardware: HardwareKeys) -> Option<String> {
        if self.needs_other_server {
            return Some("the recipe's key `omni` asks for another server than the engine's own".to_owned());
        }
        let is_refused = hardware.nearest(&self.support) == Some(&false);
        is_refused.then(|| format!("the recipe marks {} as unsupported", hardware.label()))
    }

    fn note_release(&self, variant: &RecipeVariant, installed: EngineVersion, found: &mut RecipePoints) {
        let Some(oldest) = variant.min_release.as_ref().or(self.min_release.as_ref()) else { return };
        if installed < oldest.version {
            let text = &oldest.text;
            found.note(format!("the recipe is for release {text} or later, and the study's release is {installed}"));
        }
    }

    /// Returns the strategies for one host with this hardware, the recommended one first.
    fn strategies_for(&self, hardware: HardwareKeys, devices: u32) -> Vec<&'static RecipeStrategy> {
        let is_offered = |name: &str| {
            let support = self.strategy_support.get(name).and_then(|support| hardware.nearest(support));
            support.copied().unwrap_or_else(|| self.strategies.iter().any(|listed| listed == name))
        };
        let min_devices = |name: &str| {
            let applies = |key: &str| key == name || hardware.has_profile(key);
            let floors = self.min_devices.iter().filter(|floor| floor.key.as_deref().is_none_or(applies));
            let floors = floors.filter(|floor| floor.strategy.as_deref().is_none_or(|strategy| strategy == name));
            floors.map(|floor| floor.count).max().unwrap_or(0)
        };
        let mut strategies: Vec<_> = (self.format.strategies.iter())
            .filter(|strategy| {
                is_offered(strategy.name) && devices >= strategy.min_devices.max(min_devices(strategy.name))
            })
            .collect();
        strategies.sort_by_key(|strategy| self.default_strategy.as_deref() != Some(strategy.name));
        strategies
    }
}

/// Returns the first variant that the hardware can run, else that with the highest demand that fits, or the reason why
/// there is none. `memory` are the bytes of all devices together.
fn choose_variant<'r>(
    variants: &[&'r RecipeVariant],
    hardware: HardwareKeys,
    memory: Option<u64>,
) -> Result<&'r RecipeVariant, String> {
    let computes = |variant: &RecipeVariant| {
        let is_listed = variant.profiles.is_empty() || variant.profiles.iter().any(|key| hardware.has_profile(key));
        is_listed && hardware.is_of(variant.precision_brand.as_deref(), variant.precision_generation.as_deref())
    };
    let demand = |variant: &RecipeVariant| u64::from(variant.min_memory_gb.unwrap_or(0)) * GB;
    let fits = |variant: &RecipeVariant| memory.is_none_or(|memory| demand(variant) <= memory);
    let mut possible = variants.iter().copied().filter(|variant| computes(variant));
    let Some(first) = possible.next() else {
        let names: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
        let label = hardware.label();
        return Err(format!("the recipe's variant {} is not for the hardware {label}", names.join(", ")));
    };
    if fits(first) {
        return Ok(first);
    }
    possible.filter(|variant| fits(variant)).max_by_key(|variant| demand(variant)).ok_or_else(|| {
        let (needed, present) = (demand(first) / GB, memory.unwrap_or(0) / GB);
        format!("the recipe asks for {needed} GB of device memory, and {present} GB are here")
    })
}

impl RecipePoints {
    /// Adds the configuration of one choice, and remarks on the flags that it leaves out.
    fn add(
        &mut self,
        choice: &RecipeChoice<'_>,
        target: &RecipeTarget<'_>,
        table: FlagTable,
        parts: &mut StudyWideParts,
    ) {
        let (all, errors) = table.parse_lenient(&choice.arguments());
        for error in errors {
            self.note(describe_error(&error, table));
        }
        let mut flags = Config::new();
        for (name, value) in all.iter() {
            match target.study.get(name) {
                Some(own) if own != value => {
                    self.note(format!("`{name}` is left out: it is {value} in the recipe, and {own} in the study"));
                }
                _ if choice.recipe.format.is_one_device(name, value) => {}
                _ if choice.recipe.format.shared_flags.contains(&name) => parts.flags.set(name, value.clone()),
                _ => match own_reason(name) {
                    Some(reason) => self.note(format!("`{name}` is left out: {reason}")),
                    None => flags.set(name, value.clone()),
                },
            }
        }
        parts.flags = parts.flags.without(target.study);
        let engine = engines::default_engine();
        let needed = engine.rules().map_or(1, |rules| rules.devices_needed(&flags));
        let name = choice.strategy.name;
        if needed > u64::from(choice.devices) {
            self.note(format!("{name} is left out: it computes on {needed} devices, and {} are here", choice.devices));
            return;
        }
        parts.variables.extend(choice.environment().iter().map(|(name, value)| describe_variable(name, value)));
        if !choice.is_listed() {
            let hardware = target.gpu_name.unwrap_or(choice.hardware.label());
            self.note(format!("the recipe does not list {hardware}: the flags for all hardware are used"));
        }
        let off = choice.features_off();
        if !off.is_empty() {
            self.note(format!("features that the recipe leaves off are not used: {}", off.join(", ")));
        }
        if flags.is_empty() {
            self.note(format!(
                "{name} gives no first point: its flags are the engine's defaults, which are measured anyway"
            ));
        } else if self.points.iter().all(|known| known.flags != flags) {
            self.points.push(RecipePoint { source: source_of(choice), flags });
        }
    }

    /// Adds remarks on the parts that concern the whole study.
    fn note_parts(&mut self, parts: StudyWideParts, table: FlagTable) {
        // All values were read by the same table.
        let words = table.render(&parts.flags).unwrap_or_default();
        if !words.is_empty() {
            self.note(format!(
                "the recipe sets flags that all launches of a study share; if you need them, add to engine.args: {words:?}"
            ));
        }
        if !parts.variables.is_empty() {
            let variables: Vec<_> = parts.variables.into_iter().collect();
            self.note(format!("the recipe sets {}: add it to [engine.env]", variables.join(", ")));
        }
    }
}

/// Returns the reason for which a flag belongs to no configuration.
fn own_reason(name: &str) -> Option<&'static str> {
    if LAUNCH_FLAGS.contains(&name) {
        return Some("setpoint chooses it for every launch");
    }
    if is_connection_flag(name) {
        return Some("setpoint connects to all launches in the same way");
    }
    is_secret(name).then_some("its value may be a secret")
}

fn describe_error(error: &FlagError, table: FlagTable) -> String {
    match error {
        FlagError::Unknown { name, hint } => {
            let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            format!("`{name}` is left out: release {} does not have it{hint}", table.release())
        }
        other => format!("a flag is left out: {other}"),
    }
}

/// Returns a variable with its value. A value that may be a secret is not shown.
fn describe_variable(name: &str, value: &str) -> String {
    if is_secret(name) { format!("{name} (a secret)") } else { format!("{name}={}", redact(value)) }
}

fn source_of(choice: &RecipeChoice<'_>) -> String {
    let recipe = choice.recipe;
    let variant = match choice.variant.name.as_str() {
        "default" => String::new(),
        name => format!(", variant {name}"),
    };
    let (strategy, hardware) = (choice.strategy.name, choice.hardware.label());
    format!("recipe {} ({}), {strategy}{variant}, hardware {hardware}", recipe.model_id, recipe.file)
}
