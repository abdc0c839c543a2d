//! Configurations with all their measurements, ranked. [`rank`] documents the rules of the ranking.

use std::collections::BTreeSet;

use super::{ExpectedConfiguration, ScoredTrial, Store, StoreError, StoredJudgement, Study};
use crate::objective::{ConfigValue, Constraint, Goal, LaunchResult, LaunchedTrial, Score, config_value, rank};
use crate::trial::{FailureKind, Origin, is_configuration_failure};

/// A configuration with all its measurements. It is infeasible if one of them exceeds a limit, or if the configuration
/// is the cause of a further launch's failure.
#[derive(Clone, Debug)]
pub struct RankedConfiguration {
    /// The trial of its first measurement.
    pub first: ScoredTrial,
    /// Numbers of its measured trials, ascending.
    pub trials: Vec<u32>,
    /// Mean of the objective over its measurements, or the value of the confirmation if `is_confirmed`.
    pub value: f64,
    pub is_confirmed: bool,
    pub measurements: u32,
    /// The smallest and the largest of the measured values.
    pub range: (f64, f64),
    /// The estimate by the sampler's judgement, if there is one.
    pub expected: Option<ExpectedConfiguration>,
}

impl RankedConfiguration {
    /// Replaces the value by that of the confirmation, if it has one. The search's own measurements of a winner are
    /// partly lucky.
    #[must_use]
    pub fn with_confirmed(self, confirmed: Option<f64>) -> Self {
        Self { value: confirmed.unwrap_or(self.value), is_confirmed: confirmed.is_some(), ..self }
    }

    /// Returns whether the measured ranges do not overlap. One measurement alone has no spread to compare.
    #[must_use]
    pub fn is_disjoint_from(&self, other: &Self) -> bool {
        self.measurements > 1
            && other.measurements > 1
            && (self.range.0 > other.range.1 || other.range.0 > self.range.1)
    }
}

/// The order of the leading configurations: the confirmed winner, then those of the judgement's ranking, then the others
/// by their means.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaderOrder<'a> {
    pub judgement: Option<&'a StoredJudgement>,
    /// The identifier of the confirmed winner.
    pub winner: Option<&'a str>,
}

/// Number, origin, configuration, value and violation of a measured trial.
type MeasuredRow = (u32, String, String, Option<f64>, Option<f64>);

/// Number, origin, configuration, kind of failure and probe of a failed trial.
type FailedRow = (u32, String, String, Option<String>, Option<u32>);

fn to_launched_trial((number, origin, config_key, value, violation): MeasuredRow) -> LaunchedTrial {
    let result = LaunchResult::Measured(Score::from_stored(value, violation));
    LaunchedTrial { number, origin: Origin::from_name(origin), config_key, result }
}

fn to_failed_trial((number, origin, config_key, kind, probe): FailedRow) -> LaunchedTrial {
    let kind = kind.and_then(|name| FailureKind::from_name(&name)).unwrap_or(FailureKind::StartupExit);
    let result = LaunchResult::Failed { is_own: is_configuration_failure(kind, probe) };
    LaunchedTrial { number, origin: Origin::from_name(origin), config_key, result }
}

macro_rules! launched {
    ($columns:literal, $state:literal) => {
        concat!(
            "SELECT number, proposed_by, config, ",
            $columns,
            " FROM trials WHERE study_id = ? AND accepted_changes = ? AND server_of IS NULL AND state = '",
            $state,
            "'"
        )
    };
}

/// The queries for all trials of a context, and for those of one configuration.
const MEASURED: [&str; 2] =
    [launched!("value, violation", "measured"), concat!(launched!("value, violation", "measured"), " AND config = ?")];
const FAILED: [&str; 2] =
    [launched!("reason_code, probe", "failed"), concat!(launched!("reason_code, probe", "failed"), " AND config = ?")];

/// A selection of launched trials: those of one context, optionally of one configuration.
struct Selection {
    context: i64,
    config_key: Option<String>,
}

impl Store {
    /// Returns the best feasible configurations of the study's present context, best first, at most `most`.
    pub async fn best(&self, study: &Study, goal: Goal, most: u32) -> Result<Vec<RankedConfiguration>, StoreError> {
        self.leading_configurations(study, goal, None, most).await
    }

    /// Like [`best`](Self::best), but configurations in the ranking of `judgement` come first, in its order. The best of
    /// many single measurements is mostly a lucky one; the best expectation is not.
    pub async fn leading_configurations(
        &self,
        study: &Study,
        goal: Goal,
        judgement: Option<&StoredJudgement>,
        most: u32,
    ) -> Result<Vec<RankedConfiguration>, StoreError> {
        self.leading_configurations_within(study, goal, LeaderOrder { judgement, winner: None }, &[], most).await
    }

