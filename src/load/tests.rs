//! The load against servers that misbehave: every request ends in its class, and none distorts another's numbers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::misbehaving::{CannedAnswer, MisbehavingServer};
use super::{
    Dialect, LoadError, LoadEvent, LoadPhase, LoadPlan, LoadRun, LoadTarget, RequestApi, RequestError, RequestRecord,
    RunEnd, RunFlow, drive,
};
use crate::workload::{Prompt, UserSession, Workload};

/// Workload whose prompts are numbered by their first token id.
#[derive(Debug)]
struct Numbered;

const OUTPUT: u32 = 6;

impl Workload for Numbered {
    fn session(&self, index: u64) -> UserSession {
        UserSession::single(Prompt::Tokens(vec![u32::try_from(index).unwrap()]), OUTPUT)
    }

    fn longest(&self) -> u64 {
        1 + u64::from(OUTPUT)
    }
}

fn target(server: &MisbehavingServer) -> LoadTarget {
    LoadTarget::new(format!("http://{}/v1/", server.address), "m")
}

fn plan(concurrency: usize, requests: u64) -> LoadPlan {
    LoadPlan { request_timeout: Duration::from_secs(20), ..LoadPlan::closed(concurrency, requests) }
}

/// Like `Numbered`, with prompts that every server accepts at either path.
#[derive(Debug)]
struct Spoken;

impl Workload for Spoken {
    fn session(&self, index: u64) -> UserSession {
        UserSession::single(Prompt::Text(format!("number {index}")), OUTPUT)
    }

    fn longest(&self) -> u64 {
        4 + u64::from(OUTPUT)
    }
}

/// Drives a load without a stop signal.
async fn whole(target: LoadTarget, plan: LoadPlan) -> LoadRun {
    let (_stop, stop) = watch::channel(false);
    drive(target, Arc::new(Numbered), plan, |_| RunFlow::Continue, stop).await.unwrap()
}

/// Sends one request, and the server answers with `answer`.
async fn one(answer: CannedAnswer) -> RequestRecord {
    let server = MisbehavingServer::start(move |_| answer).await;
    let timeout = if answer == CannedAnswer::Stall { Duration::from_millis(150) } else { Duration::from_secs(20) };
    let mut run = whole(target(&server), LoadPlan { request_timeout: timeout, ..plan(1, 1) }).await;
    assert_eq!((run.records.len(), run.unfinished, &run.end), (1, 0, &RunEnd::Complete));
    run.records.remove(0)
}

/// Sends one request of a changed target, and the server answers with `answer`.
async fn one_of(answer: CannedAnswer, change: impl FnOnce(&mut LoadTarget)) -> RequestRecord {
    let server = MisbehavingServer::start(move |_| answer).await;
    let mut target = target(&server);
    change(&mut target);
    let (_stop, stop) = watch::channel(false);
    let mut run = drive(target, Arc::new(Spoken), plan(1, 1), |_| RunFlow::Continue, stop).await.unwrap();
    assert_eq!((run.records.len(), &run.end), (1, &RunEnd::Complete));
    run.records.remove(0)
}

#[tokio::test]
async fn a_whole_answer_is_recorded_with_its_times_and_counts() {
    let record = one(CannedAnswer::Whole).await;
    assert_eq!(record.result, Ok(()));
    assert_eq!((record.session, record.prompt_tokens, record.output_tokens), (0, 1, OUTPUT));
    assert_eq!(record.chunks.len(), OUTPUT as usize);
    assert!(record.chunks.is_sorted());
    assert!(record.e2el().unwrap() >= Duration::from_millis(5), "{record:?}");
    assert!(record.due <= record.sent && record.sent + record.e2el().unwrap() <= record.end, "{record:?}");
}

#[tokio::test]
async fn events_split_into_bytes_or_sent_in_one_packet_are_the_same_answer() {
    let (split, packet) = tokio::join!(one(CannedAnswer::Split), one(CannedAnswer::OnePacket));
    assert_eq!((split.result, split.output_tokens, split.chunks.len()), (Ok(()), OUTPUT, OUTPUT as usize));
    assert_eq!((packet.result, packet.output_tokens, packet.chunks.len()), (Ok(()), OUTPUT, OUTPUT as usize / 2));
    assert!(packet.chunks.iter().all(|at| *at == packet.chunks[0]), "one read has one instant");
}

