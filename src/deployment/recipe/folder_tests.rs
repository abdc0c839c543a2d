//! A test on all published recipes, if they are beside the repository.

use std::path::{Path, PathBuf};

use super::tests::target;
use super::*;
use crate::config::Config;
use crate::engines::vllm::FLAGS;

/// Recipes that are not read, with the reason.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// Machines with the number of recipes that give them a first point.
const MACHINES: [(&str, u32, u64, usize); 2] =
    [("NVIDIA H100 80GB HBM3", 8, 79, 67), ("NVIDIA GeForce RTX 4090", 1, 23, 15)];

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap().path();
        if entry.is_dir() {
            collect(&entry, files);
        } else if entry.extension().is_some_and(|end| end == "yaml") {
            files.push(entry);
        }
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test is named in one line")]
fn every_published_recipe_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/vllm-recipes/models");
    if !folder.is_dir() {
        return eprintln!("skipped: {} does not exist", folder.display());
    }
    let mut files = Vec::new();
    collect(&folder, &mut files);
    let table = FLAGS.for_version(EngineVersion::LATEST);
    let study = Config::new();
    let mut counts = MACHINES.map(|_| 0);
    for file in &files {
        let recipe = match read_recipe(file.to_str().unwrap()) {
            Ok(recipe) => recipe,
            Err(error) => {
                assert!(EXCEPTIONS.iter().any(|(name, _)| file.ends_with(name)), "{error}");
                continue;
            }
        };
        assert!(recipe.notes.is_empty(), "{}: {:?}", recipe.file, recipe.notes);
        for ((gpu, devices, gib, _), count) in MACHINES.iter().zip(&mut counts) {
            let found = recipe.first_points(&target(&recipe.model_id, gpu, *devices, *gib, &study), table).unwrap();
            assert!(!found.points.is_empty() || !found.notes.is_empty(), "{} is silent on {gpu}", recipe.file);
            *count += usize::from(!found.points.is_empty());
        }
    }
    assert_eq!((files.len(), counts), (173, MACHINES.map(|(.., count)| count)));
}
