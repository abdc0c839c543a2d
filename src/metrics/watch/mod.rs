//! Early end of a running load, checked by its observer after every event.
//!
//! A run ends early if its metric is precise enough, or if its outcome is certain. The outcome is certain if the server
//! is gone, too many requests fail, a limit can no longer be kept, an open loop overloads the server, or the objective
//! cannot reach the best configuration's (`race`). The
//! statistical conditions are checked repeatedly during a run. `evidence` documents the probability of error of
//! its tests, `saturation` the origin of its thresholds. The confidence of a precision is that of a single check.

mod evidence;
mod race;
mod saturation;
mod precision;

use std::fmt;
use std::time::Duration;

use crate::load::{LoadEvent, LoadPhase, ObserverTick, RequestError, RequestRecord};
use crate::objective::Constraint;
use crate::stats::to_f64;

use super::histogram::Histogram;
use super::{Slo, milliseconds};

use evidence::{LimitEvidence, exceeds};
use precision::PrecisionProgress;
use race::{RaceProgress, RaceVerdict};
use saturation::SaturationDetector;

pub(crate) use precision::PrecisionTarget;
pub(crate) use race::RaceTarget;

/// Number of successive failed connects after which the server counts as gone. If the concurrency is higher, that many
/// are required.
const MIN_FAILED_CONNECTS: usize = 20;

/// Conditions that end a run early.
#[derive(Clone, Debug)]
pub(crate) struct WatchOptions {
    /// The sufficient precision.
    pub until: Option<PrecisionTarget>,
    /// The value that the load must be able to reach, if it races.
    pub race: Option<RaceTarget>,
    /// Minimum number of completed requests. Until it and `min_time` are reached, only a gone server, the error rate or
    /// an arithmetically broken limit ends a run. The load's plan contains the maximum length.
    pub min_requests: u64,
    /// Minimum time of the measurement window.
    pub min_time: Duration,
    /// The largest allowed share of failed requests, 0 to 1.
    pub error_rate_limit: Option<f64>,
    /// Limits of means and percentiles of TTFT, TPOT, E2EL and output speed. Other limits do not end a run.
    pub limits: Vec<Constraint>,
    /// Whether the load ends once every limit is clearly kept.
    pub ends_if_kept: bool,
    /// The time before which limits end no load, unless one is broken by arithmetic.
    pub limits_after: Duration,
    /// Limits of a good request. Used only if `until` requests a precision of the goodput.
    pub goodput: Vec<Slo>,
    /// Whether requests arrive independently of the server's replies. Only then can it fall behind.
    pub open_loop: bool,
    /// Number of requests of the measurement window, if known.
    pub total: Option<u64>,
    /// Maximum number of requests in flight.
    pub concurrency: Option<usize>,
}

impl Default for WatchOptions {
    /// Returns options that only detect a server that is gone.
    fn default() -> Self {
        Self {
            until: None,
            race: None,
            min_requests: 100,
            min_time: Duration::from_secs(5),
            error_rate_limit: None,
            limits: Vec::new(),
            ends_if_kept: false,
            limits_after: Duration::ZERO,
            goodput: Vec::new(),
            open_loop: false,
            total: None,
            concurrency: None,
        }
    }
}

/// The reason to end a run now, with a sentence for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The metric has the requested precision.
    Precise(String),
    ErrorRate(String),
    /// A limit can no longer be kept.
    SloImpossible(String),
    /// The server falls behind the offered load.
    Saturated(String),
    ServerGone(String),
    /// Every limit is clearly kept, and nothing else is asked.
    LimitsKept(String),
    /// The objective can no longer reach the best configuration's.
    CannotWin(String),
}

impl StopReason {
    /// Returns whether the server falls behind the offered load.
    #[must_use]
    pub(crate) fn is_overload(&self) -> bool {
        matches!(self, Self::Saturated(_))
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Precise(text)
        | Self::ErrorRate(text)
        | Self::SloImpossible(text)
        | Self::Saturated(text)
        | Self::ServerGone(text)
        | Self::LimitsKept(text)
        | Self::CannotWin(text)) = self;
        f.write_str(text)
    }
}

/// The state of the watch. Its size does not depend on the run's length.
#[derive(Debug)]
pub(crate) struct LoadWatch {
    options: WatchOptions,
    completed: u64,
    failed: u64,
    /// Failed connects since the last request with another outcome.
    unreachable: usize,
    e2el_ns: Histogram,
    progress: Option<PrecisionProgress>,
    race: Option<RaceProgress>,
    evidence: Vec<LimitEvidence>,
    saturation: SaturationDetector,
    /// The latest instant of the measurement window in any event.
    now: Duration,
    /// The second of the last costly check.
    last_check: Option<u64>,
}

impl LoadWatch {
    #[must_use]
    pub(crate) fn new(options: WatchOptions) -> Self {
        let progress = options.until.clone().map(PrecisionProgress::new);
        let race = options.race.clone().and_then(RaceProgress::new);
        let evidence = options.limits.iter().filter_map(LimitEvidence::new).collect();
        Self {
            options,
            completed: 0,
            failed: 0,
            unreachable: 0,
            e2el_ns: Histogram::default(),
            progress,
            race,
            evidence,
            saturation: SaturationDetector::default(),
            now: Duration::ZERO,
            last_check: None,
        }
    }

