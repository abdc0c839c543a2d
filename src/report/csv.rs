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
    // Columns that came later are the last, so that the others keep their places.
    let header = fixed.iter().chain(&parameters).chain(Measurement::NAMES).chain(&["proposed_by"]);
    writer.write_record(header)?;
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
        // The defaults beside themselves are no measurement of the defaults.
        cells.push(trial.proposed_by.clone());
        writer.write_record(cells)?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::objective::Score;
    use crate::trial::{Outcome, Trial};

    #[test]
    fn who_proposed_a_trial_is_its_last_column() {
        let config = Config::new().with("max-num-seqs", 8_i64);
        let outcome = Outcome::Measured(Measurement::default());
        let trial = Trial { config, ..Trial::example(3, "interference", outcome) };
        let csv = trials_csv(&[Scored { trial, score: Score::Feasible { value: 7.0 } }]).unwrap();
        let [header, row] = csv.lines().collect::<Vec<_>>()[..] else { panic!("{csv}") };
        assert!(header.starts_with("trial,state,") && header.ends_with(",proposed_by"), "{header}");
        assert!(row.starts_with("3,measured,") && row.ends_with(",interference"), "{row}");
        assert_eq!(header.matches(',').count(), row.matches(',').count());
    }
}
