//! Exports a trial as a `hardware_overrides` block of a file of vllm-project/recipes.
//!
//! That project looks up the block of a model by the generation of the hardware, and else by its brand. Only the blocks
//! of a variant may have the name of one device as a key.

use std::collections::BTreeMap;

use serde::Serialize;

use super::yaml::write_yaml;
use super::{ExportError, ExportedTrial, Exporter};
use crate::facts::TrialDevices;

pub(super) struct RecipeExporter;

#[derive(Debug, Serialize)]
struct Recipe<'a> {
    hardware_overrides: BTreeMap<&'static str, HardwareOverride<'a>>,
}

#[derive(Debug, Serialize)]
struct HardwareOverride<'a> {
    extra_args: Vec<&'a str>,
    extra_env: BTreeMap<&'a str, &'a str>,
}

impl Exporter for RecipeExporter {
    fn name(&self) -> &'static str {
        "recipe"
    }

    fn summary(&self) -> &'static str {
        "a hardware_overrides block for the model's file in vllm-project/recipes"
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let words = winner.parts()?;
        let number = winner.scored.trial.proposal.number;
        let devices = winner.context.map(|context| &context.device);
        let key = devices.and_then(hardware_key).ok_or_else(|| {
            let name = devices.and_then(|devices| devices.name.as_deref()).unwrap_or("unknown");
            let problem = format!("the format has no key for the device of trial {number}: {name}");
            ExportError::unsuitable(problem, "export a trial on a known device, or use --format vllm-yaml")
        })?;
        let variables = winner.variables();
        let mut comments = winner.description();
        comments.push(format!("model {}", words.model));
        let is_simulated = winner.engine.is_some_and(|engine| !engine.runs_model());
        let verb = if is_simulated { "simulated, not measured:" } else { "measured on" };
        comments.extend(devices.and_then(describe).map(|devices| format!("{verb} {devices}")));
        comments
            .push("All flags of the trial: those that the recipe's base_args set as well may be removed.".to_owned());
        comments.extend(variables.omissions());
        let extra_args = words.flags.iter().chain(words.arguments).map(String::as_str).collect();
        let block = HardwareOverride { extra_args, extra_env: variables.values.into_iter().collect() };
        write_yaml(&comments, &[Recipe { hardware_overrides: [(key, block)].into() }])
    }
}

/// Returns the key of the devices: their generation if the format has it, else their brand.
fn hardware_key(devices: &TrialDevices) -> Option<&'static str> {
    let name = devices.name.as_deref().unwrap_or_default();
    if name.contains(" + ") {
        return None;
    }
    let capability = devices.compute_capability.as_deref().and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    match (capability, name) {
        (Some(9), _) => Some("hopper"),
        (Some(10..=12), _) => Some("blackwell"),
        (Some(_), _) => Some("nvidia"),
        (None, "cpu") => Some("cpu"),
        (None, name) if name.starts_with("NVIDIA") => Some("nvidia"),
        (None, name) if name.starts_with("AMD") => Some("amd"),
        _ => None,
    }
}

/// Returns the number and the name of the devices, as far as they are known.
fn describe(devices: &TrialDevices) -> Option<String> {
    let by_capability = || Some(format!("GPU of compute capability {}", devices.compute_capability.as_deref()?));
    let name = devices.name.clone().or_else(by_capability)?;
    Some(devices.count.map_or_else(|| name.clone(), |count| format!("{count} x {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_the_generation_or_the_brand_of_the_device() {
        for (name, capability, expected) in [
            (Some("NVIDIA H100 80GB HBM3"), Some("9.0"), Some("hopper")),
            (Some("NVIDIA B200"), Some("10.0"), Some("blackwell")),
            (Some("NVIDIA RTX PRO 6000"), Some("12.0"), Some("blackwell")),
            (Some("NVIDIA L4"), Some("8.9"), Some("nvidia")),
            (Some("NVIDIA L4"), None, Some("nvidia")),
            (None, Some("9.0"), Some("hopper")),
            (Some("cpu"), None, Some("cpu")),
            (Some("AMD Instinct MI300X"), None, Some("amd")),
            (Some("NVIDIA L4 + NVIDIA A10"), Some("8.6"), None),
            (Some("another"), None, None),
            (None, None, None),
        ] {
            let [name, compute_capability] = [name, capability].map(|text| text.map(str::to_owned));
            let devices = TrialDevices { name, compute_capability, ..TrialDevices::default() };
            assert_eq!(hardware_key(&devices), expected, "{devices:?}");
        }
    }
}
