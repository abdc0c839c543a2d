//! Client side of a virtual run. The load generator's schedule decides when requests are sent, and the twin answers
//! them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::script::{PromptScript, ScriptTurn};
use crate::load::{
    LoadEvent, LoadPhase, LoadSchedule, NextSend, RequestError, RequestInstants, RequestRecord, SessionRange,
    TakenRequest, UserProgress, nanos,
};
use crate::metrics::WindowRecorder;
use crate::twin::{self, RequestSource, SentRequest, Tokens, TwinArrival, VirtualReply};

/// The clients of one phase of a load. Times are on the device's clock unless stated otherwise. That clock is `pace`
/// times as fast as the clients' clock.
pub(super) struct VirtualClient<'a> {
    pace: f64,
    wire: WireTime,
    /// On the clients' clock.
    request_timeout: Duration,
    /// Whether prompts are passed as token ids instead of their number. Prefix caching needs the ids.
    ids: bool,
    schedule: LoadSchedule<ScriptTurn>,
    sessions: RemainingSessions<'a>,
    /// Replies on the way to their client, the earliest first.
    endings: BinaryHeap<Reverse<Ending>>,
    /// Number of replies so far. It orders replies that end at the same time.
    number: u64,
    /// Finished requests, on the clients' clock.
    pub(super) records: Vec<RequestRecord>,
    /// Receives every record with all of its chunks, before `records` drops some of them.
    pub(super) recorder: WindowRecorder,
    /// Number of chunk times that further records may keep.
    kept_chunks_left: usize,
}

/// Network latency of requests and of tokens, on the device's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WireTime {
    pub(super) request: Duration,
    pub(super) token: Duration,
}

/// Send times and limits of a phase, on the clients' clock except for `wire`.
pub(super) struct PhaseTiming {
    /// Seconds of the device's clock per second of the clients' clock.
    pub(super) pace: f64,
    pub(super) wire: WireTime,
    /// Instants at which sessions are due; `None` for a closed loop.
    pub(super) instants: Option<RequestInstants>,
    /// Users of a closed loop, otherwise the largest number of requests in flight.
    pub(super) max_in_flight: Option<usize>,
    /// Duration after which nothing is sent.
    pub(super) length: Option<Duration>,
    pub(super) request_timeout: Duration,
    /// Largest number of chunk times that all records together keep. Beyond it, a record keeps only its first and last.
    pub(super) kept_chunks: usize,
}

/// The sessions of a phase that have not begun: indices `next` to `end`, with `left` requests at most.
struct RemainingSessions<'a> {
    script: &'a PromptScript,
    pace: f64,
    next: u64,
    end: u64,
    requests_left: u64,
}

/// A user that waits for a reply. Times are on the device's clock.
pub(super) struct VirtualUser {
    rest: UserProgress<ScriptTurn>,
    due: Duration,
    sent: Duration,
    queued: bool,
    output_len: u32,
}

/// The end of a reply at its client. `at` is the time on the device's clock and the reply's number.
struct Ending {
    at: (Duration, u64),
    rest: UserProgress<ScriptTurn>,
}

impl PartialEq for Ending {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Ending {}

impl PartialOrd for Ending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// Returns whether both clocks are equally fast. Times are then not converted, because a conversion would round them.
fn is_same_clock(pace: f64) -> bool {
    (pace - 1.0).abs() < f64::EPSILON
}

/// Converts a time of the clients' clock to the device's.
fn to_device(time: Duration, pace: f64) -> Duration {
    if is_same_clock(pace) {
        time
    } else {
        Duration::try_from_secs_f64(time.as_secs_f64() * pace).unwrap_or(Duration::MAX)
    }
}

impl<'a> VirtualClient<'a> {
    pub(super) fn new(script: &'a PromptScript, range: SessionRange, ids: bool, timing: PhaseTiming) -> Self {
        let PhaseTiming { pace, wire, instants, max_in_flight, length, request_timeout, kept_chunks } = timing;
        let instants = instants
            .map(|instants| -> RequestInstants { Box::new(instants.map(move |instant| to_device(instant, pace))) });
        let end = range.sessions.map_or(u64::MAX, |sessions| range.first.saturating_add(sessions));
        let left = range.requests.unwrap_or(u64::MAX);
        Self {
            pace,
            wire,
            request_timeout,
            ids,
            schedule: LoadSchedule::new(0, instants, max_in_flight, length.map(|length| to_device(length, pace))),
            sessions: RemainingSessions { script, pace, next: range.first, end, requests_left: left },
            endings: BinaryHeap::new(),
            number: 0,
            records: Vec::new(),
            recorder: WindowRecorder::new(),
            kept_chunks_left: kept_chunks,
        }
    }

