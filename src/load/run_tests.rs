//! Whole runs: arrivals, sessions and ends, against a server with correct answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use super::misbehaving::{CannedAnswer, MisbehavingServer};
use super::{
    ArrivalPattern, LoadError, LoadEvent, LoadPhase, LoadPlan, LoadRun, LoadTarget, RequestRecord, RunEnd, RunFlow,
    drive, instants,
};
use crate::workload::{Prompt, Request, SessionTurn, UserSession, Workload};

const OUTPUT: u32 = 6;

/// A session that no run reaches: without a number of requests the feed goes ahead by 64 MiB, some 200,000 sessions.
const LAST: u64 = 1_000_000;

/// Sessions with several turns. The prompt contains the numbers of session and turn.
#[derive(Debug)]
struct Turns {
    each: u32,
    think: Duration,
    stamps: Option<Vec<u64>>,
}

const SINGLE: Turns = Turns { each: 1, think: Duration::ZERO, stamps: None };

impl Workload for Turns {
    fn session(&self, index: u64) -> UserSession {
        assert!(index < LAST, "nobody needs session {index}");
        let turn = |turn| {
            let prompt = Prompt::Tokens(vec![u32::try_from(index).unwrap() * 10 + turn]);
            SessionTurn {
                request: Request { prompt, output_len: OUTPUT },
                think: if turn > 0 { self.think } else { Duration::ZERO },
            }
        };
        UserSession { turns: (0..self.each).map(turn).collect() }
    }

    fn longest(&self) -> u64 {
        1 + u64::from(OUTPUT)
    }

    fn len(&self) -> Option<u64> {
        self.stamps.as_ref().map(|stamps| stamps.len() as u64)
    }

    fn due(&self, index: u64) -> Option<Duration> {
        let stamps = self.stamps.as_ref()?;
        stamps.get(usize::try_from(index).unwrap()).map(|ms| Duration::from_millis(*ms))
    }
}

async fn run(server: &MisbehavingServer, workload: Turns, plan: LoadPlan) -> Result<LoadRun, LoadError> {
    let (_stop, stop) = watch::channel(false);
    let target = LoadTarget::new(format!("http://{}", server.address), "m");
    drive(target, Arc::new(workload), plan, |_| RunFlow::Continue, stop).await
}

fn open(per_s: f64, requests: u64) -> LoadPlan {
    let arrival = ArrivalPattern::Rate { per_s, burstiness: 1.0 };
    LoadPlan { arrival, concurrency: None, request_timeout: Duration::from_secs(20), ..LoadPlan::closed(1, requests) }
}

fn in_order(mut run: LoadRun) -> Vec<RequestRecord> {
    run.records.sort_by_key(|record| (record.session, record.turn));
    assert!(run.records.iter().all(|record| record.result.is_ok()), "{:?}", run.records);
    run.records
}

#[tokio::test]
async fn an_open_loop_sends_at_its_instants_and_reports_its_lateness() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let plan = open(400.0, 40);
    let due: Vec<_> = instants(&plan.arrival, plan.seed, Some(40)).collect();
    let records = in_order(run(&server, SINGLE, plan).await.unwrap());
    assert_eq!(records.iter().map(|record| record.due).collect::<Vec<_>>(), due);
    for record in &records {
        assert!(record.sent >= record.due && !record.queued, "{record:?}");
        assert_eq!(record.lateness() + Duration::from_micros(record.chunks[0].into()), record.ttft().unwrap());
    }
}

#[tokio::test]
async fn a_wait_for_a_place_counts_from_the_due_time() {
    let server = MisbehavingServer::start(|_| CannedAnswer::SlowFirst(Duration::from_millis(10))).await;
    let records = in_order(run(&server, SINGLE, LoadPlan { concurrency: Some(1), ..open(10_000.0, 5) }).await.unwrap());
    assert!(records[1..].iter().all(|record| record.queued), "{records:?}");
    // Four others were served first, and each took at least 10 ms.
    assert!(records[4].ttft().unwrap() >= Duration::from_millis(45), "{records:?}");
    assert!(records.windows(2).all(|pair| pair[1].sent >= pair[0].end), "one at a time: {records:?}");
}

#[tokio::test]
async fn a_trace_is_played_once_at_its_stamps_times_a_factor() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let workload = || Turns { stamps: Some(vec![0, 40, 30, 60]), ..SINGLE };
    let plan = LoadPlan { arrival: ArrivalPattern::Trace { factor: 0.5 }, requests: None, ..open(1.0, 1) };
    let records = in_order(run(&server, workload(), plan.clone()).await.unwrap());
    let due: Vec<_> = records.iter().map(|record| record.due.as_millis()).collect();
    assert_eq!(due, [0, 20, 20, 30], "a stamp that goes back is due with the one before it");
    let refused = run(&server, SINGLE, plan).await.unwrap_err();
    assert!(matches!(refused, LoadError::NoTimeStamps) && refused.hint().is_some());
}

