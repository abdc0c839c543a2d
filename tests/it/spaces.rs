//! Every search space and example that ships is valid.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use setpoint::document::Document;
use setpoint::facts::ModelShape;
use setpoint::flag::{FlagTable, Kind};
use setpoint::job::Job;
use setpoint::space::{Domain, SpaceFile, built_in};

use crate::support::root;

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn every_space_loads_and_names_flags_that_exist_in_its_releases_with_values_that_they_take() {
    let model = ModelShape::read(&root().join("examples/models/qwen3-8b")).unwrap();
    let files = files(&root().join("search_spaces"));
    assert!(files.len() >= 3);
    for path in files {
        let document = Document::read(&path).unwrap();
        let file = document.parse(|section| SpaceFile::read(section, &model)).unwrap();
        let newest = FlagTable::newest_release();
        for version in [file.first_version.unwrap_or(newest), file.last_version.unwrap_or(newest)] {
            let table = FlagTable::for_version(version);
            for parameter in &file.space.parameters {
                let place = format!("{}: {} in {version}", path.display(), parameter.name);
                let flag = table.find(&parameter.name);
                let flag = flag.unwrap_or_else(|| panic!("{place}: {}", table.unknown(&parameter.name)));
                assert_eq!(matches!(parameter.domain, Domain::Bool), flag.kind() == Kind::Bool, "{place}");
                assert!(parameter.help.is_some(), "{place} has no help");
                for value in parameter.domain.values(1000).unwrap_or_default() {
                    flag.check_choice(&value).unwrap_or_else(|error| panic!("{place}: {error}"));
                }
            }
        }
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
        match Job::read(&path) {
            Ok(job) => assert!(!job.parameters().parameters.is_empty(), "{}", path.display()),
            // The model of this one is made by a script.
            Err(error) => assert!(error.key == "model.path" && path.ends_with("vllm-cpu.toml"), "{error}"),
        }
    }
}
