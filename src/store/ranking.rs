//! Configurations by all their measurements.

use super::{Expected, Scored, Store, StoreError, Study, Verdict};
use crate::objective::Goal;

/// A configuration by all its measurements; one that was over a limit in any of them is over it, and one that failed
/// when it was launched again has failed.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// Its first measurement.
    pub first: Scored,
    /// Mean of the objective over its measurements.
    pub value: f64,
    pub measurements: u32,
    /// The smallest and the largest of them.
    pub range: (f64, f64),
    /// What a model of all measurements expects of it, where there is one that was asked.
    pub expected: Option<Expected>,
}

impl Ranked {
    /// Whether every measurement of the one lies above every measurement of the other; one measurement alone has no
    /// spread that could be compared.
    #[must_use]
    pub fn is_apart_from(&self, other: &Self) -> bool {
        self.measurements > 1
            && other.measurements > 1
            && (self.range.0 > other.range.1 || other.range.0 > self.range.1)
    }
}

/// Feasible configurations in the study's present context. One that failed in a further trial is none, except where the failure
/// was not its own, or where the trial tested a rule and was expected to fail. What the defaults reach next to themselves says
/// how trials disturb each other, not how good they are.
macro_rules! ranking {
    () => {
        "SELECT min(CASE WHEN state = 'measured' THEN number END), avg(value), count(value), min(value), max(value) \
         FROM trials \
         WHERE study_id = ? AND state IN ('measured', 'failed') AND proposed_by <> 'interference' \
         AND accepted_changes = (SELECT accepted_changes FROM studies WHERE id = study_id) GROUP BY config \
         HAVING max(violation) = 0 AND \
         total(state = 'failed' AND proposed_by NOT IN ('rule_test', 'probe') AND (probe IS NOT NULL OR reason_code NOT IN ('spawn', \
         'wrong_server', 'client_bound', 'model_unavailable', 'device_busy', 'device_lost', 'port_in_use', 'network', 'disk', \
         'killed'))) = 0"
    };
}

/// All of them, best first; a limit below 0 is none.
fn ordered(goal: Goal) -> &'static str {
    match goal {
        Goal::Maximize => concat!(ranking!(), " ORDER BY avg(value) DESC, 1 LIMIT ?"),
        Goal::Minimize => concat!(ranking!(), " ORDER BY avg(value), 1 LIMIT ?"),
    }
}

/// First trial, mean value, number of measurements, smallest and largest value of one configuration.
type Group = (i64, f64, i64, f64, f64);

impl Store {
    /// The best feasible configurations, best first.
    pub async fn best(&self, study: &Study, goal: Goal, most: u32) -> Result<Vec<Ranked>, StoreError> {
        let rows: Vec<Group> = sqlx::query_as(ordered(goal))
            .bind(study.id)
            .bind(most)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let mut ranked = Vec::new();
        for row in rows {
            ranked.extend(self.ranked(study, row).await?);
        }
        Ok(ranked)
    }

