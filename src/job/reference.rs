//! Test of the reference of the study file in `docs/src/study-file.md`. Its tables list the keys that the readers ask
//! for, with the kind of value and the default. Only the last column is written by hand.
//!
//! `UPDATE_REFERENCE=1 cargo test --lib reference` writes the tables anew and keeps the texts of the last column.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use regex::Regex;

use super::Job;
use crate::document::{Document, KeyRead};
use crate::engine::QUANTITIES;

const BEGIN: &str = "<!-- keys of the readers -->\n";
const END: &str = "<!-- end of the keys -->\n";
const HEAD: &str = "| key | value | default | meaning |\n|---|---|---|---|\n";

/// A table of the reference.
struct KeyTable {
    title: &'static str,
    /// Dotted path of the TOML table, without the indices of arrays.
    path: &'static str,
    /// Studies that read all of its keys.
    studies: Vec<Study>,
    /// Title of the table that lists the keys shared with other kinds. Its keys are left out.
    beside: Option<&'static str>,
}

/// Sections of a study in TOML. An absent section is that of [`Study::plain`].
#[derive(Clone, Copy, Default)]
struct Study {
    engine: &'static str,
    model: &'static str,
    space: &'static str,
    workload: &'static str,
    load: &'static str,
    objective: &'static str,
    /// The sections behind `[budget]`.
    end: &'static str,
}

const SEVERAL: &str = "[[workload]]\nname = 'a'\nkind = 'mixture'\nload = { duration = '1m' }\n\
                       [[workload.part]]\nkind = 'random'\ninput_len = 16\noutput_len = 4";

/// A search for the highest load, with its load.
const SEARCH: &str = "maximize = 'load_under_slo'\n[[objective.constraint]]\nmetric = 'p99_ttft_ms'\nat_most = 9\n\
                      [objective.search]\nprobes = 6\n[[objective.tier]]\nname = 'a'\n\
                      [[objective.tier.constraint]]\nmetric = 'p99_ttft_ms'\nat_most = 99";
const SEARCHED: &str = "concurrency = 4\nduration = '1m'";

const RANDOM: &str = "kind = 'random'\ninput_len = 16\noutput_len = 4";

impl Study {
    fn text(self) -> String {
        let or = |text: &str, plain: &str| if text.is_empty() { plain.to_owned() } else { text.to_owned() };
        let head = if self.workload.starts_with("[[workload]]") { "" } else { "[workload]" };
        format!(
            "[study]\nname = 'a'\n[engine]\n{}\n[model]\n{}\n[space]\n{}\n{head}\n{}\n[load]\n{}\n\
             [objective]\n{}\n[budget]\ntrials = 9\n{}\n",
            or(self.engine, "kind = 'sim'"),
            or(self.model, "path = 'model'"),
            or(self.space, "file = 'search_spaces/sim/core.toml'"),
            or(self.workload, RANDOM),
            or(self.load, "concurrency = 4\nrequests = 8"),
            or(self.objective, "maximize = 'output_throughput'"),
            self.end,
        )
    }

    fn of_workload(workload: &'static str) -> Self {
        Self { workload, ..Self::default() }
    }

    fn of_parameter(space: &'static str) -> Self {
        Self { space, ..Self::default() }
    }

    fn of_load(load: &'static str) -> Self {
        Self { load, ..Self::default() }
    }

    fn of_command_engine() -> Self {
        let names = QUANTITIES.map(|quantity| format!("{quantity} = 'a'\n")).concat();
        let engine = format!(
            "kind = 'command'\ncommand = ['true', '{{port}}']\nmetrics = '/metrics'\n[engine.flags]\nNAME = '-n'\n\
             [engine.metric_names]\n{names}[[engine.failures]]\npattern = 'a'\nkind = 'out_of_memory'"
        );
        let engine = engine.leak();
        let space = "[space.parameters.NAME]\nkind = 'bool'";
        Self { engine, model: "path = 'a'", space, ..Self::default() }
    }
}

/// Returns a study for each kind of parameter.
fn parameter_studies() -> Vec<Study> {
    let parameter = "when = { block-size = [16] }\nhelp = 'a'\nlow = 1\nhigh = 9";
    let of_kind = |kind| {
        let own = if kind == "categorical" { "choices = [1, 2]" } else { "" };
        let range = if ["int", "float"].contains(&kind) { parameter } else { "" };
        let text = format!(
            "[space.parameters.block-size]\nkind = 'categorical'\nchoices = [16]\n[space.parameters.NAME]\n\
             kind = '{kind}'\n{own}\n{range}"
        );
        Study::of_parameter(text.leak())
    };
    ["int", "float", "bool", "categorical"].map(of_kind).to_vec()
}

