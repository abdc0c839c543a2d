//! Failed launches since the last success on each slot, and the decision whether they require a probe.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::normalized_message;
use crate::trial::{Failure, FailureKind, Outcome, Trial};

/// The number of equal failures in a row before the first probe. Each probe that starts doubles the number for the next
/// one.
const FIRST_PROBE_FAILURES: u32 = 3;

/// Failures that count as equal: one kind and one root line, without numbers and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tuner) struct FailureClass {
    kind: FailureKind,
    normalized_message: String,
}

impl FailureClass {
    pub(in crate::tuner) fn of(failure: &Failure) -> Self {
        Self { kind: failure.kind, normalized_message: normalized_message(&failure.message) }
    }

    /// Returns whether the device's or the host's memory was too small. The memory model learns from such a failed
    /// start, so the next configuration needs less.
    fn is_memory(&self) -> bool {
        use FailureKind as K;
        matches!(
            self.kind,
            K::OutOfMemory
                | K::OutOfMemoryProfile
                | K::OutOfMemoryKvCache
                | K::OutOfMemorySampler
                | K::OutOfMemoryGraphs
                | K::OutOfMemoryLoad
                | K::NoKvMemory
                | K::HostMemory
        )
    }
}

/// A trial that failed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FailedTrial {
    pub(super) number: u32,
    pub(super) failure: Failure,
    /// Its launches that failed in a row.
    pub(super) launches: u32,
    /// Time of the first of them, as the database writes it.
    pub(super) since: String,
    pub(super) config_key: String,
    /// Whether its configuration had been measured before.
    pub(super) was_known_good: bool,
    /// Whether its server had become ready.
    pub(super) was_ready: bool,
}

impl FailedTrial {
    fn class(&self) -> FailureClass {
        FailureClass::of(&self.failure)
    }
}

/// Failures that require a probe.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ProbeReason {
    pub(super) failure: Failure,
    /// The number of launches in a row with equal failures.
    pub(super) launches: u32,
    pub(super) since: String,
    /// Whether the servers had become ready.
    pub(super) was_ready: bool,
}

impl ProbeReason {
    /// Returns whether a probe that ended like this attributes the failures to configurations. It was measured, or it
    /// became ready and failed in another way, while their servers had not become ready.
    pub(super) fn is_refuted_by(&self, trial: &Trial) -> bool {
        match &trial.outcome {
            Outcome::Measured(_) => true,
            Outcome::Rejected(_) => false,
            Outcome::Failed(failure) => {
                let is_alike = FailureClass::of(failure) == FailureClass::of(&self.failure);
                trial.startup_s.is_some() && !self.was_ready && !is_alike
            }
        }
    }
}

/// Failed launches since the last success on each slot.
#[derive(Debug, Default)]
pub(super) struct SlotFailures {
    slots: BTreeMap<usize, Vec<FailedTrial>>,
    /// The number of probes that have started.
    probes_started: u32,
    /// Failures that a probe has attributed to configurations.
    own_failures: Arc<[FailureClass]>,
}

impl SlotFailures {
    /// Returns the failures that a probe has attributed to configurations.
    pub(super) fn own_failures(&self) -> Arc<[FailureClass]> {
        Arc::clone(&self.own_failures)
    }

    /// Returns whether a probe has attributed failures like this to configurations.
    pub(super) fn is_own(&self, failure: &Failure) -> bool {
        self.own_failures.contains(&FailureClass::of(failure))
    }

    /// Clears these slots after a launch on them has worked.
    pub(super) fn clear(&mut self, slots: &[usize]) {
        for slot in slots {
            self.slots.remove(slot);
        }
    }

    /// Adds a failed trial to each slot that it ran on.
    pub(super) fn add(&mut self, slots: &[usize], failed: &FailedTrial) {
        for slot in slots {
            self.slots.entry(*slot).or_default().push(failed.clone());
        }
    }

    /// Records that a probe has started. Failures like these are attributed to configurations from now on.
    pub(super) fn probe_started(&mut self, failures: &[Failure]) {
        self.probes_started += 1;
        for failure in failures {
            self.remember_own(failure);
        }
    }

    /// Records that a probe of an earlier run has attributed failures like this to configurations.
    pub(super) fn remember_own(&mut self, failure: &Failure) {
        if !self.is_own(failure) {
            self.own_failures = self.own_failures.iter().cloned().chain([FailureClass::of(failure)]).collect();
        }
    }

    /// Returns the slots with failed launches since the last success there.
    pub(super) fn slots(&self) -> Vec<usize> {
        self.slots.keys().copied().collect()
    }

    /// Removes and returns the trials that failed on these slots since the last success there, each once, by number.
    pub(super) fn take(&mut self, slots: &[usize]) -> Vec<FailedTrial> {
        let taken = slots.iter().filter_map(|slot| self.slots.remove(slot)).flatten();
        let taken: BTreeMap<u32, FailedTrial> = taken.map(|failed| (failed.number, failed)).collect();
        for others in self.slots.values_mut() {
            others.retain(|failed| !taken.contains_key(&failed.number));
        }
        taken.into_values().collect()
    }

    /// Returns the trials that failed on these slots since the last success there.
    pub(super) fn failed(&self, slots: &[usize]) -> impl Iterator<Item = &FailedTrial> {
        slots.iter().filter_map(|slot| self.slots.get(slot)).flatten()
    }

