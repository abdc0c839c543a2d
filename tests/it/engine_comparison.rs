//! Studies that compare engines.

use super::support::{Workplace, root};

/// Two simulated engines with the same space. The second one computes on a slower device.
fn comparison(budget: &str) -> String {
    let model = root().join("examples/models/qwen3-8b");
    let entry = |name: &str, device: &str| {
        format!(
            r#"
[[engines]]
name = "{name}"
[engines.engine]
kind = "sim"
args = ["--sim-time-scale", "20", "--sim-startup-s", "0.02", "--sim-noise", "0.005", "--sim-device", "{device}"]
startup_timeout = "20s"
stop_timeout = "5s"
[engines.model]
path = "{}"
[engines.space]
fixed = {{ max-model-len = 2048 }}
[engines.space.parameters]
max-num-seqs = {{ kind = "int", scale = "pow2", low = 4, high = 16 }}
"#,
            model.display()
        )
    };
    format!(
        r#"
[study]
name = "pair"
seed = 3

[workload]
kind = "random"
input_len = 32
output_len = 8

[load]
concurrency = 8
requests = 16
warmup = 4
request_timeout = "10s"

[objective]
maximize = "output_throughput"

[budget]
repeat_baseline = 0
{budget}
{}{}"#,
        entry("fast", "h100"),
        entry("slow", "l4")
    )
}

#[test]
fn the_better_engine_wins_and_the_other_one_gets_fewer_launches() {
    let workplace = Workplace::with_study(&comparison("trials = 24\nconfirm = 1"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(tuned.stdout.contains("comparison pair: fast is better than slow by "), "{}", tuned.stdout);
    assert!(tuned.stdout.contains(" rounds in turn)"), "{}", tuned.stdout);
    assert!(tuned.stdout.contains("study pair-fast"), "the card of the winner's study: {}", tuned.stdout);
    let trials = |study: &str| workplace.json(&["trials", "--study", study, "--format", "json"]);
    let count = |study: &str, origin: &str| {
        trials(study).as_array().unwrap().iter().filter(|trial| trial["proposed_by"] == origin).count()
    };
    let all = |study: &str| trials(study).as_array().unwrap().len();
    assert!(all("pair-slow") < all("pair-fast"), "{}", tuned.stderr);
    assert!(count("pair-slow", "turn") >= 2, "its winner was launched in turn");
    assert_eq!((count("pair-fast", "confirmation"), count("pair-slow", "confirmation")), (2, 0), "one is confirmed");

    let compared = workplace.run(&["compare", "pair-slow:best", "pair-fast:best"]);
    assert_eq!(compared.code, Some(0), "{}", compared.stderr);
}

#[test]
fn a_check_and_a_dry_run_show_each_engine() {
    let workplace = Workplace::with_study(&comparison("trials = 24"));
    let checked = workplace.run(&["check", "study.toml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(checked.stdout.contains("engine fast\n") && checked.stdout.contains("engine slow\n"), "{}", checked.stdout);
    let json = workplace.json(&["check", "study.toml", "--format", "json"]);
    assert!(json["engines"]["fast"].is_object() && json["engines"]["slow"].is_object());
    let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
    assert_eq!(dry.code, Some(0), "{}", dry.stderr);
    assert!(dry.stdout.contains("--sim-device l4") && dry.stdout.contains("--sim-device h100"), "{}", dry.stdout);
    let other = workplace.run(&["predict", "study.toml"]);
    assert!(other.stderr.contains("the file compares several engines"), "{}", other.stderr);
}
