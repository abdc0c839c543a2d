//! Configurations by all their measurements.

use super::{Scored, Store, StoreError, Study};
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

/// Feasible configurations. One that failed in a further trial is none, except where the failure was not its own. What the
/// defaults reach next to themselves says how trials disturb each other, not how good they are.
macro_rules! ranking {
    () => {
        "SELECT min(CASE WHEN state = 'measured' THEN number END), avg(value), count(value), min(value), max(value) \
         FROM trials \
         WHERE study_id = ? AND state IN ('measured', 'failed') AND proposed_by <> 'interference' GROUP BY config \
         HAVING max(violation) = 0 AND \
         total(state = 'failed' AND reason_code NOT IN ('spawn', 'wrong_server', 'client_bound', \
         'model_unavailable', 'device_busy', 'port_in_use', 'network', 'disk', 'killed')) = 0"
    };
}

/// First trial, mean value, number of measurements, smallest and largest value of one configuration.
type Group = (i64, f64, i64, f64, f64);

impl Store {
    /// The best feasible configurations, best first.
    pub async fn best(&self, study: &Study, goal: Goal, most: u32) -> Result<Vec<Ranked>, StoreError> {
        let query = match goal {
            Goal::Maximize => concat!(ranking!(), " ORDER BY avg(value) DESC, 1 LIMIT ?"),
            Goal::Minimize => concat!(ranking!(), " ORDER BY avg(value), 1 LIMIT ?"),
        };
        let rows: Vec<Group> = sqlx::query_as(query)
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

    /// A trial's configuration by all its measurements; `None` where it has none.
    pub async fn measurements_of(&self, study: &Study, number: u32) -> Result<Option<Ranked>, StoreError> {
        let query = "SELECT min(number), avg(value), count(*), min(value), max(value) FROM trials \
                     WHERE study_id = ?1 AND state = 'measured' AND value IS NOT NULL \
                     AND proposed_by <> 'interference' \
                     AND config = (SELECT config FROM trials WHERE study_id = ?1 AND number = ?2) GROUP BY config";
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
        Ok(first.map(|first| Ranked { first, value, measurements, range: (least, most) }))
    }
}
