//! The variables of the page that compares two studies by their winners.

use serde_json::{Value as Json, json};

use super::StudyDocument;
use crate::report::comparison::{metric_row, value_text};
use crate::study_report::{ComparedMetric, ConfigurationComparison};

/// Returns the variables of the comparison's template. `winners` is absent if one of the studies has no winner.
///
/// # Errors
/// Never in practice: all keys are strings.
pub(crate) fn studies_comparison(
    documents: [&StudyDocument; 2],
    winners: Option<&ConfigurationComparison>,
) -> Result<Json, serde_json::Error> {
    let names = documents.map(|document| document.study.name.as_str());
    let row = |metric: &&ComparedMetric| {
        let cells = metric_row(metric);
        json!({"name": cells[0], "a": cells[1], "b": cells[2], "change": cells[3], "is_better": metric.is_better()})
    };
    let rows: Vec<_> = winners.iter().flat_map(|winners| winners.usual_metrics()).map(|metric| row(&metric)).collect();
    let changes = winners.iter().flat_map(|winners| &winners.changes);
    let flags: Vec<_> = changes
        .map(|change| {
            let [a, b] = change.values.each_ref().map(|value| value_text(value.as_ref()));
            json!({"name": change.name, "a": a, "b": b})
        })
        .collect();
    let without = documents.into_iter().filter(|document| document.winner.is_none());
    let without =
        without.map(|document| format!("study {} has no winner: {}", document.study.name, document.verdict.text));
    let warnings: Vec<String> = winners.iter().flat_map(|winners| winners.warnings.clone()).chain(without).collect();
    let documents = documents
        .into_iter()
        .map(|document| Ok(json!({"name": document.study.name, "document": document.to_json()?})))
        .collect::<Result<Vec<_>, serde_json::Error>>()?;
    let mut variables = json!({
        "a": names[0],
        "b": names[1],
        "comparison": {
            "title": format!("{} and {}", names[0], names[1]),
            "rows": rows,
            "flags": flags,
            "warnings": warnings,
        },
    });
    super::remove_controls(&mut variables);
    variables["documents"] = documents.into();
    Ok(variables)
}
