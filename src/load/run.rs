//! A whole run on its own thread: resolve, prepare, warm up, measure.

use std::sync::Arc;
use std::time::Duration;

use super::arrival::instants;
use super::clock::ArrivalClock;
use super::connection::LoopState;
use super::endpoint::ServerEndpoint;
use super::feed::{RequestFeed, SessionRange};
use super::open_files::OPEN_FILES;
use super::processor::request_realtime_priority;
use super::protocol::ServerProtocol;
use super::reactor::LoadReactor;
use super::schedule::{LoadSchedule, RequestInstants};
use super::signal::ThreadSignal;
use super::window::{LoadWindow, WindowTally};
use super::{
    ArrivalPattern, ClientUse, LoadError, LoadEvent, LoadPhase, LoadPlan, LoadRun, LoadTarget, Observer, RunEnd,
    RunFlow, WarmupSummary,
};
use crate::workload::{WarmupSessions, Workload};

/// Number of connections opened and sessions prepared before an open loop starts: one second of a high rate. Also the
/// number of warm-up users if the plan has no concurrency.
const DEFAULT_AHEAD: usize = 64;

/// Offset of the warm-up's sessions in a run without a number of requests. No session of the window reaches it.
const WARMUP_OFFSET: u64 = 1 << 40;

/// Returns the sessions of the warm-up. They come after those of the window; see [`WarmupSessions`].
pub(crate) fn warmup(plan: &LoadPlan) -> SessionRange {
    SessionRange {
        first: plan.first + plan.requests.unwrap_or(WARMUP_OFFSET),
        requests: Some(plan.warmup),
        sessions: None,
    }
}

/// Returns the number of concurrent users of the warm-up.
pub(crate) fn warmup_places(plan: &LoadPlan) -> usize {
    plan.concurrency.unwrap_or(DEFAULT_AHEAD)
}

/// Returns the sessions of the measurement window. `sessions` is the result of [`check`].
pub(crate) fn measured(plan: &LoadPlan, sessions: Option<u64>) -> SessionRange {
    SessionRange { first: plan.first, requests: plan.requests, sessions }
}

/// Drives a load on the calling thread. The arguments and errors are those of `drive`.
pub(super) fn run(
    target: &LoadTarget,
    workload: &Arc<dyn Workload>,
    plan: &LoadPlan,
    mut observer: Observer,
    signal: &Arc<ThreadSignal>,
) -> Result<LoadRun, LoadError> {
    let sessions = check(plan, &**workload)?;
    let _files = OPEN_FILES.reserve(most_in_flight(plan, sessions))?;
    let protocol = Arc::new(ServerProtocol::new(target, plan.allow_eos)?);
    let endpoint = Arc::new(ServerEndpoint::new(target, protocol.path())?);
    let total = plan.requests.map(|requests| requests.saturating_add(plan.warmup));
    let mut warmed = WindowTally::not_run(0);
    warmed.ended_by_observer = observer(LoadEvent::Phase { phase: LoadPhase::Prepare, total }) == RunFlow::End;

    let feed = |workload: Arc<dyn Workload>, range| {
        let (protocol, endpoint) = (Arc::clone(&protocol), Arc::clone(&endpoint));
        RequestFeed::start(workload, protocol, endpoint, range, Arc::clone(signal))
    };
    let measured = feed(Arc::clone(workload), measured(plan, sessions))?;
    let warm = (plan.warmup > 0 && !warmed.ended_by_observer)
        .then(|| feed(Arc::new(WarmupSessions(Arc::clone(workload))), warmup(plan)))
        .transpose()?;
    // Called after the feed threads were started: they would inherit the priority, and no measurement waits for them.
    let realtime = request_realtime_priority();
    let ahead = sessions_ahead(plan, sessions);
    let mut reactor = LoadReactor::new(
        Arc::clone(&endpoint),
        Arc::clone(signal),
        LoopState::new(ArrivalClock::start()),
        plan.request_timeout,
    )
    .map_err(LoadError::System)?;
    reactor.open(ahead).map_err(LoadError::System)?;

    if let Some(warm) = warm {
        let places = warmup_places(plan);
        warm.wait(places.min(usize::try_from(plan.warmup).unwrap_or(usize::MAX)));
        let zero = reactor.loop_state.clock.now();
        let window = LoadWindow {
            phase: LoadPhase::Warmup,
            reactor: &mut reactor,
            protocol: &protocol,
            plan,
            signal,
            observer: &mut observer,
            feed: &warm,
            schedule: LoadSchedule::new(zero, None, Some(places), None),
            zero,
        };
        warmed = window.run()?;
        warm.close()?;
    }

    measured.wait(ahead);
    reactor.loop_state.begin();
    let zero = reactor.loop_state.clock.now();
    let schedule = LoadSchedule::new(zero, due(plan, workload, sessions), plan.concurrency, plan.duration);
    let window = LoadWindow {
        phase: LoadPhase::Measure,
        reactor: &mut reactor,
        protocol: &protocol,
        plan,
        signal,
        observer: &mut observer,
        feed: &measured,
        schedule,
        zero,
    };
    let tally =
        if warmed.ended_by_observer || signal.is_raised() { WindowTally::not_run(zero) } else { window.run()? };
    measured.close()?;

    let completed = warmed.records.iter().filter(|record| record.result.is_ok()).count();
    let client = ClientUse {
        cpu: tally.cpu,
        processor_wait: tally.processor_wait,
        realtime,
        turnaround: tally.turnaround,
        wall: Duration::from_nanos(tally.end.saturating_sub(zero)),
        lags_us: reactor.loop_state.lag.sorted(),
        max_lag_us: reactor.loop_state.lag.max_us,
        kernel_stamps: reactor.loop_state.lag.kernel_stamps(),
        starved: tally.starved,
        peak_in_flight: tally.peak_in_flight,
        connections: reactor.connections,
        resent: reactor.resent,
    };
    Ok(LoadRun {
        records: tally.records,
        warmup: WarmupSummary { completed, failed: warmed.records.len() - completed },
        began: reactor.loop_state.clock.instant(zero),
        ended: reactor.loop_state.clock.instant(tally.end),
        unfinished: tally.unfinished,
        unsent: tally.unsent,
        end: match (signal.is_raised(), tally.ended_by_observer) {
            (true, _) => RunEnd::Stopped,
            (false, true) => RunEnd::Observer,
            (false, false) => RunEnd::Complete,
        },
        client,
    })
}

