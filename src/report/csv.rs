//! Writes trials as CSV: one column for each parameter and metric.

use std::collections::BTreeSet;

use super::configuration_results::order_text;
use crate::store::{ExpectedConfiguration, ScoredTrial};
use crate::study_report::RankingPlace;
use crate::trial::Measurement;

/// Columns of [`trials_csv`] that mark trials whose values are not comparable with others.
const COMPARABILITY_COLUMNS: [&str; 2] = ["earlier_context", "disturbed"];

/// Writes a header and one line for each trial. A missing value is empty.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub(crate) fn trials_csv(trials: &[ScoredTrial], is_earlier: impl Fn(u32) -> bool) -> Result<String, csv::Error> {
    let marks = |scored: &ScoredTrial| {
        [is_earlier(scored.trial.proposal.number), scored.is_disturbed()].map(|mark| mark.to_string())
    };
    with_columns(trials.iter().map(|scored| (scored, marks(scored))), COMPARABILITY_COLUMNS)
}

/// The columns of `ranking_csv` after those of the configuration's first trial.
const RANKING_COLUMNS: [&str; 8] = [
    "mean_value",
    "measurements",
    "value_low",
    "value_high",
    "expected_value",
    "expected_deviation",
    "expected_feasible",
    "order_reason",
];

/// Writes a header and one line for each configuration, best first. The first columns are those of [`trials_csv`] for
/// the configuration's first trial, so `value` and the metrics are of one measurement. The columns `RANKING_COLUMNS` follow.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub(crate) fn ranking_csv(ranking: &[RankingPlace]) -> Result<String, csv::Error> {
    let row = |RankingPlace { results: standing, rank_reason: order }: &RankingPlace| {
        let ranked = &standing.ranked;
        let expected = |of: &dyn Fn(ExpectedConfiguration) -> f64| text(ranked.expected.map(of));
        [
            ranked.value.to_string(),
            ranked.measurements.to_string(),
            ranked.range.0.to_string(),
            ranked.range.1.to_string(),
            expected(&|expected| expected.value),
            expected(&|expected| expected.deviation),
            expected(&|expected| expected.feasible),
            order_text(order),
        ]
    };
    with_columns(ranking.iter().map(|place| (&place.results.ranked.first, row(place))), RANKING_COLUMNS)
}

fn text(number: Option<f64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

/// Writes one line for each trial. `further` are the headers of the cells that each row adds.
fn with_columns<'a, const N: usize>(
    rows: impl Iterator<Item = (&'a ScoredTrial, [String; N])>,
    further: [&str; N],
) -> Result<String, csv::Error> {
    let rows: Vec<_> = rows.collect();
    let parameters: BTreeSet<_> =
        rows.iter().flat_map(|(scored, _)| scored.trial.proposal.config.iter().map(|(name, _)| name)).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let fixed = ["trial", "state", "reason", "value", "feasible", "startup_s", "elapsed_s"];
    // Newer columns come last, so that the others keep their places.
    let header = fixed.iter().chain(&parameters).chain(Measurement::NAMES).chain(&["proposed_by"]).chain(&further);
    let header = header.chain(&["measured_by"]);
    writer.write_record(header)?;
    for (scored, further) in rows {
        let trial = &scored.trial;
        let mut cells = vec![
            trial.proposal.number.to_string(),
            trial.outcome.name().to_owned(),
            trial.outcome.reason().unwrap_or_default(),
            text(scored.score.value()),
            scored.score.is_feasible().to_string(),
            text(trial.startup_s),
            trial.elapsed_s.to_string(),
        ];
        cells.extend(
            parameters.iter().map(|name| trial.proposal.config.get(name).map(ToString::to_string).unwrap_or_default()),
        );
        let measurement = trial.outcome.measurement();
        cells.extend(Measurement::NAMES.iter().map(|name| text(measurement.and_then(|m| m.metric(name)))));
        // Readers need the origin: an interference trial is no measurement of the defaults alone.
        cells.push(trial.proposal.origin.to_string());
        cells.extend(further);
        cells.push(trial.measured_by().name().to_owned());
        writer.write_record(cells)?;
    }
    text_of(writer)
}

/// Returns the text that a writer over a buffer has written.
pub(super) fn text_of(writer: csv::Writer<Vec<u8>>) -> Result<String, csv::Error> {
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::objective::Score;
    use crate::store::RankedConfiguration;
    use crate::study_report::{ConfigurationResults, RankReason};
    use crate::trial::{Outcome, Trial};

    #[test]
    fn who_proposed_a_trial_and_whether_it_can_be_compared_are_its_last_columns() {
        let config = Config::new().with("max-num-seqs", 8_i64);
        let outcome = Outcome::Measured(Measurement::default());
        let trial = Trial::example(3, "interference", outcome).with_config(config);
        let csv =
            trials_csv(&[ScoredTrial { trial, score: Score::Feasible { value: 7.0 } }], |number| number == 3).unwrap();
        let [header, row] = csv.lines().collect::<Vec<_>>()[..] else { panic!("{csv}") };
        assert!(
            header.starts_with("trial,state,")
                && header.ends_with(",proposed_by,earlier_context,disturbed,measured_by"),
            "{header}"
        );
        assert!(row.starts_with("3,measured,") && row.ends_with(",interference,true,false,plain_launch"), "{row}");
        assert_eq!(header.matches(',').count(), row.matches(',').count());
    }

    #[test]
    fn a_ranking_has_the_mean_beside_the_single_measurement() {
        let trial = Trial::example(3, "auto", Outcome::Measured(Measurement::default()));
        let first = ScoredTrial { trial, score: Score::Feasible { value: 4956.0 } };
        let (trials, range) = (vec![3, 4], (4255.0, 4956.0));
        let ranked = RankedConfiguration {
            first,
            trials,
            value: 4605.5,
            measurements: 2,
            range,
            expected: None,
            is_confirmed: false,
        };
        let standing = ConfigurationResults { ranked, measured_trials: Vec::new() };
        let csv = ranking_csv(&[RankingPlace { results: standing, rank_reason: RankReason::Mean }]).unwrap();
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let header = reader.headers().unwrap().clone();
        let row = reader.records().next().unwrap().unwrap();
        let cell = |name: &str| row.get(header.iter().position(|column| column == name).unwrap()).unwrap().to_owned();
        let cells = ["value", "mean_value", "measurements", "value_low", "value_high", "expected_value"].map(cell);
        assert_eq!(cells, ["4956", "4605.5", "2", "4255", "4956", ""]);
        assert_eq!(cell("order_reason"), "by the mean of its measurements");
    }
}
