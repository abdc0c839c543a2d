//! Loads in virtual time: the replies that clients observe, and their times.

use std::time::Duration;

use super::tests::settings;
use super::{
    DevicePreset, Drive, DriveObserver, ScheduledStep, Scheduling, Settings, StepTime, Tokens, TwinArrival, TwinEngine,
    VirtualReply,
};
use super::{drive, test_model};
use crate::config::ResolvedConfig;
use crate::workload::{RandomWorkload, Think, TokenLength, WorkloadSpec, WorkloadSurroundings};

/// All observations of a load.
#[derive(Debug, Default)]
struct Log {
    steps: Vec<ScheduledStep>,
    replies: Vec<VirtualReply>,
}

impl DriveObserver for Log {
    fn step(&mut self, seen: &ScheduledStep) {
        self.steps.push(*seen);
    }

    fn reply(&mut self, reply: VirtualReply) {
        self.replies.push(reply);
    }
}

fn step_time(settings: &Settings) -> StepTime {
    StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), settings).unwrap().without_frontend()
}

/// Runs arrivals of (time, prompt length, output length) on this number of engines.
fn open(scheduling: Scheduling, engines: usize, arrivals: &[(Duration, u32, u32)]) -> Log {
    let settings = Settings { scheduling, ..settings() };
    let step_time = step_time(&settings);
    let mut engines: Vec<_> = (0..engines).map(|_| TwinEngine::new(settings.clone()).unwrap()).collect();
    let arrival = |(at, prompt_len, output_len): &(Duration, u32, u32)| TwinArrival {
        at: *at,
        prompt: Tokens::Count(*prompt_len),
        output_len: *output_len,
        priority: 0,
    };
    let mut log = Log::default();
    let mut drive = Drive { engines: &mut engines, step_time: &step_time };
    drive.run_open_loop(arrivals.iter().map(arrival), &mut log).unwrap();
    // A step takes the time of its work, and no device computes two at once.
    for (index, seen) in log.steps.iter().enumerate() {
        if settings.scheduling.pipeline_stages == 1 {
            assert_eq!(seen.end, seen.start + step_time.step_duration(&seen.work));
            let before = log.steps[..index].iter().filter(|before| before.replica == seen.replica);
            assert!(before.into_iter().all(|before| before.end <= seen.start));
        }
    }
    log
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn an_arrival_during_a_step_is_in_the_next_one_or_later_if_that_is_scheduled_already() {
    for (async_scheduling, step) in [(false, 1), (true, 2)] {
        let scheduling = Scheduling { async_scheduling, ..Scheduling::default() };
        let log = open(scheduling, 1, &[(Duration::ZERO, 4, 9), (MS, 4, 1)]);
        assert!(log.steps[0].end > MS);
        let reply = &log.replies[0];
        assert_eq!((reply.index, reply.received_at, MS + reply.ttft), (1, MS, log.steps[step].end));
        assert_eq!((log.steps[step].running, log.steps[step].waiting, log.steps[step].work.tokens), (2, 0, 5));
        let first = &log.replies[1];
        assert_eq!((first.index, first.tokens, first.finished()), (0, 9, log.steps[8].end));
    }
}

#[test]
fn nothing_happens_until_somebody_comes() {
    let at = Duration::from_hours(1);
    let log = open(Scheduling::default(), 1, &[(at, 4, 1), (2 * at, 4, 1)]);
    assert_eq!(log.steps.iter().map(|seen| seen.start).collect::<Vec<_>>(), [at, 2 * at]);
    assert!(log.steps.iter().all(|seen| (seen.kv_usage - 1.0 / 64.0).abs() < 1e-9));
}

#[test]
fn the_front_end_reads_one_request_after_the_other_and_writes_between_them() {
    let settings = settings();
    let step_time = StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &settings).unwrap();
    let costs = step_time.frontend();
    let [request, token] =
        [costs.request_s + 4.0 * costs.prompt_token_s, costs.step_s + costs.stream_s].map(Duration::from_secs_f64);
    let arrival = |at| TwinArrival { at, prompt: Tokens::Count(4), output_len: 1, priority: 0 };
    let mut engine = [TwinEngine::new(settings).unwrap()];
    let mut log = Log::default();
    let mut drive = Drive { engines: &mut engine, step_time: &step_time };
    drive.run_open_loop([MS, MS, 50 * MS].into_iter().map(arrival), &mut log).unwrap();
    let near = |a: Duration, b: Duration| assert!(a.abs_diff(b) < Duration::from_nanos(10), "{a:?} {b:?}");
    near(log.steps[0].start, MS + request);
    // The front end reads the second request during the first step, and writes that step's token after it.
    assert_eq!(log.steps[1].start, log.steps[0].end);
    near(log.replies[0].finished(), log.steps[0].end.max(MS + 2 * request) + token);
    near(log.replies[2].finished(), log.steps[2].end + token);
}