    /// Records an event of the load, and returns the reason if the run should end. Only the measurement window counts.
    /// Quick enough for the load's thread: costly checks run once a second, over a few hundred numbers.
    pub(crate) fn on(&mut self, event: &LoadEvent<'_>) -> Option<StopReason> {
        match event {
            LoadEvent::Ended { phase: LoadPhase::Measure, record } => {
                self.ended(record);
                self.check_certain(record).or_else(|| self.check_statistics())
            }
            LoadEvent::Tick(tick) => {
                self.tick(tick);
                self.check_statistics()
            }
            LoadEvent::Ended { .. } | LoadEvent::Phase { .. } | LoadEvent::WarmupTick(_) => None,
        }
    }

    fn ended(&mut self, record: &RequestRecord) {
        self.now = self.now.max(record.end);
        self.unreachable =
            if matches!(record.result, Err(RequestError::Connect(_))) { self.unreachable + 1 } else { 0 };
        if record.result.is_err() {
            self.failed += 1;
            return;
        }
        self.completed += 1;
        if let Some(e2el) = record.e2el() {
            self.e2el_ns.add(u64::try_from(e2el.as_nanos()).unwrap_or(u64::MAX));
        }
        if let Some(progress) = &mut self.progress {
            progress.ended(record, &self.options.goodput);
        }
        if let Some(race) = &mut self.race {
            race.ended(record, &self.options.goodput);
        }
        self.evidence.iter_mut().for_each(|evidence| evidence.ended(record));
    }

    fn tick(&mut self, tick: &ObserverTick) {
        self.now = self.now.max(tick.at);
        if let Some(progress) = &mut self.progress {
            progress.tick(tick);
        }
        if let Some(race) = &mut self.race {
            race.tick(tick);
        }
        self.saturation.add(tick.at.as_secs_f64(), tick.in_flight + tick.waiting, self.completed + self.failed);
    }

    /// Checks the conditions that one more request can make certain.
    fn check_certain(&self, record: &RequestRecord) -> Option<StopReason> {
        if record.result.is_ok() {
            return self
                .evidence
                .iter()
                .find_map(|evidence| evidence.certain_violation(self.options.total?))
                .map(StopReason::SloImpossible);
        }
        if self.unreachable >= MIN_FAILED_CONNECTS.max(self.options.concurrency.unwrap_or(0)) {
            let last = record.result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            return Some(StopReason::ServerGone(format!(
                "the server is gone: the last {} requests could not connect ({last})",
                self.unreachable
            )));
        }
        let (limit, seen) = (self.options.error_rate_limit?, self.failed + self.completed);
        let (failed, share) = (to_f64(self.failed), to_f64(self.failed) / to_f64(seen));
        let percent = limit * 100.0;
        if let Some(total) = self.options.total {
            let most = limit * to_f64(total);
            if failed > most {
                return Some(StopReason::ErrorRate(format!(
                    "{} of {total} requests have failed: more than {percent} %, even if all others succeed",
                    self.failed
                )));
            }
        }
        exceeds(self.failed, seen, limit).then(|| {
            StopReason::ErrorRate(format!(
                "{} of {seen} requests have failed ({:.1} %): the error rate is above {percent} % (99.9 % confidence)",
                self.failed,
                share * 100.0
            ))
        })
    }

    /// Runs the costly checks, at most once a second.
    fn check_statistics(&mut self) -> Option<StopReason> {
        let second = self.now.as_secs();
        if self.last_check.is_some_and(|looked| looked >= second) {
            return None;
        }
        self.last_check = Some(second);
        if self.completed < self.options.min_requests || self.now < self.options.min_time {
            return None;
        }
        if self.options.open_loop {
            let median = self.e2el_ns.percentile(50.0).unwrap_or(0.0) / 1e9;
            if let Some(text) = self.saturation.verdict(median) {
                return Some(StopReason::Saturated(text));
            }
        }
        let is_late = self.now >= self.options.limits_after;
        if self.options.total.is_none()
            && is_late
            && let Some(text) = self.evidence.iter().find_map(LimitEvidence::likely_violation)
        {
            return Some(StopReason::SloImpossible(text));
        }
        if self.options.ends_if_kept
            && is_late
            && !self.evidence.is_empty()
            && self.evidence.len() == self.options.limits.len()
            && self.evidence.iter().all(LimitEvidence::is_clearly_kept)
        {
            return Some(StopReason::LimitsKept(format!(
                "every limit is kept (99.9 % confidence): {} requests",
                self.completed
            )));
        }
        match self.race.as_mut().and_then(|race| race.verdict(self.now)) {
            Some(RaceVerdict::Lost(text)) => return Some(StopReason::CannotWin(text)),
            Some(RaceVerdict::Precise(text)) if self.options.until.is_none() && self.limits_are_settled() => {
                return Some(StopReason::Precise(text));
            }
            Some(RaceVerdict::Precise(_)) | None => {}
        }
        let (half, until) = (self.progress.as_ref()?.relative(self.now)?, self.options.until.as_ref()?);
        (half <= until.relative).then(|| {
            StopReason::Precise(format!(
                "{} is known to +-{:.2} % (95 % confidence), {} % were requested: after {} requests in {:.1} s",
                until.metric,
                half * 100.0,
                until.relative * 100.0,
                self.completed,
                milliseconds(self.now) / 1e3
            ))
        })
    }

    /// Returns whether every limit can be judged during a run, and is clearly kept or clearly broken.
    fn limits_are_settled(&self) -> bool {
        self.evidence.len() == self.options.limits.len() && self.evidence.iter().all(LimitEvidence::is_settled)
    }
}

#[cfg(test)]
mod tests;
