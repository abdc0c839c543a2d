//! Argument lists drawn at random: every flag of the release that needs no file, network or credential.

use std::collections::BTreeMap;
use std::path::Path;

use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use serde_json::Value as Json;
use setpoint::engines::vllm::FLAGS;
use setpoint::facts::{EngineVersion, ModelShape};
use setpoint::flag::{BoolStyle, Flag, FlagKind, FlagTable};

use crate::support::root;

/// `tests/fixtures/agreement.json`: models, and values of each flag, most of them valid.
#[derive(Deserialize)]
pub(super) struct Pool {
    models: BTreeMap<String, Json>,
    values: BTreeMap<String, Vec<Vec<String>>>,
}

pub(super) struct List {
    pub(super) model: String,
    pub(super) arguments: Vec<String>,
}

/// Flags that are drawn more often: they have the largest effects, and other flags depend on them.
const COMMON: [&str; 15] = [
    "async-scheduling",
    "block-size",
    "data-parallel-size",
    "dtype",
    "enable-chunked-prefill",
    "enable-expert-parallel",
    "enable-prefix-caching",
    "enforce-eager",
    "gpu-memory-utilization",
    "kv-cache-dtype",
    "max-model-len",
    "max-num-batched-tokens",
    "max-num-seqs",
    "pipeline-parallel-size",
    "tensor-parallel-size",
];

/// Switches that start another program (`headless`, `grpc`) or need one that is not installed.
const LEFT_OUT: [&str; 2] = ["grpc", "headless"];

/// Values that are wrong for most flags.
const WRONG: [&str; 9] = ["0", "-1", "abc", "1.5", "", "1e3", "9999999", "None", "{"];

impl Pool {
    pub(super) fn read() -> Self {
        let text = std::fs::read_to_string(root().join("tests/fixtures/agreement.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Writes a directory for each model: its configuration, and the other files of a real model without the weights.
    pub(super) fn write_models(&self, directory: &Path, tokenizer: &Path) -> BTreeMap<String, ModelShape> {
        let write = |(name, config): (&String, &Json)| {
            let model = directory.join(name);
            std::fs::create_dir(&model).unwrap();
            for entry in std::fs::read_dir(tokenizer).unwrap() {
                let entry = entry.unwrap();
                let file = entry.file_name();
                if file != "config.json" && file != "model.safetensors" {
                    std::fs::copy(entry.path(), model.join(&file)).unwrap();
                }
            }
            std::fs::write(model.join("config.json"), config.to_string()).unwrap();
            (name.clone(), ModelShape::read(&model).unwrap())
        };
        self.models.iter().map(write).collect()
    }

    pub(super) fn draw(&self, seed: u64, count: u64) -> Vec<List> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let table = FLAGS.for_version(EngineVersion::new(0, 32, 0));
        let switches = table.flags().filter(|flag| flag.kind() == FlagKind::Bool && !LEFT_OUT.contains(&flag.name));
        let mut names: Vec<&str> =
            self.values.keys().map(String::as_str).chain(switches.map(|flag| flag.name)).collect();
        names.sort_unstable();
        let models: Vec<_> = self.models.keys().collect();
        (0..count)
            .map(|_| {
                let model = (*models.choose(&mut random).unwrap()).clone();
                let mut chosen: Vec<&str> = Vec::new();
                let wanted = *[1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8, 10, 12].choose(&mut random).unwrap();
                while chosen.len() < wanted {
                    let common = random.random_bool(0.4);
                    let name = *if common { COMMON.choose(&mut random) } else { names.choose(&mut random) }.unwrap();
                    if !chosen.contains(&name) {
                        chosen.push(name);
                    }
                }
                let arguments = chosen.iter().flat_map(|name| self.spell(name, table, &mut random)).collect();
                List { model, arguments }
            })
            .collect()
    }

    /// Renders one flag in one of its spellings, with one of its values.
    fn spell(&self, name: &str, table: FlagTable, random: &mut impl Rng) -> Vec<String> {
        let flag = table.find(name);
        let optional = |flag: &Flag| flag.bool_style() == Some(BoolStyle::Optional);
        if flag.is_some_and(|flag| flag.kind() == FlagKind::Bool) {
            let negated = flag.is_some_and(|flag| optional(&flag)) && random.random_bool(0.45);
            let ending = if random.random_bool(0.02) { "=True" } else { "" };
            return vec![format!("--{}{name}{ending}", if negated { "no-" } else { "" })];
        }
        let mut values = self.values[name].choose(random).unwrap().clone();
        if random.random_bool(0.05) && !values.is_empty() {
            let choices = flag.and_then(|flag| flag.choices()).and_then(|choices| choices.choose(random));
            values = match choices.filter(|_| random.random_bool(0.5)) {
                Some(choice) => vec![choice.to_string()],
                None => vec![(*WRONG.choose(random).unwrap()).to_owned()],
            };
        }
        let spelling = match random.random_range(0..40_u32) {
            0..2 => format!("--{}", name.replace('-', "_")),
            // An abbreviation, which may be ambiguous.
            2..4 => format!("--{}", &name[..name.len() - random.random_range(1..=4_usize).min(name.len() - 2)]),
            _ => format!("--{name}"),
        };
        if let [value] = &values[..]
            && random.random_bool(0.12)
        {
            return vec![format!("{spelling}={value}")];
        }
        std::iter::once(spelling).chain(values).collect()
    }
}
