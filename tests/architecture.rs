//! Tests of the law of the crate: a module of `src/lib.rs` uses only the modules that a table in `ARCHITECTURE.md`
//! lists for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The largest number of lines of a file. A longer file has more than one purpose.
const MAX_LINES: usize = 600;

/// Returns the modules of `lib.rs`, in its order.
fn modules(lib: &str) -> Vec<&str> {
    let declared = |line| str::strip_prefix(line, "pub mod ").or_else(|| line.strip_prefix("mod "));
    lib.lines().filter_map(|line| declared(line)?.strip_suffix(';')).collect()
}

/// The modules that one module may use.
#[derive(Debug, Default, PartialEq)]
struct Row<'t> {
    code: BTreeSet<&'t str>,
    /// Further modules that only unit tests may use.
    tests: BTreeSet<&'t str>,
}

/// Parses the table of allowed imports: the indented lines `MODULE: MODULE ... | MODULE ...` of the block below "## The
/// law". Lines without indentation name the layers.
fn table(page: &str) -> BTreeMap<&str, Row<'_>> {
    let law = page.split_once("## The law").expect("a section for the law").1;
    let block = law.split("```").nth(1).expect("a table of the law");
    let rows = block.lines().filter_map(|line| line.strip_prefix("  ")).map(|line| {
        let (module, uses) = line.split_once(':').unwrap_or((line, ""));
        let (code, tests) = uses.split_once('|').unwrap_or((uses, ""));
        (module.trim(), Row { code: code.split_whitespace().collect(), tests: tests.split_whitespace().collect() })
    });
    rows.collect()
}

/// Returns the modules that are part of a cycle or use one. Modules without remaining uses are removed until none is
/// left.
fn cycle<'t>(table: &BTreeMap<&'t str, Row<'t>>) -> BTreeSet<&'t str> {
    let mut left: BTreeSet<_> = table.keys().copied().collect();
    loop {
        let uses = |row: &Row<'t>| row.code.union(&row.tests).any(|used| left.contains(used));
        let free: Vec<_> = left.iter().copied().filter(|module| !uses(&table[module])).collect();
        if free.is_empty() {
            return left;
        }
        left.retain(|module| !free.contains(module));
    }
}

/// One `crate::MODULE` in a file.
#[derive(Debug, PartialEq)]
struct Use<'t> {
    line: usize,
    module: &'t str,
    in_tests: bool,
}

/// Finds every use of a module in a file. `in_tests` states that the whole file is compiled for tests only.
fn uses(text: &str, mut in_tests: bool) -> Vec<Use<'_>> {
    let (mut found, mut before) = (Vec::new(), "");
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        // Unit tests are always at the end of their file.
        in_tests |= before == "#[cfg(test)]" && line.starts_with("mod ") && line.ends_with('{');
        before = line;
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push(Use { line: index + 1, module: &rest[..end], in_tests });
        }
    }
    found
}

/// Returns the files and directories that a file declares as modules for tests only.
fn declared_for_tests(file: &Path, text: &str) -> Vec<PathBuf> {
    let folder = file.parent().expect("a file in a directory");
    let own = if file.ends_with("mod.rs") { folder.to_path_buf() } else { file.with_extension("") };
    let (mut found, mut for_tests, mut path) = (Vec::new(), false, None);
    for line in text.lines().map(str::trim) {
        if line == "#[cfg(test)]" {
            for_tests = true;
        } else if let Some(given) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
            path = Some(folder.join(given));
        } else {
            let name = line.rsplit_once("mod ").and_then(|(_, name)| name.strip_suffix(';'));
            if let Some(name) = name.filter(|_| for_tests) {
                found.push(path.take().unwrap_or_else(|| own.join(name)));
            }
            (for_tests, path) = (false, None);
        }
    }
    found
}

/// Checks the form of one file of the module `own`: forbidden code, length and title. Returns a text `FILE:LINE: ...`
/// for each problem, also in unit tests.
fn problems(own: &str, file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        let mut report = |problem: &str| found.push(format!("{file}:{}: {problem}", index + 1));
        // The search for uses looks for `crate::` only. A longer chain of `super` could leave the module unnoticed.
        if line.contains("super::super::") {
            report("`super::super::` is not used: write `crate::`");
        }
        if own != "engines" && [".kind() == \"", ".kind() != \""].iter().any(|question| line.contains(question)) {
            report("an engine is asked what it can do (`engine::Engine`), not which one it is");
        }
    }
    found.extend(names_of_engines(own, file, text));
    if text.lines().count() > MAX_LINES {
        found.push(format!("{file}:{MAX_LINES}: the file is longer than {MAX_LINES} lines"));
    }
    if !text.starts_with("//! ") {
        found.push(format!("{file}:1: the file does not begin with `//! ` and what it is for"));
    }
    found
}

