//! The release archive, with a stand-in that starts the program under test: its own build would take minutes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use regex::Regex;

use crate::support::{Workplace, root, say_skipped};

#[expect(clippy::disallowed_methods, reason = "the release script and the tools of a reader")]
fn run(directory: &Path, program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).current_dir(directory).env_remove("SETPOINT_DB").output().unwrap()
}

/// Builds the archive of a program into a folder of the workplace.
fn release(workplace: &Workplace, output: &str, program: &str) -> Output {
    let (output, program) = (workplace.path(output), workplace.path(program));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (output, program) = (path(&output), path(&program));
    run(root(), "bash", &[".ci/release", "--allow-dirty", "-o", &output, "--program", &program])
}

/// Writes a script as a program of the workplace.
fn write_program(workplace: &Workplace, name: &str, script: &str) {
    workplace.write(name, &format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(workplace.path(name), PermissionsExt::from_mode(0o755)).unwrap();
}

fn succeeds(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn the_release_archive_is_reproducible_and_complete() {
    if !run(root(), "git", &["rev-parse", "HEAD"]).status.success() || !root().join(".ci/release").exists() {
        say_skipped("the release archive: this is no checkout");
        return;
    }
    let workplace = Workplace::new();
    write_program(&workplace, "stand-in", &format!("exec '{}' \"$@\"", env!("CARGO_BIN_EXE_setpoint")));
    let archive = succeeds(&release(&workplace, "first", "stand-in")).trim_end().to_owned();
    succeeds(&release(&workplace, "second", "stand-in"));
    let name = Path::new(&archive).file_name().unwrap().to_str().unwrap();
    let sum = format!("{name}.sha256");
    for file in [name, &sum] {
        let bytes = |folder: &str| std::fs::read(workplace.path(folder).join(file)).unwrap();
        assert!(bytes("first") == bytes("second"), "{file} differs between two runs");
    }
    assert_eq!(std::fs::read_dir(workplace.path("first")).unwrap().count(), 2, "the archive, its sum and nothing else");
    succeeds(&run(&workplace.path("first"), "sha256sum", &["--check", "--quiet", &sum]));

    succeeds(&run(&workplace.path(""), "tar", &["--extract", "--file", &archive]));
    let unpacked = workplace.path(name.strip_suffix(".tar.gz").unwrap());
    for file in [
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "search_spaces/vllm/core.toml",
        "completions/_setpoint",
        "completions/setpoint.bash",
        "completions/setpoint.fish",
        "man1/setpoint-tune.1",
    ] {
        assert!(unpacked.join(file).is_file(), "{file} is not in the archive");
    }
    let licences = std::fs::read_to_string(unpacked.join("LICENSES-THIRD-PARTY.txt")).unwrap();
    assert!(licences.contains("\nclap 4.") && licences.contains("Permission is hereby granted"));
    let readme = std::fs::read_to_string(unpacked.join("README.md")).unwrap();
    for link in Regex::new(r"\]\(([^)#\s]+)").unwrap().captures_iter(&readme) {
        assert!(link[1].starts_with("http") || unpacked.join(&link[1]).exists(), "{} is not in the archive", &link[1]);
    }
    succeeds(&run(&unpacked, "./setpoint", &["check", "examples/quickstart.toml"]));
}

#[test]
fn a_program_of_another_version_is_not_released() {
    if !run(root(), "git", &["rev-parse", "HEAD"]).status.success() || !root().join(".ci/release").exists() {
        say_skipped("the release archive: this is no checkout");
        return;
    }
    let workplace = Workplace::new();
    write_program(&workplace, "older", "echo setpoint 0.0.1");
    let output = release(&workplace, "output", "older");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("setpoint 0.0.1") && stderr.contains("hint: "), "{stderr}");
    assert!(!workplace.path("output").exists(), "nothing is written");
}