    /// Returns the number of sessions that were due but have not begun.
    pub(super) fn unsent(&self) -> usize {
        self.schedule.waiting()
    }

    /// Converts a time of the device's clock to the clients'.
    fn to_clients(&self, time: Duration) -> Duration {
        if is_same_clock(self.pace) { time } else { time.div_f64(self.pace) }
    }

    /// Converts a reply to a record of the load generator.
    fn record(&self, user: &VirtualUser, reply: &VirtualReply) -> RequestRecord {
        let sent = self.to_clients(user.sent);
        let mut at = self.wire.request + reply.ttft + self.wire.token;
        let mut chunks = Vec::with_capacity(reply.gaps.len() + 1);
        chunks.push(self.micros(at));
        for gap in &reply.gaps {
            at += *gap;
            chunks.push(self.micros(at));
        }
        let took = self.to_clients(at);
        let late = took > self.request_timeout;
        if late {
            // The real load generator closes the connection at the limit.
            let limit = micros(self.request_timeout);
            chunks.retain(|chunk| *chunk <= limit);
        }
        let limit_ms = u64::try_from(self.request_timeout.as_millis()).unwrap_or(u64::MAX);
        let failed = Err(RequestError::Timeout { limit_ms, chunks: chunks.len() });
        RequestRecord {
            session: reply.index,
            turn: reply.turn,
            due: self.to_clients(user.due),
            sent,
            chunk_count: u32::try_from(chunks.len()).unwrap_or(u32::MAX),
            chunks,
            thinned: false,
            queued: user.queued,
            end: sent + took.min(self.request_timeout),
            streamed: true,
            requested_tokens: user.output_len,
            prompt_tokens: reply.prompt_len,
            cached_tokens: None,
            output_tokens: reply.tokens,
            result: if late { failed } else { Ok(()) },
        }
    }

    fn micros(&self, at: Duration) -> u32 {
        micros(self.to_clients(at))
    }
}

/// Converts a time to microseconds. It saturates at 71 minutes.
fn micros(at: Duration) -> u32 {
    u32::try_from(at.as_micros()).unwrap_or(u32::MAX)
}

impl RemainingSessions<'_> {
    /// Takes the next session, with the same rules as the load generator's feed.
    fn take(&mut self) -> TakenRequest<ScriptTurn> {
        if self.requests_left == 0 || self.next >= self.end {
            return TakenRequest::Exhausted;
        }
        let turns = self.script.session(self.next);
        let room = usize::try_from(self.requests_left).unwrap_or(usize::MAX);
        let pace = self.pace;
        let turn = |turn: &ScriptTurn| ScriptTurn { think: to_device(turn.think, pace), ..turn.clone() };
        let turns: VecDeque<ScriptTurn> = turns.iter().take(room).map(turn).collect();
        let session = self.next;
        self.next += 1;
        self.requests_left -= turns.len() as u64;
        let progress = UserProgress { session, turn: 0, turns };
        if self.requests_left == 0 || self.next >= self.end {
            TakenRequest::Last(progress)
        } else {
            TakenRequest::Ready(progress)
        }
    }
}