/// Modules that may name an engine, because they implement the engines.
const ENGINES_OWN: [&str; 1] = ["engines"];

/// Other files that may name an engine, each with the reason.
const NAMES_ENGINES: [(&str, &str); 2] = [
    ("src/load/protocol/dialect.rs", "the names of dialects are a registry of their own"),
    ("src/cli/sim.rs", "the subcommand of the simulated engine"),
];

/// Finds strings with an engine's name in the code of other modules, except in unit tests.
fn names_of_engines(own: &str, file: &str, text: &str) -> Vec<String> {
    let is_test = file.ends_with("tests.rs") || file.contains("/tests/");
    if is_test || ENGINES_OWN.contains(&own) || NAMES_ENGINES.iter().any(|(known, _)| *known == file) {
        return Vec::new();
    }
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let names = |line: &str| ["\"vllm\"", "\"sim\"", "VLLM_", "VLLM::"].iter().any(|name| line.contains(name));
    let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//") && names(line));
    let problem = |(index, _)| format!("{file}:{}: an engine is named outside of its own modules", index + 1);
    lines.map(problem).collect()
}

/// Finds uses in one file of the module `own` that the table does not list. Returns a text `FILE:LINE: ...` for each.
fn breaches(table: &BTreeMap<&str, Row<'_>>, own: &str, file: &str, uses: &[Use<'_>]) -> Vec<String> {
    let row = &table[own];
    let breach = |used: &Use<'_>| {
        let &Use { line, module, in_tests } = used;
        let listed = module == own || row.code.contains(module) || (in_tests && row.tests.contains(module));
        let problem = match table.contains_key(module) {
            true if listed => return None,
            true if row.tests.contains(module) => {
                format!("`{own}` uses `{module}`, which is listed for its tests only")
            }
            true => format!("`{own}` uses `{module}`, which the law in ARCHITECTURE.md does not list for it"),
            false => format!("`crate::{module}` is no module of src/lib.rs; name one module per path"),
        };
        Some(format!("{file}:{line}: {problem}"))
    };
    uses.iter().filter_map(breach).collect()
}

/// Returns every `.rs` file below a directory, or the file itself.
fn files(path: PathBuf) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = path.read_dir().expect("a readable directory");
        return entries.flat_map(|entry| files(entry.expect("a readable entry").path())).collect();
    }
    if path.extension().is_some_and(|extension| extension == "rs") { vec![path] } else { Vec::new() }
}