    /// Returns the latest trials on a slot whose failures are equal, the newest first.
    pub(super) fn equal_failures(&self, slot: usize) -> impl Iterator<Item = &FailedTrial> {
        let failed = self.slots.get(&slot).map_or(&[][..], Vec::as_slice);
        let class = failed.last().map(FailedTrial::class);
        failed.iter().rev().take_while(move |failed| Some(failed.class()) == class)
    }

    /// Returns an alarm if the latest failure on these slots requires a probe. Either too many in a row were equal, or
    /// a configuration failed that had been measured before. `nothing_works` states that no configuration has ever been
    /// measured; then a lack of memory raises no alarm.
    pub(super) fn probe_reason(&self, slots: &[usize], nothing_works: bool) -> Option<ProbeReason> {
        slots.iter().find_map(|slot| self.alarm_on(*slot, nothing_works))
    }

    fn alarm_on(&self, slot: usize, nothing_works: bool) -> Option<ProbeReason> {
        let last = self.slots.get(&slot)?.last()?;
        if nothing_works && last.class().is_memory() {
            return None;
        }
        let launches = self.equal_failures(slot).map(|failed| failed.launches).sum();
        let limit = FIRST_PROBE_FAILURES.saturating_mul(1_u32.checked_shl(self.probes_started).unwrap_or(u32::MAX));
        let since = self.equal_failures(slot).last()?.since.clone();
        (launches >= limit || last.was_known_good).then(|| ProbeReason {
            failure: last.failure.clone(),
            launches,
            since,
            was_ready: last.was_ready,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(number: u32, kind: FailureKind, message: &str) -> FailedTrial {
        let failure = Failure { kind, message: message.to_owned() };
        let (since, config_key) = (format!("t{number}"), number.to_string());
        FailedTrial { number, failure, launches: 1, since, config_key, was_known_good: false, was_ready: false }
    }

    fn unknown(number: u32) -> FailedTrial {
        failed(number, FailureKind::StartupExit, &format!("RuntimeError: broken at 0x7f{number}a, {number} MiB"))
    }

    fn launches(alarm: Option<ProbeReason>) -> Option<u32> {
        alarm.map(|alarm| alarm.launches)
    }

    #[test]
    fn three_failures_in_a_row_on_a_slot_require_a_probe_if_they_differ_in_numbers_only() {
        let mut suspicion = SlotFailures::default();
        for number in 0..2 {
            suspicion.add(&[0], &unknown(number));
            suspicion.add(&[1], &unknown(10 + number));
            assert_eq!(suspicion.probe_reason(&[0], false), None);
        }
        suspicion.add(&[0], &unknown(2));
        let alarm = suspicion.probe_reason(&[0], false).unwrap();
        assert_eq!((alarm.launches, &*alarm.since), (3, "t0"));
        assert_eq!(suspicion.probe_reason(&[1], false), None, "slots are judged one by one");
        suspicion.add(&[1], &failed(12, FailureKind::StartupExit, "another text"));
        suspicion.add(&[1], &unknown(13));
        assert_eq!(suspicion.probe_reason(&[1], false), None, "the row was broken");
        suspicion.add(&[2], &unknown(20));
        suspicion.clear(&[2]);
        suspicion.add(&[2], &unknown(21));
        suspicion.add(&[2], &unknown(22));
        assert_eq!(suspicion.probe_reason(&[2], false), None, "a launch has worked meanwhile");
    }

    #[test]
    fn each_probe_that_starts_doubles_the_number() {
        let mut suspicion = SlotFailures::default();
        for limit in [3, 6, 12] {
            for number in 1..limit {
                suspicion.add(&[0], &unknown(number));
                assert_eq!(suspicion.probe_reason(&[0], false), None, "{number} of {limit}");
            }
            suspicion.add(&[0], &unknown(limit));
            assert_eq!(launches(suspicion.probe_reason(&[0], false)), Some(limit));
            let failures: Vec<_> = suspicion.take(&[0]).into_iter().map(|failed| failed.failure).collect();
            suspicion.probe_started(&failures);
            assert!(suspicion.is_own(&unknown(99).failure));
            assert_eq!(suspicion.own_failures().len(), 1);
        }
    }

    #[test]
    fn a_configuration_that_was_measured_before_calls_for_a_probe_at_its_first_failure() {
        let mut suspicion = SlotFailures::default();
        suspicion.add(&[0], &FailedTrial { was_known_good: true, ..unknown(7) });
        assert_eq!(launches(suspicion.probe_reason(&[0], false)), Some(1));
    }

    #[test]
    fn out_of_memory_failures_require_no_probe_before_a_first_success() {
        let mut suspicion = SlotFailures::default();
        for number in 0..9 {
            suspicion.add(&[0], &failed(number, FailureKind::NoKvMemory, "No available memory for the cache blocks"));
            assert_eq!(suspicion.probe_reason(&[0], true), None);
        }
        assert_eq!(launches(suspicion.probe_reason(&[0], false)), Some(9));
    }

    #[test]
    fn a_trial_on_several_slots_is_taken_once_and_from_all_of_them() {
        let mut suspicion = SlotFailures::default();
        suspicion.add(&[0, 1], &unknown(0));
        suspicion.add(&[1], &unknown(1));
        let taken: Vec<_> = suspicion.take(&[0]).iter().map(|failed| failed.number).collect();
        assert_eq!((taken, suspicion.take(&[1]).len()), (vec![0], 1));
    }
}
