//! Compares configurations with the commands of the recipes' own command builder.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::arguments::{GB, RecipeChoice};
use super::hardware::HardwareKeys;
use super::*;
use crate::config::Config;
use crate::engines::vllm::FLAGS;
use crate::facts::{Device, Gpu};

/// The driver's names of GPUs, by profile.
const NAMES: [(&str, &str); 7] = [
    ("h100", "NVIDIA H100 80GB HBM3"),
    ("h200", "NVIDIA H200"),
    ("gb200", "NVIDIA GB200"),
    ("dgx_spark_gb10", "NVIDIA GB10"),
    ("rtx_pro_6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    ("rtx_5090", "NVIDIA GeForce RTX 5090"),
    ("mi300x", "AMD Instinct MI300X"),
];

/// One command of the builder.
#[derive(Deserialize)]
struct BuiltCommand {
    file: String,
    hardware: String,
    gpus: u32,
    /// The memory of all GPUs.
    gb: u64,
    variant: String,
    strategy: String,
    /// The words behind the model.
    argv: Vec<String>,
    env: BTreeMap<String, String>,
}

/// Reads flags, and lists those that the newest release does not have.
fn parse(words: &[String]) -> (Config, Vec<String>) {
    let (config, errors) = FLAGS.for_version(EngineVersion::LATEST).parse_lenient(words);
    (config, errors.iter().map(ToString::to_string).collect())
}

#[test]
fn configurations_equal_the_commands_of_the_recipes_builder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recipes");
    let rows = std::fs::read_to_string(folder.join("commands.json")).unwrap();
    let rows: Vec<BuiltCommand> = serde_json::from_str(&rows).unwrap();
    assert!(rows.len() > 100);
    for row in &rows {
        let recipe = read_recipe(folder.join("models").join(&row.file).to_str().unwrap()).unwrap();
        let name = NAMES.iter().find(|(profile, _)| *profile == row.hardware).unwrap().1;
        let device_memory = Some(row.gb * GB / u64::from(row.gpus));
        let device = Device::Cuda(Gpu { count: Some(row.gpus), memory: device_memory, ..Gpu::default() });
        let hardware = HardwareKeys::of(device, Some(name));
        assert_eq!(hardware.label(), row.hardware);
        let choice = RecipeChoice {
            recipe: &recipe,
            variant: recipe.variants.iter().find(|variant| variant.name == row.variant).unwrap(),
            strategy: recipe.format.strategy(&row.strategy).unwrap(),
            hardware,
            devices: row.gpus,
            device_memory,
        };
        let place = format!("{} {} {} {}", row.file, row.hardware, row.variant, row.strategy);
        assert_eq!(parse(&choice.arguments()), parse(&row.argv), "{place}");
        assert_eq!(choice.environment(), row.env, "{place}");
    }
}
