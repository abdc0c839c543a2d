//! Secrets and control characters of an engine and its study. They reach neither the database nor a terminal, and other
//! users cannot read them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::{Workplace, study_with};

const PASSWORD: &str = "s3cr3t-pass";
const KEY: &str = "hf_aB3dE5gH7jK9mN1pQ3sT5vW7yZ";

/// An engine that fails with a hostile text.
const ENGINE: &str = "#!/bin/sh
printf 'Traceback (most recent call last):\\n  File \"a.py\", line 1, in f\\nKeyError: \\033[2J\\033]0;title\\007\\302\\2332J\\342\\200\\256\
http://ada:s3cr3t-pass@proxy hf_aB3dE5gH7jK9mN1pQ3sT5vW7yZ\\n' >&2
exit 1
";

fn modes(directory: &Path, found: &mut Vec<(String, u32)>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let (path, data) = (entry.path(), entry.metadata().unwrap());
        found.push((path.display().to_string(), data.permissions().mode() & 0o777));
        if data.is_dir() {
            modes(&path, found);
        }
    }
}

#[test]
fn secrets_and_control_characters_stay_with_the_engine() {
    let engine =
        format!("command = [\"./engine.sh\"]\nenv = {{ PROXY = \"http://ada:{PASSWORD}@proxy\", WORD = \"{KEY}\" }}");
    let workplace = Workplace::with_study(&study_with(&engine, "trials = 4"));
    workplace.write("engine.sh", ENGINE);
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(workplace.path("engine.sh"), executable).unwrap();
    let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
    let tuned = workplace.run(&["tune", "study.toml", "--verbose"]);
    assert!(tuned.stderr.contains("KeyError: "), "{}", tuned.stderr);
    let mut printed = vec![dry.stdout, dry.stderr, tuned.stdout, tuned.stderr];
    for arguments in [
        &["trials"][..],
        &["trials", "--format", "json"],
        &["trials", "--format", "csv"],
        &["show", "0"],
        &["show", "0", "--format", "json"],
        &["best"],
        &["export", "--format", "sh", "--trial", "0"],
        &["export", "--format", "json", "--trial", "0"],
        &["doctor", "study.toml"],
        &["check", "study.toml"],
    ] {
        let ended = workplace.run(arguments);
        printed.extend([ended.stdout, ended.stderr]);
    }
    for text in &printed {
        let is_raw = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        assert!(!text.contains(is_raw), "{text:?}");
        assert!(!text.contains(PASSWORD) && !text.contains(KEY), "{text}");
    }
    let database = std::fs::read(workplace.path("setpoint.db")).unwrap();
    for secret in [PASSWORD, KEY] {
        assert!(!database.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()), "{secret} is stored");
    }
    let mut found = Vec::new();
    modes(&workplace.path("setpoint.db.logs"), &mut found);
    let of =
        |name: &str| (name.to_owned(), std::fs::metadata(workplace.path(name)).unwrap().permissions().mode() & 0o777);
    found.extend(["setpoint.db", "setpoint.db.logs"].map(of));
    assert!(found.len() > 4, "{found:?}");
    for (path, mode) in found {
        assert_eq!(mode & 0o077, 0, "{path} has mode {mode:o}");
    }
}
