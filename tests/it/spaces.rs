//! Every search space and example that ships is valid.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use setpoint::config::{Config, Value};
use setpoint::document::Document;
use setpoint::engine::Engine;
use setpoint::engines;
use setpoint::facts::{Device, ModelShape};
use setpoint::flag::FlagKind;
use setpoint::job::StudyFile;
use setpoint::rule::{Facts, narrow, rejection};
use setpoint::space::{Domain, Space, SpaceFile, built_in};

use crate::support::{Workplace, root};

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns every space that ships, resolved for the example model, with its path in the project.
fn spaces() -> Vec<(String, SpaceFile)> {
    let model = ModelShape::read(&root().join("examples/models/qwen3-8b")).unwrap();
    let paths = files(&root().join("search_spaces"));
    assert!(paths.len() >= 3);
    let read = |path: PathBuf| {
        let file = Document::read(&path).unwrap().parse(|section| SpaceFile::read(section, &model)).unwrap();
        (path.strip_prefix(root()).unwrap().display().to_string(), file)
    };
    paths.into_iter().map(read).collect()
}

/// Returns the engine that a space is for.
fn engine_of(file: &SpaceFile) -> Arc<dyn Engine> {
    engines::built_in(&file.engine).unwrap()
}

#[test]
fn every_parameter_exists_in_all_releases_of_its_space_has_a_help_line_and_values_that_they_take() {
    for (path, file) in spaces() {
        let engine = engine_of(&file);
        let book = engine.flags().unwrap();
        let releases: Vec<_> = book.releases(file.first_version, file.last_version).collect();
        assert!(!releases.is_empty() && file.first_version.is_some() && !file.description.is_empty(), "{path}");
        for version in releases {
            let table = book.for_version(version);
            for parameter in &file.space.parameters {
                let place = format!("{path}: {} in {version}", parameter.name);
                let flag = table.find(&parameter.name);
                let flag = flag.unwrap_or_else(|| panic!("{place}: {}", table.unknown(&parameter.name)));
                assert_eq!(flag.name, parameter.name, "{place}: an alias");
                let help = parameter.help.as_deref().unwrap_or_default();
                assert!(help.len() >= 20 && help.len() <= 160 && help.ends_with('.'), "{place}: {help:?}");
                for value in parameter.domain.values(1000).unwrap_or_default() {
                    assert_eq!(value.as_bool().is_some(), flag.kind() == FlagKind::Bool, "{place}");
                    if !value.as_str().is_some_and(|text| flag.is_unset(text)) {
                        flag.check_choice(&value).unwrap_or_else(|error| panic!("{place}: {error}"));
                    }
                }
                for condition in &parameter.conditions {
                    let parent = file.space.parameters.iter().find(|parent| parent.name == condition.parameter);
                    let possible = parent.unwrap().domain.values(1000).unwrap();
                    let known = |value: &Value| possible.contains(value);
                    // A study may add choices of the flag to its parent.
                    let choice = |value: &Value| {
                        known(value) || table.find(&condition.parameter).unwrap().check_choice(value).is_ok()
                    };
                    assert!(condition.values.iter().any(known), "{place}: a condition that never holds");
                    assert!(condition.values.iter().all(choice), "{place}: a condition on an unknown choice");
                }
            }
        }
    }
}

/// Returns corners of the space: all parameters, or all but one, have their first value or their last value.
fn corners(space: &Space) -> Vec<Config> {
    let last = 1.0 - f64::EPSILON;
    let ends = [(0.0, last), (last, 0.0)].into_iter();
    let but_one = ends.flat_map(|(most, one)| {
        (0..=space.dimensions()).map(move |odd| (0..space.dimensions()).map(move |i| if i == odd { one } else { most }))
    });
    but_one.map(|point| space.decode(&point.collect::<Vec<_>>())).collect()
}

#[test]
fn corners_of_every_space_are_arguments_that_its_releases_parse_to_the_same_configuration() {
    for (path, file) in spaces() {
        let engine = engine_of(&file);
        let book = engine.flags().unwrap();
        for version in book.releases(file.first_version, file.last_version) {
            let table = book.for_version(version);
            for config in corners(&file.space) {
                let arguments = table.render(&config).unwrap_or_else(|error| panic!("{path} in {version}: {error}"));
                let parsed = table.parse(&arguments).unwrap_or_else(|error| panic!("{path} in {version}: {error}"));
                // A release that can only switch a flag on omits it if it is off. No other value may be missing.
                let missing = config.without(&parsed);
                let is_complete = missing.iter().all(|(_, value)| *value == Value::Bool(false));
                assert!(is_complete, "{path} in {version}: {missing} of {config}");
            }
        }
    }
}

