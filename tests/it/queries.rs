//! `best`, `trials` and `compare` on a database of several studies, recorded in `tests/fixtures/databases`.
//!
//! The measured trials of its study `night` are
//!
//! | trial | `max-num-seqs` | output throughput | p99 time to first token |
//! |---|---|---|---|
//! | 0 | default | 3371.9 | 16.28 |
//! | 1 | 1 | 2337.9 | 42.58 |
//! | 2 | 8 | 1468.3 | 37.44 |
//! | 3 | 4 | 4130.4 | 14.32 |
//! | 4 | 4 | 3574.5 | 18.60 |

use serde_json::{Value as Json, json};

use super::earlier_databases::workplace_of;
use super::support::Workplace;

/// Returns the database of the recording.
fn recorded() -> Workplace {
    workplace_of(13)
}

/// Runs a question to `night` and returns its answer as JSON.
fn ask(workplace: &Workplace, arguments: &[&str]) -> Json {
    workplace.json(&[arguments, &["--study", "night", "--format", "json"]].concat())
}

fn trials_of(rows: &Json) -> Vec<i64> {
    rows.as_array().unwrap().iter().map(|row| row["trial"].as_i64().unwrap()).collect()
}

#[test]
fn a_front_has_the_configurations_that_no_other_one_beats_in_all_metrics() {
    let workplace = recorded();
    let front = |metrics: &str| trials_of(&ask(&workplace, &["best", "--pareto", metrics])["front"]);
    assert_eq!(front("output_throughput,p99_ttft_ms"), [3], "trial 3 has the best of both");
    assert_eq!(front("output_throughput,max:p99_ttft_ms"), [3, 4, 1]);
    let one = workplace.run(&["best", "--study", "night", "--pareto", "output_throughput"]);
    assert_eq!(one.code, Some(2), "{}", one.stderr);
}

#[test]
fn trials_are_filtered_by_flags_and_metrics_and_sorted() {
    let workplace = recorded();
    let listed = |arguments: &[&str]| trials_of(&ask(&workplace, &[&["trials"], arguments].concat()));
    let four = ["--where", "max-num-seqs >= 4", "--sort", "output_throughput"];
    assert_eq!(listed(&four), [2, 4, 3], "the defaults set no max-num-seqs");
    assert_eq!(listed(&[&four[..], &["--where", "p99_ttft_ms < 20"]].concat()), [4, 3]);
    assert_eq!(listed(&["--sort", "p99_ttft_ms:desc", "--first", "2"]), [1, 2]);
    let unknown = workplace.run(&["trials", "--study", "night", "--where", "p99_ttft < 20"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("p99_ttft_ms"), "{}", unknown.stderr);
}

#[test]
fn trials_of_two_studies_are_compared() {
    let workplace = recorded();
    let compare = |first: &str, second: &str| workplace.json(&["compare", first, second, "--format", "json"]);
    let compared = compare("night:best", "paused:baseline");
    let side = |name: &str| (compared[name]["study"].clone(), compared[name]["trial"].clone());
    assert_eq!((side("a"), side("b")), (("night".into(), 3.into()), ("paused".into(), 0.into())));
    let flags = json!([
        {"flag": "max-num-batched-tokens", "a": 256, "b": null},
        {"flag": "max-num-seqs", "a": 4, "b": null},
    ]);
    assert_eq!((&compared["flags"], &compared["equal_flags"]), (&flags, &1.into()));
    let metrics = compared["metrics"].as_array().unwrap();
    let throughput = metrics.iter().find(|metric| metric["metric"] == "output_throughput").unwrap();
    let mean = |side: &str| throughput[side]["mean"].as_f64().unwrap().round();
    assert_eq!((mean("a"), mean("b")), (4130.0, 2283.0));
    assert!(throughput["significant"].is_null(), "each was measured once: {throughput}");
    assert_eq!(compare("night:3", "paused:0"), compared, "numbers name the same trials");

    let absent = workplace.run(&["compare", "night:9", "paused:0"]);
    assert_eq!(absent.code, Some(3), "{}", absent.stderr);
    let unnamed = workplace.run(&["compare", "3", "4"]);
    assert_eq!(unnamed.code, Some(2), "{}", unnamed.stderr);
    assert!(unnamed.stderr.contains("night") && unnamed.stderr.contains("paused"), "{}", unnamed.stderr);
}
