//! The program in a reader's shell: completions, manual pages, and the examples of the help.

use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use crate::earlier_databases::workplace_of;
use crate::support::{Workplace, root, say_skipped};

/// Returns the commands of the program, by its own help.
pub(crate) fn commands(workplace: &Workplace) -> Vec<String> {
    let help = workplace.run(&["-h"]).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

/// Runs a script in a workplace, with the program on the PATH. Returns `None` if the shell is not installed.
#[expect(clippy::disallowed_methods, reason = "the shell of a reader")]
fn shell(name: &str, workplace: &Workplace, script: &str) -> Option<Output> {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_setpoint"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(name);
    command.args(["-e", "-c", script]).current_dir(workplace.path(""));
    command.env("PATH", path).env("HOME", workplace.path("home")).env("NO_COLOR", "1").env_remove("SETPOINT_DB");
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            say_skipped(&format!("{name} is not installed"));
            None
        }
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn bash_completes_commands_options_and_values() {
    let workplace = Workplace::new();
    let script = r#"
setpoint completions bash > completions
bash -n completions
source ./completions
complete -p setpoint
# Arguments: the words of a line. The last one is completed.
offer() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _setpoint setpoint "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
}
offer setpoint tu
offer setpoint tune --goal ""
offer setpoint trials --col
offer setpoint sim ""
"#;
    let Some(output) = shell("bash", &workplace, script) else { return };
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = stdout.lines().collect();
    assert!(lines[0].starts_with("complete ") && lines[0].ends_with(" -F _setpoint setpoint"), "{}", lines[0]);
    assert_eq!(lines[1..4], ["tune", "throughput latency balanced goodput", "--columns"]);
    assert!(lines[4].contains("serve") && !lines[4].contains("engine-core"), "{}", lines[4]);
}

/// Scripts of shells that are installed rarely: their own parsers read them.
#[test]
fn other_shells_accept_their_scripts() {
    let workplace = Workplace::new();
    for (name, check) in [("zsh", "zsh -n script"), ("fish", "fish --no-execute script")] {
        let script = format!("setpoint completions {name} > script\n{check}");
        let Some(output) = shell(name, &workplace, &script) else { continue };
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn manual_pages_are_accepted_by_groff() {
    let workplace = Workplace::new();
    let ended = workplace.run(&["man", "pages"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let mut pages: Vec<_> =
        std::fs::read_dir(workplace.path("pages")).unwrap().map(|page| page.unwrap().path()).collect();
    pages.sort();
    let expected = commands(&workplace).len() + 2;
    assert_eq!(pages.len(), expected, "one page for each command, `setpoint` and `sim serve`: {pages:?}");

    let again = workplace.run(&["man", "pages"]);
    assert_eq!(again.code, Some(3), "{}", again.stderr);
    assert!(again.stderr.contains("pages exists and is not an empty folder"), "{}", again.stderr);
    let absent = workplace.run(&["man", "absent/pages"]);
    assert_eq!(absent.code, Some(1), "{}", absent.stderr);
    assert!(absent.stderr.contains("absent/pages") && absent.stderr.contains("hint:"), "{}", absent.stderr);
    assert!(!workplace.path("absent").exists());

    // groff names the file and the line of every warning.
    let Some(output) =
        shell("sh", &workplace, "command -v groff > found || exit 0; groff -man -ww -z -Tutf8 pages/*.1")
    else {
        return;
    };
    if std::fs::read_to_string(workplace.path("found")).unwrap().is_empty() {
        say_skipped("groff is not installed");
    }
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

/// Returns the examples of a help text. Those behind a comment `# with ...` need more than a checkout, and are left out.
fn examples(help: &str) -> Vec<String> {
    let section = help.split_once("\nExamples:\n").map(|(_, section)| section).unwrap_or_default();
    let (mut examples, mut needs_more) = (Vec::<String>::new(), false);
    for line in section.lines().map(|line| line.strip_prefix("  ").unwrap()) {
        match (line.strip_prefix('#'), line.starts_with(' ')) {
            (Some(comment), _) => needs_more = comment.starts_with(" with "),
            (None, true) if !needs_more => examples.last_mut().unwrap().extend(["\n", line]),
            (None, false) if !needs_more => examples.push(line.to_owned()),
            (None, _) => {}
        }
    }
    examples
}

/// Commands whose examples only the unit tests parse, with the test that runs such a line.
const RUN_ELSEWHERE: [(&str, &str); 4] = [
    ("tune", "documentation: a study takes a minute"),
    ("sim", "documentation: an engine does not end"),
    ("predict", "predict, documentation"),
    ("importance", "importance, documentation"),
];

/// The recorded study takes the place of `quickstart`, whose run would take a minute.
#[test]
fn the_examples_of_the_help_run() {
    let workplace = workplace_of(13);
    let rename =
        "UPDATE studies SET name = 'quickstart' WHERE name = 'night'; DELETE FROM studies WHERE name <> 'quickstart'";
    crate::support::query::<(i64,)>(&workplace, rename);
    std::fs::remove_file(workplace.path("study.toml")).unwrap();
    for folder in ["examples", "search_spaces"] {
        symlink(root().join(folder), workplace.path(folder)).unwrap();
    }
    for folder in
        [".local/share/bash-completion/completions", ".local/share/man/man1", ".zfunc", ".config/fish/completions"]
    {
        std::fs::create_dir_all(workplace.path("home").join(folder)).unwrap();
    }
    let mut ran = 0;
    for command in commands(&workplace) {
        if RUN_ELSEWHERE.iter().any(|(name, _)| *name == command) {
            continue;
        }
        for example in examples(&workplace.run(&[&command, "--help"]).stdout) {
            let output = shell("sh", &workplace, &example).unwrap();
            // `doctor` fails without an engine.
            let is_expected = output.status.success() || command == "doctor" && output.status.code() == Some(1);
            let text =
                [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            assert!(is_expected, "{example}: {}\n{text}", output.status);
            ran += 1;
        }
    }
    assert!(ran >= 28, "{ran} examples ran");
}
