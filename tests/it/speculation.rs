//! Speculative decoding as a dimension of a study.

use crate::support::{Workplace, study_with};

#[test]
fn the_acceptance_of_drafts_is_stored_and_a_load_that_flatters_them_is_reported() {
    let text = study_with("", "trials = 2\nconfirm = 0")
        // Slow enough for samples of the server within the window.
        .replace("\"--sim-time-scale\", \"200\"", "\"--sim-time-scale\", \"1\", \"--sim-acceptance-rate\", \"1\"")
        .replace("output_len = 8", "output_len = 96");
    let (before, after) = text.split_once("[workload]").unwrap();
    let space = "[space]\n[space.parameters.spec-method]\nkind = \"categorical\"\nchoices = [\"ngram\"]\n\
                 [space.parameters.spec-tokens]\nkind = \"categorical\"\nchoices = [3]\n";
    let before = before.split_once("[space]").unwrap().0;
    let workplace = Workplace::with_study(&format!("{before}{space}[workload]{after}"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let warning = "random tokens and forced reply lengths flatter the drafts of spec-method";
    assert!(tuned.stderr.contains(warning), "{}", tuned.stderr);
    let summary = |trial: &str| workplace.json(&["show", trial, "--format", "json"])["telemetry"]["summary"].clone();
    assert!(summary("0").get("draft_acceptance_rate").is_none(), "the defaults do not speculate");
    let drafting = summary("1");
    assert_eq!(drafting["draft_acceptance_rate"].as_f64(), Some(1.0), "{drafting}");
    // One token of the model and three drafts in each step, except at the end of a reply.
    let length = drafting["mean_acceptance_length"].as_f64().unwrap();
    assert!((3.5..=4.0).contains(&length), "{length}");
    let best = workplace.json(&["best", "--format", "json"]);
    assert!(best["draft_bias"].as_str().is_some_and(|text| text.starts_with(warning)), "{}", best["draft_bias"]);
}
