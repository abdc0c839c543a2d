//! Renders the guard's comparison of replies as text and as JSON.

use serde_json::{Value as Json, json};

use crate::guard::CheckedReplies;
use crate::study_report::GuardFindings;

/// Returns the lines about the replies of the best configuration and of excluded trials.
#[must_use]
pub(super) fn guard_lines(findings: &GuardFindings) -> Vec<String> {
    let mut lines = Vec::new();
    match (findings.warning(), &findings.winner) {
        (Some(warning), _) => lines.push(format!("warning: {warning}")),
        (None, Some(winner)) => lines.push(format!("replies of the best configuration: {winner}")),
        (None, None) => {}
    }
    if let Some((number, first)) = findings.excluded.first() {
        let (count, noun) = (findings.excluded.len(), if findings.excluded.len() == 1 { "trial" } else { "trials" });
        lines.push(format!(
            "excluded by the guard: {count} {noun}, first trial {number}: {first}; a lower guard.min_agreement admits more"
        ));
    }
    lines
}

/// Returns the findings as JSON: the comparison of the best configuration, and the excluded trials.
#[must_use]
pub(super) fn guard_json(findings: &GuardFindings) -> Json {
    let comparison = |checked: &CheckedReplies| json!(checked.comparison);
    let excluded = findings.excluded.iter().map(|(number, checked)| {
        let mut json = comparison(checked);
        if json.is_null() {
            json = json!({});
        }
        json["trial"] = (*number).into();
        json
    });
    json!({
        "winner": findings.winner.as_ref().map_or(Json::Null, comparison),
        "excluded": excluded.collect::<Vec<_>>(),
        "warning": findings.warning(),
    })
}

/// Returns the line about the replies of one trial.
#[must_use]
pub(crate) fn answers_text(checked: &CheckedReplies) -> String {
    format!("replies: {checked}\n")
}
