//! The conditions that end a study's load early, and the time that an early end saves.

use std::time::Duration;

use super::LoadJob;
use crate::load::ArrivalPattern;
use crate::metrics::{PrecisionTarget, RaceTarget, WatchOptions};
use crate::objective::Objective;
use crate::stats::to_f64;

impl LoadJob {
    /// Returns the conditions that end a load early. `race` is the value that it must be able to reach.
    #[must_use]
    pub(crate) fn watch_options(&self, objective: &Objective, race: Option<RaceTarget>) -> WatchOptions {
        let limits = match &objective.load_goal {
            // Tiers need the values of loads beyond the limits of the objective.
            Some(goal) if goal.tiers.is_empty() => &goal.limits,
            Some(_) => &Vec::new(),
            None => &objective.constraints,
        };
        let open_loop = !matches!(self.arrival, ArrivalPattern::Closed | ArrivalPattern::AtOnce);
        // Bursts of an open loop keep and break limits for a while.
        let share = if open_loop { 2 } else { 4 };
        WatchOptions {
            ends_if_kept: objective.load_goal.is_some(),
            limits_after: self.duration.filter(|_| objective.load_goal.is_some()).unwrap_or_default() / share,
            until: self.target_precision.map(|relative| PrecisionTarget { metric: objective.metric.clone(), relative }),
            // The probes of a load search are compared with limits. Only the search can lose.
            race: race.filter(|_| objective.load_goal.is_none()),
            error_rate_limit: Some(self.max_error_rate),
            limits: limits.clone(),
            goodput: self.goodput.clone(),
            open_loop,
            total: self.requests.map(u64::from),
            concurrency: self.concurrency.map(|concurrency| concurrency as usize),
            ..WatchOptions::default()
        }
    }

    /// Returns the seconds that an early end saved: the expected length of the whole load minus the time until then.
    /// `ended` requests had ended. The rest is expected to end at the same rate. `None` if nothing limits the load.
    #[must_use]
    pub(crate) fn saved_s(&self, used: Duration, ended: usize) -> Option<f64> {
        let used_s = used.as_secs_f64();
        let by_requests = self.requests.filter(|_| ended > 0).map(|all| used_s * f64::from(all) / to_f64(ended));
        let by_time = self.duration.map(|duration| duration.as_secs_f64());
        let whole_s = by_requests.into_iter().chain(by_time).min_by(f64::total_cmp)?;
        Some((whole_s - used_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_saved_time_follows_from_the_rate_of_the_requests_or_the_duration() {
        let by_requests = LoadJob::closed(8, 100);
        let used = Duration::from_secs(10);
        assert_eq!(by_requests.saved_s(used, 25), Some(30.0));
        assert_eq!(by_requests.saved_s(used, 0), None);
        assert_eq!(by_requests.saved_s(used, 120), Some(0.0));
        let by_time = LoadJob { requests: None, duration: Some(Duration::from_secs(25)), ..by_requests.clone() };
        assert_eq!(by_time.saved_s(used, 25), Some(15.0));
        assert_eq!(LoadJob { requests: Some(40), ..by_time }.saved_s(used, 25), Some(6.0));
    }
}
