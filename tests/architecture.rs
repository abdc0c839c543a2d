//! The law of the crate, enforced: a module uses only modules listed above it in `src/lib.rs`.

use std::path::{Path, PathBuf};

/// A file that is longer holds two things.
const MOST_LINES: usize = 600;

/// The modules of `lib.rs`, in its order.
fn modules(lib: &str) -> Vec<&str> {
    let declared = |line| str::strip_prefix(line, "pub mod ").or_else(|| line.strip_prefix("mod "));
    lib.lines().filter_map(|line| declared(line)?.strip_suffix(';')).collect()
}

/// What is wrong with one file of the module `own`, one text `FILE:LINE: ...` each. Tests count as well.
fn problems(modules: &[&str], own: &str, file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let place = |name: &str| modules.iter().position(|module| *module == name);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
        let mut report = |problem: String| found.push(format!("{file}:{}: {problem}", index + 1));
        // Further ways to the root of the crate would have to be followed here as well: they are left out instead.
        if line.contains("super::super::") {
            report("`super::super::` is not used: write `crate::`".to_owned());
        }
        if own != "engine" && [".kind() == \"", ".kind() != \""].iter().any(|question| line.contains(question)) {
            report("an engine is asked what it can do (`engine::Engine`), not which one it is".to_owned());
        }
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let used = &rest[..end];
            match (place(used), place(own)) {
                (Some(used), Some(own)) if used <= own => {}
                (Some(_), _) => report(format!("`{own}` uses `{used}`, which is not above it in src/lib.rs")),
                (None, _) => report(format!("`crate::{used}` is no module of src/lib.rs; name one module per path")),
            }
        }
    }
    if text.lines().count() > MOST_LINES {
        found.push(format!("{file}:{MOST_LINES}: the file is longer than {MOST_LINES} lines"));
    }
    if !text.starts_with("//! ") {
        found.push(format!("{file}:1: the file does not begin with `//! ` and what it is for"));
    }
    found
}

/// Every `.rs` file below a directory, or the file itself.
fn files(path: PathBuf) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = path.read_dir().expect("a readable directory");
        return entries.flat_map(|entry| files(entry.expect("a readable entry").path())).collect();
    }
    if path.extension().is_some_and(|extension| extension == "rs") { vec![path] } else { Vec::new() }
}

#[test]
fn a_module_uses_only_modules_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lib = std::fs::read_to_string(root.join("src/lib.rs")).unwrap();
    let modules = modules(&lib);
    for module in &modules {
        assert!(root.join("src").join(module).join("mod.rs").exists(), "src/{module}/mod.rs does not exist");
    }
    let mut found = Vec::new();
    for path in files(root.join("src")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(root).unwrap();
        let own = file.iter().nth(1).and_then(|name| name.to_str()).unwrap();
        match own {
            // The table of contents and the program stand above and below the law; all they have is a size and a title.
            "lib.rs" | "main.rs" => found.extend(problems(&[], own, &file.to_string_lossy(), &text)),
            _ if !modules.contains(&own) => found.push(format!("{}:1: not in src/lib.rs", file.display())),
            _ => found.extend(problems(&modules, own, &file.to_string_lossy(), &text)),
        }
    }
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// The compiler finds dead code in private modules only.
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
    let modules = modules("//! Words.\npub mod config;\npub mod load;\n\nmod metrics;\n");
    assert_eq!(modules, ["config", "load", "metrics"]);
    let of = |text: &str| problems(&modules, "load", "src/load/a.rs", text);
    assert!(of("//! Title.\nuse crate::config::Config;\nuse crate::load::Run;\n// crate::metrics\n").is_empty());
    let below = "src/load/a.rs:2: `load` uses `metrics`, which is not above it in src/lib.rs";
    assert_eq!(of("//! Title.\nlet x = crate::config::f(crate::metrics::summarize());\n"), [below]);
    assert_eq!(of("//! Title.\nuse crate::{config, metrics};\n").len(), 1);
    assert_eq!(of("//! Title.\nuse super::super::metrics;\n").len(), 1);
    assert_eq!(of("use crate::config::Config;\n").len(), 1);
    assert_eq!(of("//! Title.\nlet simulated = engine.kind() == \"sim\";\n").len(), 1);
    assert_eq!(of(&format!("//! Title.\n{}", "\n".repeat(MOST_LINES))).len(), 1);
}

#[test]
fn the_architecture_names_every_module_and_the_reason_of_every_dependency() {
    let read = |name: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    let (lib, manifest, page) = (read("src/lib.rs"), read("Cargo.toml"), read("ARCHITECTURE.md"));
    let dependencies = manifest.split("\n[").filter(|table| table.contains("dependencies]"));
    let crates = dependencies.flat_map(str::lines).filter_map(|line| Some(line.split_once(" = ")?.0.to_owned()));
    let rows = modules(&lib).into_iter().map(|module| format!("src/{module}/")).chain(crates);
    let missing: Vec<_> = rows.filter(|row| !page.contains(&format!("| `{row}` |"))).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md has no row for {missing:?}");
}