#[tokio::test]
async fn a_run_ends_with_its_last_request_and_not_with_the_next_stamp() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let workload = Turns { stamps: Some(vec![0, 10, 60_000]), ..SINGLE };
    let plan = LoadPlan { arrival: ArrivalPattern::Trace { factor: 1.0 }, ..open(1.0, 2) };
    let run = run(&server, workload, plan).await.unwrap();
    assert!(run.ended - run.began < Duration::from_secs(20), "it waited for a session that it does not send");
    assert_eq!((in_order(run.clone()).len(), run.unsent, run.end), (2, 0, RunEnd::Complete));
}

#[tokio::test]
async fn a_trace_that_begins_later_keeps_the_gaps_of_its_sessions() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let workload = Turns { stamps: Some(vec![0, 40, 50, 70]), ..SINGLE };
    let plan = LoadPlan { arrival: ArrivalPattern::Trace { factor: 1.0 }, first: 1, requests: None, ..open(1.0, 1) };
    let records = in_order(run(&server, workload, plan).await.unwrap());
    let due: Vec<_> = records.iter().map(|record| (record.session, record.due.as_millis())).collect();
    assert_eq!(due, [(1, 0), (2, 10), (3, 30)]);
}

#[tokio::test]
async fn users_think_between_turns_and_their_sessions_are_cut_at_the_number_of_requests() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let workload = Turns { each: 3, think: Duration::from_millis(20), stamps: None };
    let records = in_order(run(&server, workload, LoadPlan::closed(2, 7)).await.unwrap());
    let turns: Vec<_> = records.iter().map(|record| (record.session, record.turn)).collect();
    assert_eq!(turns, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)]);
    for pair in records.windows(2).filter(|pair| pair[0].session == pair[1].session) {
        assert!(pair[1].sent >= pair[0].end + Duration::from_millis(20), "{pair:?}");
        assert_eq!(pair[1].due, pair[1].sent);
    }
}

#[tokio::test]
async fn after_the_duration_nothing_is_sent_and_waiting_requests_are_counted() {
    let server = MisbehavingServer::start(|_| CannedAnswer::SlowFirst(Duration::from_millis(60))).await;
    let duration = Some(Duration::from_millis(100));
    let plan = LoadPlan { requests: None, duration, concurrency: Some(1), ..open(200.0, 1) };
    let run = run(&server, SINGLE, plan).await.unwrap();
    assert_eq!((run.end.clone(), run.unfinished), (RunEnd::Complete, 0));
    assert!((1..=2).contains(&run.records.len()), "{run:?}");
    assert!(run.records.iter().all(|record| record.sent < Duration::from_millis(100)));
    assert!(run.unsent >= 5, "about 20 were due: {}", run.unsent);
}

#[tokio::test]
async fn all_at_once_is_all_at_once() {
    let server = MisbehavingServer::start(|_| CannedAnswer::SlowFirst(Duration::from_millis(50))).await;
    let run = run(&server, SINGLE, LoadPlan { arrival: ArrivalPattern::AtOnce, ..open(1.0, 30) }).await.unwrap();
    assert_eq!((run.records.len(), run.client.peak_in_flight, run.client.connections), (30, 30, 30));
    assert!(run.records.iter().all(|record| record.due == record.sent));
}

#[tokio::test]
async fn the_observer_can_end_a_run_and_receives_its_progress() {
    let server =
        MisbehavingServer::start(|index| if index < 40 { CannedAnswer::Whole } else { CannedAnswer::Stall }).await;
    let ticks = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ticks);
    let observer = move |event: LoadEvent<'_>| {
        if let LoadEvent::Tick(tick) = event {
            log.lock().unwrap().push(tick);
            return if log.lock().unwrap().len() == 3 { RunFlow::End } else { RunFlow::Continue };
        }
        RunFlow::Continue
    };
    let (_stop, stop) = watch::channel(false);
    let target = LoadTarget::new(format!("http://{}", server.address), "m");
    let run = drive(target, Arc::new(SINGLE), LoadPlan::closed(2, 99), observer, stop).await.unwrap();
    assert_eq!((run.end, run.records.len(), run.unfinished), (RunEnd::Observer, 4, 2));
    let ticks = ticks.lock().unwrap();
    assert!(ticks.windows(2).all(|pair| pair[1].at >= pair[0].at + Duration::from_millis(50)), "{ticks:?}");
    // Four whole answers, and the first token of the two that stall.
    assert_eq!((ticks[2].sent, ticks[2].in_flight, ticks[2].chunks), (6, 2, u64::from(4 * OUTPUT + 2)));
}

