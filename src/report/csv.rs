//! Trials as CSV: one column for each parameter and metric.

use std::collections::BTreeSet;

use crate::store::Scored;
use crate::trial::Measurement;

/// A header and one line a trial; what a trial does not have is empty.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub fn trials_csv(trials: &[Scored]) -> Result<String, csv::Error> {
    let parameters: BTreeSet<_> =
        trials.iter().flat_map(|scored| scored.trial.config.iter().map(|(name, _)| name)).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let fixed = ["trial", "state", "reason", "value", "feasible", "startup_s", "elapsed_s"];
    writer.write_record(fixed.iter().chain(&parameters).chain(Measurement::NAMES))?;
    let text = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
    for scored in trials {
        let trial = &scored.trial;
        let mut cells = vec![
            trial.number.to_string(),
            trial.outcome.name().to_owned(),
            trial.outcome.reason().unwrap_or_default(),
            text(scored.score.value()),
            scored.score.is_feasible().to_string(),
            text(trial.startup_s),
            trial.elapsed_s.to_string(),
        ];
        cells.extend(parameters.iter().map(|name| trial.config.get(name).map(ToString::to_string).unwrap_or_default()));
        let measurement = trial.outcome.measurement();
        cells.extend(Measurement::NAMES.iter().map(|name| text(measurement.and_then(|m| m.metric(name)))));
        writer.write_record(cells)?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