/// Returns the tables in the order of the document.
fn tables() -> Vec<KeyTable> {
    let one = |title, path, study| KeyTable { title, path, studies: vec![study], beside: None };
    let plain = Study::default();
    let command = Study::of_command_engine();
    let workload = |title, study: &'static str| KeyTable {
        title,
        path: "workload",
        studies: vec![Study::of_workload(study)],
        beside: Some("`[workload]`"),
    };
    let parameters = parameter_studies();
    vec![
        one("`[study]`", "study", plain),
        one("`[engine]`", "engine", plain),
        KeyTable {
            title: "`[engine]` with `kind = \"command\"`",
            path: "engine",
            studies: vec![command],
            beside: Some("`[engine]`"),
        },
        one("`[engine.flags]`", "engine.flags", command),
        one("`[engine.metric_names]`", "engine.metric_names", command),
        one("`[[engine.failures]]`", "engine.failures", command),
        KeyTable { title: "`[model]`", path: "model", studies: vec![plain, command], beside: None },
        one("`[space]`", "space", plain),
        KeyTable {
            title: "`[space.parameters.NAME]`",
            path: "space.parameters.NAME",
            studies: parameters.clone(),
            beside: None,
        },
        one("`[space.parameters.NAME.when]`", "space.parameters.NAME.when", parameters[0]),
        KeyTable {
            title: "`[workload]`",
            path: "workload",
            studies: vec![Study::of_workload(
                "kind = 'mixture'\n[[workload.part]]\nkind = 'random'\ninput_len = 16\noutput_len = 4",
            )],
            beside: None,
        },
        workload("`[workload]` with `kind = \"random\"`", RANDOM),
        workload("`[workload]` with `kind = \"sharegpt\"`", "kind = 'sharegpt'\npath = 'trace.csv'"),
        workload("`[workload]` with `kind = \"jsonl\"`", "kind = 'jsonl'\npath = 'trace.csv'"),
        workload("`[workload]` with `kind = \"trace\"`", "kind = 'trace'\npath = 'trace.csv'"),
        workload(
            "`[workload]` with `kind = \"prefix\"`",
            "kind = 'prefix'\nprefix_len = 4\nsuffix_len = 4\noutput_len = 2",
        ),
        workload(
            "`[workload]` with `kind = \"conversation\"`",
            "kind = 'conversation'\nturns = 2\nfirst_len = 4\nuser_len = 4\noutput_len = 2",
        ),
        workload(
            "`[workload]` with `kind = \"image\"`",
            "kind = 'image'\nwidth = 8\nheight = 8\ninput_len = 4\noutput_len = 2",
        ),
        KeyTable {
            title: "`[[workload.part]]` with `kind = \"mixture\"`",
            path: "workload.part",
            studies: vec![Study::of_workload(
                "kind = 'mixture'\n[[workload.part]]\nkind = 'trace'\npath = 'trace.csv'",
            )],
            beside: Some("`[workload]` with `kind = \"trace\"`"),
        },
        KeyTable {
            title: "`[[workload]]`",
            path: "workload",
            studies: vec![Study::of_workload(SEVERAL)],
            beside: Some("`[workload]`"),
        },
        one("`load` of `[[workload]]`", "workload.load", Study::of_workload(SEVERAL)),
        KeyTable {
            title: "`[load]`",
            path: "load",
            studies: vec![plain, Study::of_load("rate = 2\nduration = '1m'")],
            beside: None,
        },
        one("`[load.ramp]`", "load.ramp", Study::of_load("ramp = { from = 1, to = 2, over = '1m' }\nrequests = 8")),
        one("`[objective]`", "objective", plain),
        one(
            "`[[objective.constraint]]`",
            "objective.constraint",
            Study {
                objective: "maximize = 'output_throughput'\n[[objective.constraint]]\nmetric = 'p99_ttft_ms'\nat_most = 9",
                ..plain
            },
        ),
        one("`[objective.search]`", "objective.search", Study { load: SEARCHED, objective: SEARCH, ..plain }),
        one("`[[objective.tier]]`", "objective.tier", Study { load: SEARCHED, objective: SEARCH, ..plain }),
        one("`[budget]`", "budget", plain),
        one("`[slots]`", "slots", Study { end: "[slots]", ..plain }),
        one("`[guard]`", "guard", Study { end: "[guard]", ..plain }),
        one("`[deployment]`", "deployment", Study { end: "[deployment]\nsource = 'a'\nflags = {}", ..plain }),
        one("`[[start]]`", "start", Study { end: "[[start]]\nsource = 'a'\nflags = {}", ..plain }),
    ]
}

/// Reads a study in a directory with a model and a trace. Its data may be unfit for the workload: only the reads of
/// keys count.
fn reads(study: Study, directory: &Path) -> Vec<KeyRead> {
    let file = directory.join("study.toml");
    let document = Document::from_text(&file, study.text());
    let _ = document.parse(|root| Job::resolve(root, &file));
    let reads = document.reads.borrow().clone();
    let indices = Regex::new(r"\[\d+\]").expect("a pattern");
    reads.into_iter().map(|read| KeyRead { path: indices.replace_all(&read.path, "").into_owned(), ..read }).collect()
}