#[tokio::test]
async fn other_ways_to_send_the_same_answer_are_the_same_answer() {
    for answer in [
        CannedAnswer::KeepAlive,
        CannedAnswer::UsageEverywhere,
        CannedAnswer::UsageWithLast,
        CannedAnswer::Length,
        CannedAnswer::UntilClose,
        CannedAnswer::Informational,
        CannedAnswer::SlowHead,
    ] {
        let record = one(answer).await;
        assert_eq!(record.result, Ok(()), "{answer:?}");
        let counts = (record.chunk_count, record.chunks.len(), record.prompt_tokens, record.output_tokens);
        assert_eq!(counts, (OUTPUT, OUTPUT as usize, 1, OUTPUT), "{answer:?}");
    }
}

#[tokio::test]
async fn every_server_is_understood_in_its_own_dialect() {
    let (text, chat) = (RequestApi::Completions, RequestApi::Chat);
    for (dialect, api, answer) in [
        (Dialect::Vllm, chat, CannedAnswer::Chat),
        (Dialect::OpenAi, text, CannedAnswer::Whole),
        (Dialect::Sglang, text, CannedAnswer::Whole),
        (Dialect::Sglang, chat, CannedAnswer::SglangChat),
        (Dialect::Tgi, text, CannedAnswer::Tgi),
        (Dialect::Tgi, chat, CannedAnswer::TgiChat),
        (Dialect::LlamaCpp, text, CannedAnswer::LlamaCpp),
        (Dialect::LlamaCpp, chat, CannedAnswer::Chat),
    ] {
        let record = one_of(answer, |target| (target.dialect, target.api) = (dialect, api)).await;
        assert_eq!(record.result, Ok(()), "{dialect:?} {answer:?}");
        let counts = (record.chunks.len(), record.prompt_tokens, record.output_tokens);
        assert_eq!(counts, (OUTPUT as usize, 1, OUTPUT), "{dialect:?} {answer:?}");
    }
}

#[tokio::test]
async fn a_server_that_never_counts_is_counted_by_chunks() {
    let record = one_of(CannedAnswer::NoUsage, |target| target.dialect = Dialect::OpenAi).await;
    assert_eq!((record.result, record.prompt_tokens, record.output_tokens), (Ok(()), 0, OUTPUT));
    let record = one_of(CannedAnswer::NoUsage, |target| target.dialect = Dialect::Vllm).await;
    assert_eq!(record.result.unwrap_err().class(), "truncated");
}

#[tokio::test]
async fn without_streaming_the_reply_is_one_document() {
    let record = one_of(CannedAnswer::Document, |target| target.stream = false).await;
    assert_eq!((&record.result, record.streamed, record.chunks.len()), (&Ok(()), false, 1));
    assert_eq!((record.prompt_tokens, record.output_tokens, record.ttft()), (1, OUTPUT, None));
    assert!(record.e2el().is_some());
    for (answer, class, seen) in [
        (CannedAnswer::HalfDocument, "protocol", "EOF"),
        (CannedAnswer::ErrorDocument, "server_error", "engine died"),
        (CannedAnswer::Status(503), "http_503", "refused for the test"),
        (CannedAnswer::Whole, "protocol", "data: "),
        (CannedAnswer::Close, "reset", ""),
    ] {
        let error = one_of(answer, |target| target.stream = false).await.result.unwrap_err();
        assert_eq!(error.class(), class, "{answer:?}: {error}");
        assert!(error.to_string().contains(seen), "{answer:?}: {error}");
    }
}

#[tokio::test]
async fn fewer_tokens_are_a_failure_unless_they_were_allowed() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Short).await;
    let run = whole(target(&server), LoadPlan { allow_eos: true, ..plan(1, 1) }).await;
    assert_eq!((&run.records[0].result, run.records[0].output_tokens), (&Ok(()), OUTPUT - 1));
    let run = whole(target(&server), plan(1, 1)).await;
    assert_eq!(run.records[0].result, Err(RequestError::WrongLength { asked: OUTPUT, got: OUTPUT - 1 }));
}

