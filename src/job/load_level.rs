//! A study's load at another level: more or fewer users, or a higher or lower rate.

use super::LoadJob;
use crate::load::ArrivalPattern;
use crate::load_search::LoadSearchRange;
use crate::objective::LoadGoal;
use crate::stats::f64_to_u32;
use crate::trial::LoadKnob;

/// The default range of a search: users from 1 on, and rates within this factor of the study's own.
const MAX_USERS: f64 = 4096.0;
const RATE_FACTOR: f64 = 64.0;

impl LoadJob {
    /// Returns the range of a search for the highest load. It begins at the expected value if there is one, else at the
    /// study's own level.
    #[must_use]
    pub(crate) fn search_range(&self, goal: &LoadGoal, expected: Option<f64>) -> LoadSearchRange {
        let (knob, level) = (self.knob(), self.level());
        let (lowest, highest) = match knob {
            LoadKnob::Concurrency => (1.0, MAX_USERS.max(level)),
            LoadKnob::Rate | LoadKnob::Speed => (level / RATE_FACTOR, level * RATE_FACTOR),
        };
        let expected = expected.filter(|value| value.is_finite() && *value > 0.0);
        LoadSearchRange {
            knob,
            begin: expected.unwrap_or(level),
            is_expected: expected.is_some(),
            lowest: goal.lowest.unwrap_or(lowest),
            highest: goal.highest.unwrap_or(highest),
        }
    }

    /// Returns the quantity that other levels vary.
    #[must_use]
    pub fn knob(&self) -> LoadKnob {
        match self.arrival {
            ArrivalPattern::Closed | ArrivalPattern::AtOnce => LoadKnob::Concurrency,
            ArrivalPattern::Rate { .. } | ArrivalPattern::Ramp { .. } => LoadKnob::Rate,
            ArrivalPattern::Trace { .. } => LoadKnob::Speed,
        }
    }

    /// Returns the level of this load, in the unit of the knob.
    #[must_use]
    pub fn level(&self) -> f64 {
        match self.arrival {
            ArrivalPattern::Closed | ArrivalPattern::AtOnce => {
                f64::from(self.concurrency.or(self.requests).unwrap_or(1))
            }
            ArrivalPattern::Rate { per_s, .. } => per_s,
            ArrivalPattern::Ramp { to_per_s, .. } => to_per_s,
            ArrivalPattern::Trace { factor } => 1.0 / factor,
        }
    }

    /// Returns this load at another level. The number of requests grows with a higher level, so that the run lasts about
    /// as long, up to `most_requests`. It is not reduced for a lower level.
    #[must_use]
    pub fn at_level(&self, level: f64, most_requests: u32) -> Self {
        let mut load = self.clone();
        match &mut load.arrival {
            ArrivalPattern::Closed | ArrivalPattern::AtOnce => {
                let users = f64_to_u32(level.round().max(1.0));
                load.concurrency = Some(users);
                // If the study's warm-up has at least one request per user, so must this one.
                if self.concurrency.is_some_and(|own| load.warmup >= own) {
                    load.warmup = users;
                }
            }
            ArrivalPattern::Rate { per_s, .. } => *per_s = level,
            ArrivalPattern::Ramp { burstiness, .. } => {
                load.arrival = ArrivalPattern::Rate { per_s: level, burstiness: *burstiness };
            }
            ArrivalPattern::Trace { factor } => *factor = 1.0 / level,
        }
        if !matches!(load.arrival, ArrivalPattern::Trace { .. }) {
            let ratio = (level / self.level()).max(1.0);
            let scaled = |requests: u32| f64_to_u32((f64::from(requests) * ratio).ceil()).min(most_requests);
            load.requests = self.requests.map(scaled);
        }
        load
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_closed_loop_has_users_and_a_warm_up_of_as_many() {
        let own = LoadJob { warmup: 8, ..LoadJob::closed(8, 100) };
        assert_eq!((own.knob(), own.level()), (LoadKnob::Concurrency, 8.0));
        let high = own.at_level(24.4, u32::MAX);
        assert_eq!((high.concurrency, high.warmup, high.requests), (Some(24), 24, Some(305)));
        assert_eq!(own.at_level(24.0, 200).requests, Some(200));
        let low = own.at_level(2.0, u32::MAX);
        assert_eq!((low.concurrency, low.warmup, low.requests), (Some(2), 2, Some(100)));
    }

    #[test]
    fn a_rate_and_a_trace_have_other_levels() {
        let rate = ArrivalPattern::Rate { per_s: 4.0, burstiness: 2.0 };
        let own =
            LoadJob { arrival: rate, requests: None, duration: Some(Duration::from_secs(9)), ..LoadJob::closed(8, 1) };
        assert_eq!(own.at_level(6.0, u32::MAX).arrival, ArrivalPattern::Rate { per_s: 6.0, burstiness: 2.0 });
        assert_eq!(own.at_level(6.0, u32::MAX).concurrency, Some(8), "a limit on requests in flight stays");
        let trace = LoadJob { arrival: ArrivalPattern::Trace { factor: 0.5 }, ..own };
        assert_eq!((trace.knob(), trace.level()), (LoadKnob::Speed, 2.0));
        assert_eq!(trace.at_level(4.0, u32::MAX).arrival, ArrivalPattern::Trace { factor: 0.25 });
    }

    #[test]
    fn a_search_begins_at_the_expected_load_within_its_range() {
        let own = LoadJob::closed(8, 100);
        let limits = Vec::new();
        let goal =
            LoadGoal { limits, good_share: None, probes: 6, lowest: None, highest: Some(64.0), tiers: Vec::new() };
        let range = own.search_range(&goal, Some(20.0));
        assert_eq!((range.begin, range.is_expected, range.lowest, range.highest), (20.0, true, 1.0, 64.0));
        let range = own.search_range(&goal, Some(f64::NAN));
        assert_eq!((range.begin, range.is_expected), (8.0, false));
    }
}
