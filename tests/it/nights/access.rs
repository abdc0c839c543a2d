//! Nights with API keys and names: right ones, and ones that the server rejects.

use super::{BUDGET, Night, PAID, blames_nobody, ends, engine, nothing_is_lost, paid, told};
use crate::support::{Workplace, study_with};

const KEY: &str = "hush-hush-4711";

/// Gives the engine another key than the study has. The `$` splits the variable's name, so that the study does not seem
/// to state a key itself.
const ANOTHER_KEY: &str = "k=VLLM_API; export \"$k\"_KEY=another";

const OTHER_NAME: &str = "fault other-model:name=somebody";

pub(super) fn nights() -> Vec<Night> {
    let pauses = [
        ("a key that is refused", ANOTHER_KEY.to_owned(), "no configuration has worked yet"),
        ("a key that is changed at night", format!("[ $n -le 2 ] || {{ {ANOTHER_KEY}; }}"), "this was the probe"),
        ("a wrong name", OTHER_NAME.to_owned(), "no configuration has worked yet"),
        ("a name that is changed at night", format!("[ $n -le 2 ] || {OTHER_NAME}"), "this was the probe"),
    ];
    let pauses = pauses.map(|(name, trouble, says)| Night::new(name, move |name| pauses_soon(name, &trouble, says)));
    let whole = [
        ("a right key", "true", &[][..]),
        ("two names", "true", &["one", "two"]),
        ("two names of which the server knows the second", "set -- \"$@\" --served-model-name two", &["one", "two"]),
    ];
    let whole = whole.map(|(name, trouble, names)| Night::new(name, move |name| is_measured(name, trouble, names)));
    pauses.into_iter().chain(whole).collect()
}

fn place(trouble: &str, names: &[&str]) -> Workplace {
    let engine = format!("{}\nenv = {{ VLLM_API_KEY = \"{KEY}\" }}", engine(trouble));
    let words = names.iter().fold(String::new(), |words, name| format!("{words}, \"{name}\""));
    let words = if names.is_empty() { words } else { format!(", \"--served-model-name\"{words}") };
    let noise = r#""--sim-noise", "0""#;
    Workplace::with_study(&study_with(&engine, BUDGET).replace(noise, &format!("{noise}{words}")))
}

fn is_measured(name: &str, trouble: &str, names: &[&str]) {
    let workplace = place(trouble, names);
    let run = workplace.run(&["tune", "study.toml"]);
    let trials = ends(name, &workplace, &run, 0, "");
    blames_nobody(name, &trials);
    assert_eq!(paid(&trials), PAID, "{name}: {:?}", told(&trials));
    nothing_is_lost(name, &workplace, &[], &trials);
    assert!(!run.stderr.contains(KEY) && !run.stdout.contains(KEY), "{name}: {}", run.stderr);
}

/// Checks that the study pauses after a few launches, and that each of them is repeated once the server matches the
/// study.
fn pauses_soon(name: &str, trouble: &str, says: &str) {
    let workplace = place(trouble, &[]);
    let paused = workplace.run(&["tune", "study.toml"]);
    let before = ends(name, &workplace, &paused, 5, says);
    let (reason, hint) = if trouble.contains(ANOTHER_KEY) {
        ("the server requires another API key; set VLLM_API_KEY", "hint: check in the log with which API key")
    } else {
        ("the server serves [\"somebody\"], not ", "hint: use `ss -ltnp` to find the program that answers")
    };
    assert!(paused.stderr.contains(reason) && paused.stderr.contains(hint), "{name}: {}", paused.stderr);
    assert!(!paused.stderr.contains(KEY), "{name}: {}", paused.stderr);
    blames_nobody(name, &before);
    let launches = std::fs::read_to_string(workplace.path("launches")).unwrap().lines().count();
    assert!(launches <= before.len() + 4, "{name}: {launches} launches\n{}", paused.stderr);
    workplace.write("mended", "");
    let after = ends(name, &workplace, &workplace.run(&["tune", "study.toml"]), 0, "");
    blames_nobody(name, &after);
    assert_eq!(paid(&after), PAID, "{name}: {:?}", told(&after));
    nothing_is_lost(name, &workplace, &before, &after);
}