impl RequestSource for VirtualClient<'_> {
    type SourceUser = VirtualUser;

    fn next(&mut self, now: Duration) -> twin::NextArrival<VirtualUser> {
        while self.endings.peek().is_some_and(|ending| ending.0.at.0 <= now)
            && let Some(Reverse(Ending { at, rest })) = self.endings.pop()
        {
            self.schedule.record_end(rest, nanos(at.0));
        }
        let ending = self.endings.peek().map(|ending| ending.0.at.0);
        match self.schedule.next(nanos(now), || self.sessions.take()) {
            NextSend::Send { turn, rest, due, queued } => {
                let prompt = if self.ids {
                    Tokens::Ids(turn.prompt.to_vec().into())
                } else {
                    Tokens::Count(u32::try_from(turn.prompt.len()).unwrap_or(u32::MAX))
                };
                twin::NextArrival::Request(SentRequest {
                    arrival: TwinArrival {
                        at: now + self.wire.request,
                        prompt,
                        output_len: turn.output_len,
                        priority: 0,
                    },
                    index: rest.session,
                    turn: rest.turn.saturating_sub(1),
                    user: VirtualUser {
                        rest,
                        due: due.map_or(now, Duration::from_nanos),
                        sent: now,
                        queued,
                        output_len: turn.output_len,
                    },
                })
            }
            NextSend::WaitUntil(at) => {
                let at = Duration::from_nanos(at);
                twin::NextArrival::NotBefore(ending.map_or(at, |ending| ending.min(at)))
            }
            NextSend::WaitForEvent | NextSend::Finished => {
                ending.map_or(twin::NextArrival::AwaitReply, twin::NextArrival::NotBefore)
            }
        }
    }

    fn answered(&mut self, user: VirtualUser, reply: &VirtualReply, now: Duration) {
        let mut record = self.record(&user, reply);
        self.recorder.on(&LoadEvent::Ended { phase: LoadPhase::Measure, record: &record });
        if record.chunks.len() > 2 && record.chunks.len() > self.kept_chunks_left {
            record.chunks.drain(1..record.chunks.len() - 1);
            record.chunks.shrink_to_fit();
            record.thinned = true;
        }
        self.kept_chunks_left = self.kept_chunks_left.saturating_sub(record.chunks.len());
        self.records.push(record);
        self.number += 1;
        self.endings.push(Reverse(Ending { at: (now + self.wire.token, self.number), rest: user.rest }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::config::ResolvedConfig;
    use crate::load::{ArrivalPattern as Arrivals, LoadPlan, due, measured};
    use crate::twin::{DevicePreset, Drive, DriveObserver, Settings, StepTime, TwinEngine, test_model};
    use crate::workload::RandomWorkload;

    struct Blind;

    impl DriveObserver for Blind {}

    /// Returns the records of a plan whose prompts have 20 tokens and whose replies have 6.
    fn records(plan: &LoadPlan, pace: f64, wire: WireTime) -> Vec<RequestRecord> {
        let workload = RandomWorkload { input_len: 20, output_len: 6, vocab_size: 1000, seed: 7 };
        let script = PromptScript::new(Arc::new(workload));
        let settings = Settings {
            resolved: ResolvedConfig { max_num_seqs: 4, ..Settings::default().resolved },
            ..Settings::default()
        };
        let step_time = StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &settings).unwrap();
        let mut engine = TwinEngine::new(settings).unwrap();
        let timing = PhaseTiming {
            pace,
            wire,
            instants: due(plan, &script.workload, None),
            max_in_flight: plan.concurrency,
            length: plan.duration,
            request_timeout: plan.request_timeout,
            kept_chunks: plan.kept_chunks,
        };
        let mut client = VirtualClient::new(&script, measured(plan, None), true, timing);
        let mut drive = Drive { engines: std::slice::from_mut(&mut engine), step_time: &step_time };
        drive.run(&mut client, &mut Blind).unwrap();
        client.records
    }

    fn arrivals() -> impl Strategy<Value = Arrivals> {
        prop_oneof![
            Just(Arrivals::Closed),
            Just(Arrivals::AtOnce),
            (1.0_f64..500.0, 0.3_f64..3.0).prop_map(|(per_s, burstiness)| Arrivals::Rate { per_s, burstiness }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_request_of_any_load_is_sent_once_and_within_the_concurrency(
            arrival in arrivals(), places in 1_usize..9, requests in 1_u64..40, pace in 0.1_f64..50.0,
        ) {
            let plan = LoadPlan { arrival, ..LoadPlan::closed(places, requests) };
            let records = records(&plan, pace, WireTime::default());
            prop_assert_eq!(records.len() as u64, requests);
            let mut sessions: Vec<_> = records.iter().map(|record| record.session).collect();
            sessions.sort_unstable();
            prop_assert!(sessions.into_iter().eq(0..requests));
            for record in &records {
                prop_assert!(record.result.is_ok() && record.due <= record.sent && record.sent < record.end);
                prop_assert!(record.chunks.is_sorted() && record.chunks.len() == 6 && record.output_tokens == 6);
                // Times of the device's clock are rounded to the clients' nanoseconds.
                let later = record.sent + Duration::from_nanos(2);
                let beside = records.iter().filter(|other| other.sent < later && other.end > later).count();
                prop_assert!(beside <= places, "{beside} of {places} at {:?}", record.sent);
            }
        }

        #[test]
        fn the_pace_changes_nothing_in_a_closed_loop_but_its_times(pace in 0.1_f64..50.0, users in 1_usize..9) {
            let plan = LoadPlan::closed(users, 20);
            let (slow, fast) = (records(&plan, 1.0, WireTime::default()), records(&plan, pace, WireTime::default()));
            for (slow, fast) in slow.iter().zip(&fast) {
                prop_assert_eq!(slow.session, fast.session);
                let (slow, fast) = (slow.end.as_secs_f64(), fast.end.as_secs_f64() * pace);
                prop_assert!((slow - fast).abs() < 1e-6, "{slow} {fast}");
            }
        }
    }

    #[test]
    fn network_latency_counts_for_the_client_and_delays_its_next_request() {
        let ms = Duration::from_millis;
        let wire = WireTime { request: ms(20), token: ms(5) };
        let plan = LoadPlan::closed(1, 3);
        let (near, far) = (records(&plan, 1.0, WireTime::default()), records(&plan, 1.0, wire));
        for (turn, (near, far)) in (1_u32..).zip(near.iter().zip(&far)) {
            assert_eq!(far.ttft().unwrap(), near.ttft().unwrap() + ms(25), "{turn}");
            assert_eq!(far.decode_time(), near.decode_time());
            assert_eq!(far.end, near.end + ms(25) * turn);
        }
    }

    #[test]
    fn beyond_a_limit_only_the_first_and_the_last_chunk_of_a_request_are_kept() {
        let all = records(&LoadPlan::closed(2, 20), 1.0, WireTime::default());
        let few = records(&LoadPlan { kept_chunks: 60, ..LoadPlan::closed(2, 20) }, 1.0, WireTime::default());
        assert_eq!(few.iter().filter(|record| !record.thinned).count(), 10);
        for (all, few) in all.iter().zip(&few) {
            assert_eq!(
                (all.ttft(), all.decode_time(), all.chunk_count),
                (few.ttft(), few.decode_time(), few.chunk_count)
            );
        }
    }

    #[test]
    fn a_request_beyond_the_timeout_fails_when_the_client_hangs_up() {
        let plan = LoadPlan { request_timeout: Duration::from_millis(40), ..LoadPlan::closed(2, 4) };
        let records = records(&plan, 1.0, WireTime { request: Duration::from_millis(30), token: Duration::ZERO });
        for record in records {
            assert!(matches!(record.result, Err(RequestError::Timeout { limit_ms: 40, .. })), "{:?}", record.result);
            assert_eq!(record.end, record.sent + Duration::from_millis(40));
            assert!(record.chunks.iter().all(|chunk| *chunk <= 40_000) && record.chunks.len() < 6);
        }
    }
}