#[tokio::test]
async fn a_slow_first_token_is_a_late_first_token() {
    let record = one(CannedAnswer::SlowFirst(Duration::from_millis(80))).await;
    assert_eq!(record.result, Ok(()));
    assert!(record.ttft().unwrap() >= Duration::from_millis(80), "{record:?}");
    assert!(record.e2el().unwrap() < Duration::from_secs(5), "{record:?}");
}

#[tokio::test]
async fn every_failure_has_its_class_and_the_observed_text() {
    for (answer, class, seen, chunks) in [
        (CannedAnswer::Status(500), "http_500", "refused for the test", 0),
        (CannedAnswer::Status(404), "http_404", "refused for the test", 0),
        (CannedAnswer::Status(302), "http_302", "refused for the test", 0),
        (CannedAnswer::TextStatus(429), "http_429", "429: refused for the test", 0),
        (CannedAnswer::TextStatus(502), "http_502", "502: refused for the test", 0),
        (CannedAnswer::ErrorEvent, "server_error", "engine died", 1),
        (CannedAnswer::ErrorLine, "server_error", "engine died", 1),
        (CannedAnswer::ErrorDocument, "server_error", "engine died", 0),
        (CannedAnswer::Document, "protocol", "no event in a body", 0),
        (CannedAnswer::Abort, "server_error", "abort", 2),
        (CannedAnswer::HugeHead, "protocol", "", 0),
        (CannedAnswer::Reset, "reset", "", 1),
        (CannedAnswer::Close, "reset", "", 1),
        (CannedAnswer::Hangup, "reset", "", 0),
        (CannedAnswer::NoDone, "truncated", "[DONE]", 6),
        (CannedAnswer::NoUsage, "truncated", "usage", 6),
        (CannedAnswer::Stall, "timeout", "150 ms, 1 chunks", 1),
        (CannedAnswer::Short, "wrong_length", "5 output tokens, 6 requested", 5),
        (CannedAnswer::Garbage, "protocol", "EOF", 6),
        (CannedAnswer::NoHttp, "protocol", "", 0),
    ] {
        let record = one(answer).await;
        let error = record.result.expect_err("a failure");
        assert_eq!(error.class(), class, "{answer:?}: {error}");
        assert!(error.to_string().contains(seen), "{answer:?}: {error}");
        assert_eq!(record.chunks.len(), chunks, "{answer:?}: {error}");
    }
}

#[tokio::test]
async fn a_port_without_a_listener_is_a_connect_failure() {
    // The port is bound but does not listen, so that no other process can take it meanwhile.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let base_url = format!("http://{}", socket.local_addr().unwrap());
    let run = whole(LoadTarget::new(base_url, "m"), plan(2, 3)).await;
    assert_eq!(run.records.len(), 3);
    assert!(run.records.iter().all(|record| matches!(record.result, Err(RequestError::Connect(_)))), "{run:?}");
}

#[tokio::test]
async fn failures_beside_them_leave_good_requests_as_they_are() {
    let bad = [
        CannedAnswer::Reset,
        CannedAnswer::Status(500),
        CannedAnswer::ErrorEvent,
        CannedAnswer::NoDone,
        CannedAnswer::Short,
        CannedAnswer::Close,
    ];
    let bad = move |index: u64| bad[usize::try_from(index / 2).unwrap() % bad.len()];
    let choose = move |index| if index % 2 == 0 { CannedAnswer::Whole } else { bad(index) };
    let server = MisbehavingServer::start(choose).await;
    let run = whole(target(&server), plan(4, 48)).await;
    assert_eq!(run.records.len(), 48);
    for record in &run.records {
        assert_eq!(record.result.is_ok(), record.session % 2 == 0, "{record:?}");
    }
    let good = run.records.iter().filter(|record| record.result.is_ok());
    assert!(good.clone().all(|record| (record.prompt_tokens, record.output_tokens) == (1, OUTPUT)), "{run:?}");
    assert_eq!(good.count(), 24);
    let classes: Vec<_> = run.records.iter().filter_map(|record| Some(record.result.as_ref().err()?.class())).collect();
    let failures = |class: &str| classes.iter().filter(|seen| *seen == class).count();
    assert_eq!((failures("reset"), failures("server_error")), (8, 4));
}