#[test]
fn a_module_uses_only_what_the_law_lists_for_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| std::fs::read_to_string(root.join(path)).unwrap();
    let (lib, page) = (read(Path::new("src/lib.rs")), read(Path::new("ARCHITECTURE.md")));
    let (modules, table) = (modules(&lib), table(&page));
    for module in &modules {
        assert!(root.join("src").join(module).join("mod.rs").exists(), "src/{module}/mod.rs does not exist");
    }
    let declared: BTreeSet<_> = modules.iter().copied().collect();
    assert_eq!(table.keys().copied().collect::<BTreeSet<_>>(), declared, "the rows of the law are those of src/lib.rs");
    assert!(cycle(&table).is_empty(), "the law has a cycle among {:?}", cycle(&table));

    let all: Vec<_> =
        files(root.join("src")).into_iter().map(|path| path.strip_prefix(root).unwrap().to_owned()).collect();
    let texts: Vec<_> = all.iter().map(|path| read(path)).collect();
    let for_tests: Vec<_> = all.iter().zip(&texts).flat_map(|(path, text)| declared_for_tests(path, text)).collect();
    let (mut found, mut used) = (Vec::new(), BTreeMap::<&str, Row<'_>>::new());
    for (path, text) in all.iter().zip(&texts) {
        let (own, file) = (path.iter().nth(1).and_then(|name| name.to_str()).unwrap(), path.to_string_lossy());
        found.extend(problems(own, &file, text));
        match own {
            // They belong to no module, so the table has no row for them.
            "lib.rs" | "main.rs" => {}
            _ if !declared.contains(own) => found.push(format!("{file}:1: not in src/lib.rs")),
            _ => {
                let in_tests =
                    for_tests.iter().any(|tests| path.with_extension("").starts_with(tests) || path == tests);
                let uses = uses(text, in_tests);
                found.extend(breaches(&table, own, &file, &uses));
                let row = used.entry(own).or_default();
                for used in uses {
                    let part = if used.in_tests { &mut row.tests } else { &mut row.code };
                    part.insert(used.module);
                }
            }
        }
    }
    for (module, row) in &table {
        let used = used.entry(module).or_default();
        let stale = row.code.difference(&used.code).chain(row.tests.difference(&used.tests));
        found.extend(stale.map(|other| format!("ARCHITECTURE.md: `{module}` does not use `{other}` there any more")));
        let twice = row.code.intersection(&row.tests);
        found.extend(twice.map(|other| format!("ARCHITECTURE.md: `{module}` lists `{other}` twice")));
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// The compiler finds dead code in private modules only, so needless `pub` hides dead code.
#[test]
fn a_module_is_public_only_if_something_outside_of_the_library_uses_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let outside = ["tests", "examples", "fuzz/fuzz_targets", "src/main.rs"].map(|place| files(root.join(place)));
    let texts: Vec<_> = outside.iter().flatten().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let lib = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let public = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let is_used = |module: &&str| texts.iter().any(|text| text.contains(&format!("setpoint::{module}::")));
    let unused: Vec<_> = public.filter(|module| !is_used(module)).collect();
    assert!(unused.is_empty(), "private in src/lib.rs, because nothing outside uses them: {unused:?}");
}

#[test]
fn a_breach_is_reported_with_its_file_and_line() {
    assert_eq!(modules("//! Words.\npub mod config;\npub mod load;\n\nmod metrics;\n"), ["config", "load", "metrics"]);
    let page = "## The law\nText.\n```text\nwords\n  config\n  load: config | space\n  metrics: load\n  space\n```\n";
    let table = table(page);
    assert_eq!(table["load"], Row { code: BTreeSet::from(["config"]), tests: BTreeSet::from(["space"]) });
    assert!(cycle(&table).is_empty());
    let of = |text: &str| breaches(&table, "load", "src/load/a.rs", &uses(text, false));
    assert!(of("//! Title.\nuse crate::config::Config;\nuse crate::load::Run;\n// crate::metrics\n").is_empty());
    let unlisted = "src/load/a.rs:2: `load` uses `metrics`, which the law in ARCHITECTURE.md does not list for it";
    assert_eq!(of("//! Title.\nlet x = crate::config::f(crate::metrics::summarize());\n"), [unlisted]);
    assert_eq!(of("//! Title.\nuse crate::{config, metrics};\n").len(), 1);
    let test_only = "src/load/a.rs:1: `load` uses `space`, which is listed for its tests only";
    assert_eq!(of("use crate::space::Space;\n#[cfg(test)]\nmod tests {\n    use crate::space::Space;\n"), [test_only]);
}

#[test]
fn a_cycle_of_the_law_is_found() {
    let law = |rows: &str| format!("## The law\n```text\n{rows}```\n");
    let page = law("  config\n  load: metrics\n  metrics: config | load\n");
    assert_eq!(cycle(&table(&page)), BTreeSet::from(["load", "metrics"]));
}

#[test]
fn modules_for_tests_are_known_by_their_declaration() {
    let text = "#[cfg(test)]\nmod tests;\n#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod more;\nmod code;\n#[cfg(test)]\nfn f() {}\n";
    let of = |file: &str| declared_for_tests(Path::new(file), text);
    assert_eq!(of("src/load/mod.rs"), [Path::new("src/load/tests"), Path::new("src/load/b_tests.rs")]);
    assert_eq!(of("src/load/a.rs"), [Path::new("src/load/a/tests"), Path::new("src/load/b_tests.rs")]);
}

#[test]
fn a_file_has_a_title_a_size_and_no_way_around_the_law() {
    let of = |text: &str| problems("load", "src/load/a.rs", text);
    assert_eq!(of("//! Title.\nuse super::super::metrics;\n").len(), 1);
    assert_eq!(of("use crate::config::Config;\n").len(), 1);
    assert_eq!(of("//! Title.\nlet simulated = engine.kind() == \"other\";\n").len(), 1);
    let named = "//! Title.\nlet engine = find(\"vllm\");\n";
    assert_eq!((of(named).len(), problems("engines", "src/engines/a.rs", named).len()), (1, 0));
    assert_eq!(of("//! Title.\n#[cfg(test)]\nmod tests {\n    const A: &str = \"sim\";\n}\n").len(), 0);
    assert_eq!(of(&format!("//! Title.\n{}", "\n".repeat(MAX_LINES))).len(), 1);
}

#[test]
fn the_architecture_names_every_module_and_the_reason_of_every_dependency() {
    let read = |name: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let (lib, manifest) = (read("src/lib.rs"), read("Cargo.toml"));
    let page = read("ARCHITECTURE.md") + &read("docs/src/dependencies.md");
    let dependencies = manifest.split("\n[").filter(|table| table.contains("dependencies]"));
    let crates = dependencies.flat_map(str::lines).filter_map(|line| Some(line.split_once(" = ")?.0.to_owned()));
    let rows = modules(&lib).into_iter().map(|module| format!("src/{module}/")).chain(crates);
    let missing: Vec<_> = rows.filter(|row| !page.contains(&format!("| `{row}` |"))).collect();
    assert!(missing.is_empty(), "neither ARCHITECTURE.md nor docs/src/dependencies.md has a row for {missing:?}");
}