/// Returns the value and default of every key of a table. A key that is read in several ways has all of them.
fn rows(table: &KeyTable, directory: &Path) -> BTreeMap<String, (String, String)> {
    let mut found: BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
    let mut used_by_all: Vec<BTreeSet<String>> = Vec::new();
    for study in &table.studies {
        let own = reads(*study, directory).into_iter().filter_map(|read| {
            let key = read.path.strip_prefix(table.path)?.strip_prefix('.')?.to_owned();
            (!key.contains('.')).then_some((key, read))
        });
        let own: Vec<_> = own.collect();
        used_by_all.push(own.iter().map(|(key, _)| key.clone()).collect());
        for (key, read) in own {
            let (kinds, defaults) = found.entry(key).or_default();
            kinds.insert(read.kind);
            defaults.insert(read.default);
        }
    }
    let default = |key: &str, defaults: BTreeSet<String>| {
        let everywhere = used_by_all.iter().all(|keys| keys.contains(key));
        match (defaults.contains("required"), everywhere && defaults.len() == 1) {
            (true, false) => "depends".to_owned(),
            _ => defaults.into_iter().collect::<Vec<_>>().join(", "),
        }
    };
    let row = |(key, (kinds, defaults)): (String, (BTreeSet<String>, BTreeSet<String>))| {
        let default = default(&key, defaults);
        (key, (kinds.into_iter().collect::<Vec<_>>().join(" or "), default))
    };
    found.into_iter().map(row).collect()
}

/// Returns the texts of the last column by title and key.
fn meanings(document: &str) -> BTreeMap<(String, String), String> {
    let mut title = String::new();
    let mut found = BTreeMap::new();
    for line in document.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            heading.clone_into(&mut title);
        }
        let cells: Vec<_> = line.trim_matches('|').splitn(4, '|').map(str::trim).collect();
        if let [key, _, _, meaning] = cells[..]
            && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
        {
            found.insert((title.clone(), key.to_owned()), meaning.to_owned());
        }
    }
    found
}

fn study_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::os::unix::fs::symlink(root.join("examples/models/qwen3-8b"), directory.path().join("model")).expect("a link");
    std::fs::write(directory.path().join("trace.csv"), "arrival_s,input_tokens,output_tokens\n1,5,3\n")
        .expect("a trace");
    directory
}

fn document_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/study-file.md")
}

#[test]
fn the_reference_of_the_study_file_lists_the_keys_that_the_readers_ask_for() {
    let directory = study_directory();
    let document = std::fs::read_to_string(document_file()).expect("the chapter");
    let (before, rest) = document.split_once(BEGIN).expect("the begin of the reference");
    let (written, after) = rest.split_once(END).expect("the end of the reference");
    let meanings = meanings(written);
    let (mut expected, mut unexplained) = (String::new(), Vec::new());
    let mut listed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for table in tables() {
        let mut rows = rows(&table, directory.path());
        if let Some(other) = table.beside {
            rows.retain(|key, _| !listed[other].contains(key));
        }
        assert!(!rows.is_empty(), "no key of {} was read", table.title);
        write!(expected, "\n### {}\n\n{HEAD}", table.title).expect("a text");
        for (key, (kind, default)) in &rows {
            let meaning = meanings.get(&(table.title.to_owned(), key.clone())).map_or("", String::as_str);
            if meaning.is_empty() {
                unexplained.push(format!("{}: {key}", table.title));
            }
            writeln!(expected, "| `{key}` | {kind} | {default} | {meaning} |").expect("a text");
        }
        listed.insert(table.title, rows.into_keys().collect());
    }
    expected.push('\n');
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(document_file(), format!("{before}{BEGIN}{expected}{END}{after}")).expect("the chapter");
    } else {
        let differs = expected.lines().zip(written.lines()).find(|(expected, written)| expected != written);
        assert!(
            expected == written,
            "update docs/src/study-file.md with UPDATE_REFERENCE=1; expected, found: {differs:?}"
        );
    }
    assert!(unexplained.is_empty(), "docs/src/study-file.md: keys without a meaning: {unexplained:?}");
}

#[test]
fn the_studies_of_the_reference_read_every_key_that_the_code_names() {
    let directory = study_directory();
    let studies = tables().into_iter().flat_map(|table| table.studies);
    let read: BTreeSet<_> = studies
        .flat_map(|study| reads(study, directory.path()))
        .filter_map(|read| read.path.rsplit('.').next().map(str::to_owned))
        .collect();
    let call = Regex::new(
        r#"(?:\.(?:optional|optional_or|required)(?:::<[^(]*>)?\(|\b(?:positive|positive_number|count|length|path|bound|find_program)\(\w+, )"([a-z_]+)""#,
    )
    .expect("a pattern");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = BTreeSet::new();
    for file in
        ["src/job", "src/engines/command"].iter().flat_map(|folder| root.join(folder).read_dir().expect("a folder"))
    {
        let path = file.expect("an entry").path();
        // `profile.rs` reads another kind of document.
        if path.extension().is_none_or(|end| end != "rs") || path.ends_with("profile.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        named.extend(call.captures_iter(code).map(|found| found[1].to_owned()));
    }
    assert!(named.len() > 60, "only {} keys were found in the sources", named.len());
    let missed: Vec<_> = named.difference(&read).collect();
    assert!(missed.is_empty(), "no study of the reference reads {missed:?}");
}