#[tokio::test]
async fn connections_are_kept_and_a_stale_one_is_no_failure() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Whole).await;
    let run = whole(target(&server), plan(4, 40)).await;
    assert!(run.records.iter().all(|record| record.result.is_ok()));
    assert_eq!(server.connections.load(Ordering::Relaxed), 4);

    let server = MisbehavingServer::start(|_| CannedAnswer::Stale).await;
    let run = whole(target(&server), plan(2, 10)).await;
    assert!(run.records.iter().all(|record| record.result.is_ok()), "{:?}", run.records);
    assert_eq!(run.records.len(), 10);
}

#[tokio::test]
async fn a_connection_that_is_lost_long_after_the_send_was_not_stale() {
    let server = MisbehavingServer::start(|_| CannedAnswer::LateHangup).await;
    let run = whole(target(&server), plan(1, 2)).await;
    let classes: Vec<_> =
        run.records.iter().map(|record| record.result.as_ref().map_err(RequestError::class)).collect();
    assert_eq!((classes, run.client.resent), (vec![Ok(&()), Err("reset".to_owned())], 0));
    let lost = &run.records[1];
    assert!(lost.end >= lost.sent + Duration::from_millis(600), "its wait is part of it: {lost:?}");
}

/// Prompts of several megabytes, which no socket takes at once.
#[derive(Debug)]
struct Long;

impl Workload for Long {
    fn session(&self, _index: u64) -> UserSession {
        UserSession::single(Prompt::Tokens(vec![100_000; 1 << 20]), OUTPUT)
    }

    fn longest(&self) -> u64 {
        (1 << 20) + u64::from(OUTPUT)
    }
}

#[tokio::test]
async fn a_refusal_or_a_reset_during_a_long_prompt_is_recorded() {
    for (refusal, class) in [("HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n", "http_413"), ("", "reset")] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    stream.read_exact(&mut [0; 1000]).await.unwrap();
                    stream.write_all(refusal.as_bytes()).await.unwrap();
                    // Closed with bytes unread, a connection is reset.
                });
            }
        });
        let (_stop, stop) = watch::channel(false);
        let run = drive(LoadTarget::new(base_url, "m"), Arc::new(Long), plan(2, 4), |_| RunFlow::Continue, stop).await;
        for record in run.unwrap().records {
            assert_eq!(record.result.unwrap_err().class(), class);
        }
    }
}

#[tokio::test]
async fn the_warm_up_has_other_prompts_and_no_records() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let choose = move |index| {
        log.lock().unwrap().push(index);
        if index == 6 { CannedAnswer::Status(500) } else { CannedAnswer::Whole }
    };
    let server = MisbehavingServer::start(choose).await;
    let phases = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&phases);
    let observer = move |event: LoadEvent<'_>| {
        match event {
            LoadEvent::Phase { phase, total } => log.lock().unwrap().push((phase, total, None)),
            LoadEvent::Ended { phase, record } => log.lock().unwrap().push((phase, None, Some(record.result.is_ok()))),
            LoadEvent::Tick(_) | LoadEvent::WarmupTick(_) => {}
        }
        RunFlow::Continue
    };
    let (_stop, stop) = watch::channel(false);
    let plan = LoadPlan { warmup: 3, ..plan(1, 5) };
    let run = drive(target(&server), Arc::new(Numbered), plan, observer, stop).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [5, 6, 7, 0, 1, 2, 3, 4]);
    assert_eq!((run.warmup.completed, run.warmup.failed, run.records.len()), (2, 1, 5));
    let phases = phases.lock().unwrap();
    let (begin, ended) = (|phase, total| (phase, Some(total), None), |phase, ok| (phase, None, Some(ok)));
    let (warm, measure) = (LoadPhase::Warmup, LoadPhase::Measure);
    let expected =
        [begin(LoadPhase::Prepare, 8), begin(warm, 3), ended(warm, true), ended(warm, false), ended(warm, true)];
    assert_eq!(phases[..5], expected);
    assert_eq!(phases[5], begin(measure, 5));
    assert_eq!(phases[6..], [ended(measure, true); 5]);
}