#[tokio::test]
async fn an_observer_that_has_seen_enough_is_not_called_again() {
    let server = MisbehavingServer::start(|_| CannedAnswer::OnePacket).await;
    let calls = Arc::new(Mutex::new(0));
    let log = Arc::clone(&calls);
    let observer = move |event: LoadEvent<'_>| {
        if matches!(event, LoadEvent::Ended { .. }) {
            let mut calls = log.lock().unwrap();
            *calls += 1;
            if *calls == 1 {
                // The other replies arrive meanwhile, and are all ready at once.
                std::thread::sleep(Duration::from_millis(100));
            }
            return if *calls == 2 { RunFlow::End } else { RunFlow::Continue };
        }
        RunFlow::Continue
    };
    let (_stop, stop) = watch::channel(false);
    let target = LoadTarget::new(format!("http://{}", server.address), "m");
    let run = drive(target, Arc::new(SINGLE), LoadPlan::closed(30, 300), observer, stop).await.unwrap();
    assert_eq!((*calls.lock().unwrap(), run.records.len(), run.end), (2, 2, RunEnd::Observer));
}

#[tokio::test]
async fn a_run_that_is_stopped_before_its_window_sends_nothing_in_it() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Stall).await;
    let (signal, stop) = watch::channel(false);
    let phases = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&phases);
    let observer = move |event: LoadEvent<'_>| {
        if let LoadEvent::Phase { phase, .. } = event {
            log.lock().unwrap().push(phase);
            signal.send_replace(phase == LoadPhase::Warmup);
        }
        RunFlow::Continue
    };
    let target = LoadTarget::new(format!("http://{}", server.address), "m");
    let plan = LoadPlan { warmup: 2, ..LoadPlan::closed(2, 9) };
    let run = drive(target, Arc::new(SINGLE), plan, observer, stop).await.unwrap();
    assert_eq!((run.end, run.records.len(), run.unfinished), (RunEnd::Stopped, 0, 0));
    assert_eq!(*phases.lock().unwrap(), [LoadPhase::Prepare, LoadPhase::Warmup]);
}

#[tokio::test]
async fn beyond_the_times_that_are_kept_records_have_their_first_and_last() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let plan = LoadPlan { kept_chunks: 13, ..LoadPlan::closed(1, 4) };
    let records = in_order(run(&server, SINGLE, plan).await.unwrap());
    let kept: Vec<_> = records.iter().map(|record| (record.thinned, record.chunks.len(), record.chunk_count)).collect();
    assert_eq!(kept, [(false, 6, 6), (false, 6, 6), (true, 2, 6), (true, 2, 6)]);
}

#[tokio::test]
#[should_panic(expected = "nobody needs session 1000000")]
async fn a_panic_of_the_workload_reaches_the_caller() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let plan = LoadPlan { arrival: ArrivalPattern::Trace { factor: 0.0 }, ..LoadPlan::closed(1, 1) };
    assert!(matches!(run(&server, SINGLE, plan).await, Err(LoadError::Arrival(_))), "a factor of 0");
    // The warm-up's sessions come after those of the window.
    let _ = run(&server, SINGLE, LoadPlan { warmup: 1, ..LoadPlan::closed(1, LAST) }).await;
}

#[tokio::test]
async fn a_load_without_an_end_or_with_too_many_connections_is_refused() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let endless = LoadPlan { requests: None, ..LoadPlan::closed(1, 1) };
    assert!(matches!(run(&server, SINGLE, endless).await, Err(LoadError::Endless)));
    let nobody = LoadPlan { concurrency: None, ..LoadPlan::closed(1, 1) };
    assert!(matches!(run(&server, SINGLE, nobody).await, Err(LoadError::NoConcurrency)));
    let refused = run(&server, SINGLE, LoadPlan::closed(1 << 40, 1 << 41)).await.unwrap_err().to_string();
    // The number covers all loads of this process, including those of other tests.
    let (files, rest) = refused.split_once(' ').unwrap();
    assert!((1_u64 << 40..1 << 41).contains(&files.parse().unwrap()), "{refused}");
    assert!(rest.starts_with("open files are needed, the limit is "), "{refused}");
}

#[tokio::test]
async fn the_address_that_accepts_connections_is_used() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let (_stop, stop) = watch::channel(false);
    let target = LoadTarget::new(format!("http://localhost:{}", server.address.port()), "m");
    let plan = LoadPlan { warmup: 2, ..LoadPlan::closed(2, 3) };
    let phases = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&phases);
    let observer = move |event: LoadEvent<'_>| {
        if let LoadEvent::Phase { phase, total } = event {
            log.lock().unwrap().push((phase, total));
        }
        RunFlow::Continue
    };
    let run = drive(target, Arc::new(SINGLE), plan, observer, stop).await.unwrap();
    assert_eq!((in_order(run).len(), phases.lock().unwrap().len()), (3, 3));
    assert_eq!(phases.lock().unwrap()[1], (LoadPhase::Warmup, Some(2)));
}