/// Checks that a plan can be carried out. Returns the number of sessions if the end of a trace ends the run, because
/// the plan has neither a number of requests nor a duration.
///
/// # Errors
/// If a number is 0 or out of range, the run would have no end, or a trace has no time stamps.
pub(crate) fn check(plan: &LoadPlan, workload: &dyn Workload) -> Result<Option<u64>, LoadError> {
    let concurrency = plan.concurrency.map(|places| places as u64);
    for (name, value) in [("concurrency", concurrency), ("requests", plan.requests)] {
        if value == Some(0) {
            return Err(LoadError::Zero { name });
        }
    }
    plan.arrival.check()?;
    if plan.arrival == ArrivalPattern::Closed && plan.concurrency.is_none() {
        return Err(LoadError::NoConcurrency);
    }
    let trace = matches!(plan.arrival, ArrivalPattern::Trace { .. });
    if trace && workload.due(0).is_none() {
        return Err(LoadError::NoTimeStamps);
    }
    // Without a number of requests or a duration, a trace is played once.
    let sessions = workload.len().filter(|_| trace && plan.requests.is_none() && plan.duration.is_none());
    let endless = plan.requests.is_none() && plan.duration.is_none() && sessions.is_none();
    if endless || plan.arrival == ArrivalPattern::AtOnce && plan.concurrency.is_none() && plan.requests.is_none() {
        return Err(LoadError::Endless);
    }
    Ok(sessions)
}

/// Returns the maximum number of requests in flight, including the warm-up. Returns `None` for an open loop without a
/// limit of concurrency, because the number then depends on the server's speed.
fn most_in_flight(plan: &LoadPlan, sessions: Option<u64>) -> Option<u64> {
    let requests = plan.requests.or(sessions).map(|requests| requests.max(plan.warmup));
    match (plan.concurrency, requests) {
        (Some(places), requests) => Some((places as u64).min(requests.unwrap_or(u64::MAX))),
        (None, requests) => requests.filter(|_| plan.arrival == ArrivalPattern::AtOnce),
    }
}

/// Returns the number of sessions to prepare, and of connections to open, before the clock starts.
fn sessions_ahead(plan: &LoadPlan, sessions: Option<u64>) -> usize {
    let most = plan.requests.or(sessions).map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let wanted = match plan.arrival {
        ArrivalPattern::Closed | ArrivalPattern::AtOnce => plan.concurrency.unwrap_or(usize::MAX),
        ArrivalPattern::Rate { .. } | ArrivalPattern::Ramp { .. } | ArrivalPattern::Trace { .. } => {
            plan.concurrency.map_or(DEFAULT_AHEAD, |places| places.min(DEFAULT_AHEAD))
        }
    };
    wanted.min(most)
}

/// Returns the instants at which sessions are due. Returns `None` in a closed loop, and if all sessions begin at once.
pub(crate) fn due(plan: &LoadPlan, workload: &Arc<dyn Workload>, sessions: Option<u64>) -> Option<RequestInstants> {
    match plan.arrival {
        ArrivalPattern::Closed | ArrivalPattern::AtOnce => None,
        ArrivalPattern::Rate { .. } | ArrivalPattern::Ramp { .. } => {
            Some(Box::new(instants(&plan.arrival, plan.seed, plan.requests.or(sessions))))
        }
        ArrivalPattern::Trace { factor } => {
            let workload = Arc::clone(workload);
            let mut latest = Duration::ZERO;
            let zero = workload.due(plan.first).unwrap_or_default();
            let stamps = (plan.first..).map_while(move |index| workload.due(index));
            // A row that is out of order is due with the one before it.
            let ascending = stamps.map(move |stamp| {
                latest = latest.max(stamp.saturating_sub(zero));
                Duration::try_from_secs_f64(latest.as_secs_f64() * factor).unwrap_or(Duration::MAX)
            });
            Some(Box::new(ascending))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_needs_as_many_connections_as_may_be_under_way() {
        let most = |change: fn(&mut LoadPlan)| {
            let mut plan = LoadPlan::closed(8, 100);
            change(&mut plan);
            most_in_flight(&plan, None)
        };
        let rate = ArrivalPattern::Rate { per_s: 9.0, burstiness: 1.0 };
        assert_eq!(most(|_| {}), Some(8));
        assert_eq!(most(|plan| plan.requests = Some(3)), Some(3));
        assert_eq!(most(|plan| (plan.requests, plan.warmup) = (Some(3), 5)), Some(5), "the warm-up is closed, too");
        assert_eq!(most(|plan| (plan.arrival, plan.concurrency) = (ArrivalPattern::AtOnce, None)), Some(100));
        let mut open = LoadPlan { arrival: rate, ..LoadPlan::closed(8, 100) };
        assert_eq!(most_in_flight(&open, None), Some(8));
        open.concurrency = None;
        assert_eq!(most_in_flight(&open, None), None, "nobody knows how slow the server is");
    }
}