#[tokio::test]
async fn a_stop_ends_the_run_at_once_and_keeps_what_had_ended() {
    let server =
        MisbehavingServer::start(|index| if index < 4 { CannedAnswer::Whole } else { CannedAnswer::Stall }).await;
    let (signal, stop) = watch::channel(false);
    let mut completed = 0;
    let observer = move |event: LoadEvent<'_>| {
        completed += usize::from(matches!(event, LoadEvent::Ended { .. }));
        signal.send_replace(completed == 4);
        RunFlow::Continue
    };
    let began = Instant::now();
    let run = drive(target(&server), Arc::new(Numbered), plan(3, 100), observer, stop).await.unwrap();
    assert!(run.end == RunEnd::Stopped && began.elapsed() < Duration::from_secs(5));
    assert_eq!(run.records.len(), 4);
    // The third slot may have been stopped between two requests.
    assert!((2..=3).contains(&run.unfinished), "{}", run.unfinished);
}

#[tokio::test]
async fn a_second_stop_does_not_wait_for_the_end_of_the_run() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Stall).await;
    let (signal, stop) = watch::channel(false);
    let observer = |event: LoadEvent<'_>| {
        if matches!(event, LoadEvent::Phase { .. }) {
            std::thread::sleep(Duration::from_millis(50));
        }
        RunFlow::Continue
    };
    let run = drive(target(&server), Arc::new(Numbered), plan(2, 9), observer, stop);
    let twice = async {
        for _ in 0..9 {
            signal.send_replace(true);
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(tokio::join!(run, twice).0.unwrap().end, RunEnd::Stopped);
}

#[tokio::test]
async fn a_dropped_future_stops_the_load() {
    let server = MisbehavingServer::start(|_| CannedAnswer::Stall).await;
    let (_stop, stop) = watch::channel(false);
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let observer = move |_: LoadEvent<'_>| {
        let _ = &held;
        RunFlow::Continue
    };
    let run = drive(target(&server), Arc::new(Numbered), plan(2, 9), observer, stop);
    assert!(tokio::time::timeout(Duration::from_millis(30), run).await.is_err());
    let deadline = Instant::now() + Duration::from_secs(5);
    while Arc::strong_count(&alive) > 1 {
        assert!(Instant::now() < deadline, "the load's thread still runs");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn an_invalid_load_is_refused_before_anything_is_sent() {
    let try_with = |url: &str, plan: LoadPlan| {
        let target = LoadTarget::new(url, "m");
        let (_stop, stop) = watch::channel(false);
        async move { drive(target, Arc::new(Numbered), plan, |_| RunFlow::Continue, stop).await.unwrap_err() }
    };
    let refused = try_with("http://127.0.0.1:1", plan(0, 1)).await;
    assert_eq!(refused.to_string(), "concurrency must be at least 1");
    assert!(matches!(try_with("127.0.0.1", plan(1, 1)).await, LoadError::Url { .. }));
    assert!(matches!(try_with("ftp://127.0.0.1", plan(1, 1)).await, LoadError::Url { .. }));
    for (dialect, api) in [(Dialect::Vllm, RequestApi::Chat), (Dialect::Tgi, RequestApi::Completions)] {
        let target = LoadTarget { api, dialect, ..LoadTarget::new("http://127.0.0.1:1", "m") };
        let (_stop, stop) = watch::channel(false);
        let refused = drive(target, Arc::new(Numbered), plan(1, 1), |_| RunFlow::Continue, stop).await.unwrap_err();
        assert!(matches!(refused, LoadError::Prompt { .. }) && refused.hint().is_some(), "{refused}");
    }
}