#[test]
fn every_space_has_configurations_that_work_and_loses_none_of_them_when_it_is_narrowed() {
    let model = ModelShape::read(&root().join("examples/models/qwen3-8b")).unwrap();
    for (path, file) in spaces() {
        let on_cpu = path.ends_with("cpu.toml");
        let device = if on_cpu { Device::Cpu } else { Device::UNKNOWN_GPU };
        let facts = Facts::new(engine_of(&file).rules(), &model, file.first_version.unwrap(), device);
        let (narrowed, _) = narrow(&file.space, &Config::new(), &facts);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut valid = 0;
        for _ in 0..100 {
            let point: Vec<f64> = (0..file.space.dimensions()).map(|_| rng.random()).collect();
            let config = file.space.decode(&point);
            if rejection(&config, &facts).is_some() {
                continue;
            }
            valid += 1;
            for parameter in &narrowed.parameters {
                let Some(value) = config.get(&parameter.name) else { continue };
                let held = match &parameter.domain {
                    Domain::Bool => true,
                    Domain::Categorical(values) => values.contains(value),
                    Domain::Int { low, high, .. } => value.as_i64().is_some_and(|n| (*low..=*high).contains(&n)),
                    Domain::Float { low, high, .. } => value.as_f64().is_some_and(|n| (*low..=*high).contains(&n)),
                };
                assert!(held, "{path}: {} {value} is used by {config}", parameter.name);
            }
        }
        assert!(valid >= 2, "{path}: {valid} of 100");
    }
}

#[test]
fn every_space_is_built_into_the_binary_under_its_path() {
    for path in files(&root().join("search_spaces")) {
        let name = path.strip_prefix(root()).unwrap();
        let text = built_in(name).unwrap_or_else(|| panic!("{} is not built in", name.display()));
        assert_eq!(text, std::fs::read_to_string(&path).unwrap());
    }
}

#[test]
fn example_studies_are_valid() {
    let studies: BTreeSet<_> = files(&root().join("examples"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    assert!(studies.len() >= 2);
    for path in studies {
        match StudyFile::read(&path) {
            Ok(StudyFile::Single(job)) => assert!(!job.search_space().parameters.is_empty(), "{}", path.display()),
            Ok(StudyFile::Comparison(comparison)) => assert!(comparison.entrants.len() > 1, "{}", path.display()),
            // A script creates the models of these studies.
            Err(error) => {
                let folder = path.parent().unwrap();
                let is_real = ["vllm-cpu.toml", "engines.toml"].iter().any(|name| path.ends_with(name))
                    || ["real_studies", "llama-cpp"].iter().any(|real| folder.ends_with(real));
                assert!(error.key.ends_with("model.path") && is_real, "{error}");
            }
        }
    }
}

#[test]
fn a_release_that_a_space_is_not_for_is_told_which_one_is() {
    let study = |space: &str, version: &str| {
        let text = std::fs::read_to_string(root().join("examples/wrappers/conda.toml")).unwrap();
        let text = text.replace("search_spaces/vllm/core.toml", space).replace("0.32.0", version);
        let model = root().join("examples/models/qwen3-8b");
        let text =
            text.replace("../models/qwen3-8b", model.to_str().unwrap()).replace("\"conda\", \"run\"", "\"sh\", \"-c\"");
        let workplace = Workplace::with_study(&text);
        workplace.run(&["check", "study.toml"])
    };
    for (space, version, other) in [
        ("core.toml", "0.11.0", "core-0.8.toml"),
        ("core.toml", "0.8.5", "core-0.8.toml"),
        ("core-0.8.toml", "0.32.0", "core.toml"),
        ("full-0.32.toml", "0.12.0", "full.toml"),
        ("core.toml", "0.6.3", "v0.toml"),
    ] {
        let refused = study(&format!("search_spaces/vllm/{space}"), version);
        let hint = format!("hint: name search_spaces/vllm/{other}, which is for this release");
        assert!(refused.code == Some(3) && refused.stderr.contains(&hint), "{space} {version}: {}", refused.stderr);
    }
}

#[test]
fn a_space_is_found_without_the_folder_of_all_spaces() {
    let workplace = Workplace::new();
    let whole = workplace.run(&["spaces", "search_spaces/vllm/cpu.toml"]);
    assert_eq!((whole.code, workplace.run(&["spaces", "vllm/cpu.toml"]).stdout), (Some(0), whole.stdout));
    let refused = workplace.run(&["spaces", "cpu.toml"]);
    assert!(
        refused.stderr.contains("did you mean search_spaces/llama.cpp/cpu.toml or search_spaces/vllm/cpu.toml?"),
        "{}",
        refused.stderr
    );
}