#[test]
fn replicas_share_the_load_and_compute_at_the_same_time() {
    let arrivals = [(Duration::ZERO, 4, 5); 4];
    let log = open(Scheduling::default(), 2, &arrivals);
    let mut replicas: Vec<_> = log.replies.iter().map(|reply| (reply.index, reply.replica)).collect();
    replicas.sort_unstable();
    assert_eq!(replicas, [(0, 0), (1, 1), (2, 0), (3, 1)]);
    let alone = open(Scheduling::default(), 1, &arrivals[..2]);
    assert_eq!(log.replies[3].finished(), alone.replies[1].finished());
    assert_eq!(log.steps.len(), 2 * alone.steps.len());
}

#[test]
fn stages_of_a_pipeline_compute_different_steps() {
    let scheduling = Scheduling { pipeline_stages: 2, ..Scheduling::default() };
    // Each request fills a step of 16 tokens.
    let log = open(scheduling, 1, &[(Duration::ZERO, 16, 1); 2]);
    let whole = log.steps[0].end;
    assert_eq!((log.steps[1].start, log.steps[1].end), (whole / 2, whole / 2 + whole));
}

#[test]
fn a_gathered_stream_has_fewer_pieces_and_all_tokens() {
    let scheduling = Scheduling { stream_interval: 3, ..Scheduling::default() };
    let log = open(scheduling, 1, &[(Duration::ZERO, 4, 8)]);
    let reply = &log.replies[0];
    assert_eq!((reply.tokens, reply.gaps.len()), (8, 3));
    assert_eq!(reply.finished(), log.steps[7].end);
}

fn throughput(max_num_seqs: u32) -> f64 {
    let settings = Settings {
        resolved: ResolvedConfig {
            max_num_seqs: max_num_seqs.into(),
            max_model_len: 1024,
            max_num_batched_tokens: 2048,
            block_size: 16,
            ..settings().resolved
        },
        num_blocks: 20_000,
        ..settings()
    };
    let step_time = step_time(&settings);
    let workload = RandomWorkload { input_len: 200, output_len: 50, vocab_size: 1000, seed: 1 };
    let mut engine = TwinEngine::new(settings).unwrap();
    let replies = drive(&mut engine, &step_time, &workload, 64, 32).unwrap();
    assert_eq!(replies.len(), 64);
    assert!(replies.iter().all(|reply| reply.output_len() == 50 && reply.prompt_len == 200));
    let end = replies.iter().map(VirtualReply::finished).max().unwrap();
    64.0 * 50.0 / end.as_secs_f64()
}

#[test]
fn a_user_thinks_before_the_next_turn_and_then_asks_with_the_history() {
    let settings = Settings {
        resolved: ResolvedConfig { max_model_len: 1024, ..settings().resolved },
        num_blocks: 2000,
        ..settings()
    };
    let step_time = step_time(&settings);
    let exact = TokenLength::Exact;
    let spec = WorkloadSpec::Conversation {
        turns: exact(3),
        system_len: 0,
        first_len: exact(20),
        user_len: exact(10),
        output_len: exact(5),
        think: Think::Fixed(Duration::from_secs(3)),
    };
    let surroundings =
        WorkloadSurroundings { vocab_size: Some(1000), takes_tokens: true, ..WorkloadSurroundings::default() };
    let workload = spec.build(&surroundings).unwrap();
    let mut engine = TwinEngine::new(settings).unwrap();
    let replies = drive(&mut engine, &step_time, &*workload, 5, 1).unwrap();
    let seen: Vec<_> = replies.iter().map(|reply| (reply.index, reply.turn, reply.prompt_len)).collect();
    assert_eq!(seen, [(0, 0, 20), (0, 1, 35), (0, 2, 50), (1, 0, 20), (1, 1, 35)]);
    let pause = |at: usize| replies[at].received_at.saturating_sub(replies[at - 1].finished());
    assert_eq!([1, 2, 3].map(pause), [Duration::from_secs(3), Duration::from_secs(3), Duration::ZERO]);
}

#[test]
fn few_sequences_starve_a_load_that_offers_more() {
    let (few, enough) = (throughput(4), throughput(32));
    assert!(enough > 4.0 * few, "{few} {enough}");
    assert!(throughput(64) > 0.98 * enough, "more than is offered changes little");
}