    /// Like [`leading_configurations`](Self::leading_configurations), of the configurations that also keep `limits` in
    /// all of their measurements.
    pub async fn leading_configurations_within(
        &self,
        study: &Study,
        goal: Goal,
        order: LeaderOrder<'_>,
        limits: &[Constraint],
        most: u32,
    ) -> Result<Vec<RankedConfiguration>, StoreError> {
        let judged = order.judgement.map_or(&[][..], |judgement| &judgement.ranking);
        let place = |first: u32| judged.iter().position(|expected| expected.trial == first);
        let launched = self.launched_within(study, limits).await?;
        let is_of_winner = |trial: &&LaunchedTrial| order.winner == Some(trial.config_key.as_str());
        let winners: BTreeSet<u32> = launched.iter().filter(is_of_winner).map(|trial| trial.number).collect();
        let mut ranked = rank(&launched, goal);
        ranked.sort_by_key(|config| (!winners.contains(&config.first), place(config.first).unwrap_or(usize::MAX)));
        let mut leaders = Vec::new();
        for config in ranked.into_iter().take(most as usize) {
            let expected = place(config.first).map(|place| judged[place]);
            leaders.extend(
                self.load_ranked(study, config).await?.map(|ranked| RankedConfiguration { expected, ..ranked }),
            );
        }
        Ok(leaders)
    }

    /// Returns the launched trials of the study's present context. A measurement that exceeds one of `limits`, or lacks
    /// its metric, is infeasible.
    pub async fn launched_within(
        &self,
        study: &Study,
        limits: &[Constraint],
    ) -> Result<Vec<LaunchedTrial>, StoreError> {
        let context = self.present_context(study).await?;
        let mut trials = self.launched_trials(study, &Selection { context, config_key: None }).await?;
        if limits.is_empty() {
            return Ok(trials);
        }
        let names: Vec<_> = limits.iter().map(|limit| limit.metric.as_str()).collect();
        let values = self.metric_values(study, &names)?;
        for trial in &mut trials {
            let LaunchResult::Measured(score) = &mut trial.result else { continue };
            let measured = values.get(&trial.number);
            let excess = |(index, limit): (usize, &Constraint)| limit.violation_of(measured.and_then(|row| row[index]));
            *score = score.with_further_violation(limits.iter().enumerate().map(excess).sum());
        }
        Ok(trials)
    }

    /// Returns the engine's defaults with all their measurements in the study's present context; `None` if there are
    /// none.
    pub async fn baseline(&self, study: &Study) -> Result<Option<RankedConfiguration>, StoreError> {
        let Some((config_key, _)) = self.config_and_context(study, 0).await? else { return Ok(None) };
        let context = self.present_context(study).await?;
        self.ranked_configuration(study, context, config_key).await
    }

    /// Returns a trial's configuration with all its measurements in the trial's own context; `None` if there are none.
    pub async fn measurements_of(&self, study: &Study, number: u32) -> Result<Option<RankedConfiguration>, StoreError> {
        let Some((config_key, context)) = self.config_and_context(study, number).await? else { return Ok(None) };
        self.ranked_configuration(study, context, config_key).await
    }

    pub(super) async fn ranked_configuration(
        &self,
        study: &Study,
        context: i64,
        config_key: String,
    ) -> Result<Option<RankedConfiguration>, StoreError> {
        let selection = Selection { context, config_key: Some(config_key.clone()) };
        match config_value(&self.launched_trials(study, &selection).await?, &config_key) {
            Some(config) => self.load_ranked(study, config).await,
            None => Ok(None),
        }
    }

    /// Returns the configuration of a trial and the number of its context.
    async fn config_and_context(&self, study: &Study, number: u32) -> Result<Option<(String, i64)>, StoreError> {
        let query = "SELECT config, accepted_changes FROM trials WHERE study_id = ? AND number = ?";
        let query = sqlx::query_as(query).bind(study.id).bind(number);
        query.fetch_optional(&self.pool).await.map_err(|error| self.error(error))
    }

    /// Returns the number of the study's present context.
    pub(super) async fn present_context(&self, study: &Study) -> Result<i64, StoreError> {
        let query = sqlx::query_scalar("SELECT accepted_changes FROM studies WHERE id = ?").bind(study.id);
        query.fetch_one(&self.pool).await.map_err(|error| self.error(error))
    }

    /// Reads launched trials. Two narrow queries over an index take half the time of one with the columns of both,
    /// because the transfer of values dominates.
    async fn launched_trials(&self, study: &Study, selection: &Selection) -> Result<Vec<LaunchedTrial>, StoreError> {
        let measured_rows: Vec<MeasuredRow> = self.rows(study, selection, MEASURED).await?;
        let failed_rows: Vec<FailedRow> = self.rows(study, selection, FAILED).await?;
        let mut trials: Vec<_> = measured_rows.into_iter().map(to_launched_trial).collect();
        trials.extend(failed_rows.into_iter().map(to_failed_trial));
        trials.sort_unstable_by_key(|trial| trial.number);
        Ok(trials)
    }