    /// The same in the order of a judgement: first what it ranks, then the others as [`best`](Self::best) has them. The best of
    /// many single measurements is mostly a lucky one; the best expectation is not. Without a judgement it is the same.
    pub async fn leaders(
        &self,
        study: &Study,
        goal: Goal,
        verdict: Option<&Verdict>,
        most: u32,
    ) -> Result<Vec<Ranked>, StoreError> {
        let Some(verdict) = verdict.filter(|verdict| !verdict.ranking.is_empty()) else {
            return self.best(study, goal, most).await;
        };
        let mut rows: Vec<Group> = sqlx::query_as(ordered(goal))
            .bind(study.id)
            .bind(-1)
            .fetch_all(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        let place = |first: i64| verdict.ranking.iter().position(|expected| i64::from(expected.trial) == first);
        rows.sort_by_key(|row| place(row.0).unwrap_or(usize::MAX));
        let mut ranked = Vec::new();
        for row in rows.into_iter().take(most as usize) {
            let expected = place(row.0).map(|place| verdict.ranking[place]);
            ranked.extend(self.ranked(study, row).await?.map(|ranked| Ranked { expected, ..ranked }));
        }
        Ok(ranked)
    }

    /// The engine's defaults by all their measurements in the study's present context; `None` if there are none.
    pub async fn baseline(&self, study: &Study) -> Result<Option<Ranked>, StoreError> {
        let query = "SELECT min(number), avg(value), count(*), min(value), max(value) FROM trials \
                     WHERE study_id = ?1 AND state = 'measured' AND value IS NOT NULL \
                     AND proposed_by <> 'interference' \
                     AND accepted_changes = (SELECT accepted_changes FROM studies WHERE id = ?1) \
                     AND config = (SELECT config FROM trials WHERE study_id = ?1 AND number = 0) GROUP BY config";
        let row: Option<Group> =
            sqlx::query_as(query).bind(study.id).fetch_optional(&self.pool).await.map_err(|error| self.error(error))?;
        match row {
            Some(row) => self.ranked(study, row).await,
            None => Ok(None),
        }
    }

    /// A trial's configuration by all its measurements in the trial's own context; `None` if there are none.
    pub async fn measurements_of(&self, study: &Study, number: u32) -> Result<Option<Ranked>, StoreError> {
        let query = "SELECT min(number), avg(value), count(*), min(value), max(value) FROM trials \
                     WHERE study_id = ?1 AND state = 'measured' AND value IS NOT NULL \
                     AND proposed_by <> 'interference' AND (config, accepted_changes) = \
                     (SELECT config, accepted_changes FROM trials WHERE study_id = ?1 AND number = ?2) GROUP BY config";
        let row: Option<Group> = sqlx::query_as(query)
            .bind(study.id)
            .bind(number)
            .fetch_optional(&self.pool)
            .await
            .map_err(|error| self.error(error))?;
        match row {
            Some(row) => self.ranked(study, row).await,
            None => Ok(None),
        }
    }

    async fn ranked(&self, study: &Study, group: Group) -> Result<Option<Ranked>, StoreError> {
        let (first, value, measurements, least, most) = group;
        let first = self.trial(study, u32::try_from(first).unwrap_or(u32::MAX)).await?;
        let measurements = u32::try_from(measurements).unwrap_or(u32::MAX);
        Ok(first.map(|first| Ranked { first, value, measurements, range: (least, most), expected: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::trial::{FailureKind, Measurement, Outcome, Trial};

    #[test]
    fn failures_that_are_not_the_configurations_own_are_those_of_the_query() {
        for kind in FailureKind::ALL {
            assert_eq!(ranking!().contains(&format!("'{kind}'")), !kind.is_own(), "{kind}");
        }
    }

    #[tokio::test]
    async fn a_judgement_decides_among_what_kept_the_limits_and_the_means_among_the_rest() {
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
        let expected = |trial| Expected { trial, value: 8.5, deviation: 0.01, feasible: 1.0 };
        let judged = |ranking| Verdict { ranking, ..Verdict::default() };
        let numbers = async |verdict: Option<&Verdict>, most| -> Vec<u32> {
            let leaders = store.leaders(&study, Goal::Maximize, verdict, most).await.unwrap();
            leaders.iter().map(|ranked| ranked.first.trial.proposal.number).collect()
        };
        assert_eq!(numbers(None, 9).await, [1, 2, 3, 0]);
        assert_eq!(numbers(Some(&judged(vec![])), 9).await, [1, 2, 3, 0]);
        let verdict = judged(vec![expected(4), expected(3), expected(2)]);
        assert_eq!(numbers(Some(&verdict), 9).await, [3, 2, 1, 0], "4 was over a limit");
        assert_eq!(numbers(Some(&verdict), 1).await, [3]);
        let leaders = store.leaders(&study, Goal::Maximize, Some(&verdict), 3).await.unwrap();
        assert_eq!(leaders.iter().map(|ranked| ranked.expected.is_some()).collect::<Vec<_>>(), [true, true, false]);
    }
}