    async fn rows<R>(
        &self,
        study: &Study,
        selection: &Selection,
        [all, of_config]: [&'static str; 2],
    ) -> Result<Vec<R>, StoreError>
    where
        R: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow> + Send + Unpin,
    {
        let query = match &selection.config_key {
            None => sqlx::query_as(all).bind(study.id).bind(selection.context),
            Some(config_key) => sqlx::query_as(of_config).bind(study.id).bind(selection.context).bind(config_key),
        };
        query.fetch_all(&self.pool).await.map_err(|error| self.error(error))
    }

    /// Reads the first trial of a ranked configuration.
    pub async fn load_ranked(
        &self,
        study: &Study,
        config: ConfigValue,
    ) -> Result<Option<RankedConfiguration>, StoreError> {
        let ConfigValue { first, trials, mean: value, lowest, highest } = config;
        let Some(first) = self.trial(study, first).await? else { return Ok(None) };
        let measurements = u32::try_from(trials.len()).unwrap_or(u32::MAX);
        let range = (lowest, highest);
        Ok(Some(RankedConfiguration { first, trials, value, measurements, range, expected: None, is_confirmed: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::facts::Host;
    use crate::trial::{Failure, Measurement, Outcome, Trial};

    /// A random trial: its configuration, origin, failure, whether it failed or exceeded a limit, and its value.
    type RandomTrial = (i64, usize, usize, u8, i32);

    /// Returns first trial, mean and number of measurements of each configuration, by the view and by the program.
    async fn rankings(trials: &[RandomTrial]) -> [Vec<(u32, f64, u32)>; 2] {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        let origins =
            ["baseline", "auto", "confirmation", "interference", "probe", "rule_test", "sobol", "deployment", "start"];
        for (number, (config, origin, kind, end, value)) in (0..).zip(trials) {
            let value = f64::from(*value);
            let measured = Outcome::Measured(Measurement::default());
            let failure = Failure { kind: FailureKind::ALL[kind % FailureKind::ALL.len()], message: String::new() };
            let (outcome, score) = match end {
                0 => (Outcome::Failed(failure), Score::Failed),
                1 => (measured, Score::Infeasible { violation: 0.5, value }),
                _ => (measured, Score::Feasible { value }),
            };
            let trial = Trial::example(number, origins[*origin], outcome);
            let trial = trial.with_config(Config::new().with("a", *config));
            store.append(study.id, &trial, score).await.unwrap();
            if end == &0 && kind % 2 == 0 {
                store.blame_configurations(study.id, &[number], 99).await.unwrap();
            }
        }
        let query = "SELECT trial, mean_value, measurements FROM v_best ORDER BY mean_value DESC, trial";
        let view = sqlx::query_as(query).fetch_all(&store.pool).await.unwrap();
        let best = store.best(&study, Goal::Maximize, u32::MAX).await.unwrap();
        let row =
            |ranked: &RankedConfiguration| (ranked.first.trial.proposal.number, ranked.value, ranked.measurements);
        [view, best.iter().map(row).collect()]
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(48))]
        #[test]
        fn the_view_v_best_ranks_as_the_program_does(
            trials in proptest::collection::vec((0..3_i64, 0..9_usize, 0..64_usize, 0..9_u8, 1..9_i32), 0..12),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let [view, program] = runtime.block_on(rankings(&trials));
            proptest::prop_assert_eq!(view, program);
        }
    }

    #[tokio::test]
    async fn a_judgement_ranks_the_feasible_configurations_and_the_means_rank_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("a.db").to_string_lossy(), true).await.unwrap();
        let study = store.create_study("s", &serde_json::json!({}), &Host::detect()).await.unwrap();
        for (number, value, violation) in [(0, 5.0, 0.0), (1, 9.0, 0.0), (2, 8.0, 0.0), (3, 7.0, 0.0), (4, 99.0, 0.1)] {
            let config = Config::new().with("a", i64::from(number));
            let outcome = Outcome::Measured(Measurement::default());
            let trial = Trial::example(number, "auto", outcome).with_config(config);
            let kept = Score::Feasible { value };
            let score = if violation > 0.0 { Score::Infeasible { violation, value } } else { kept };
            store.append(study.id, &trial, score).await.unwrap();
        }
        let expected = |trial| ExpectedConfiguration { trial, value: 8.5, deviation: 0.01, feasible: 1.0 };
        let judged = |ranking| StoredJudgement { ranking, ..StoredJudgement::default() };
        let numbers = async |judgement: Option<&StoredJudgement>, most| -> Vec<u32> {
            let leaders = store.leading_configurations(&study, Goal::Maximize, judgement, most).await.unwrap();
            leaders.iter().map(|ranked| ranked.first.trial.proposal.number).collect()
        };
        assert_eq!(numbers(None, 9).await, [1, 2, 3, 0]);
        assert_eq!(numbers(Some(&judged(vec![])), 9).await, [1, 2, 3, 0]);
        let judgement = judged(vec![expected(4), expected(3), expected(2)]);
        assert_eq!(numbers(Some(&judgement), 9).await, [3, 2, 1, 0], "4 was over a limit");
        assert_eq!(numbers(Some(&judgement), 1).await, [3]);
        let leaders = store.leading_configurations(&study, Goal::Maximize, Some(&judgement), 3).await.unwrap();
        assert_eq!(leaders.iter().map(|ranked| ranked.expected.is_some()).collect::<Vec<_>>(), [true, true, false]);
    }
}
