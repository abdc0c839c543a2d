//! Comparison of the server in real time with the same load in virtual time, and tests of replicas and speculation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::SimOptions;
use super::memory::allocate;
use super::startup::build;
use super::tests::{ready, ready_in_dev_mode, write_model};
use crate::engines::vllm::resolve_config;
use crate::facts::ModelShape;
use crate::rule::Facts;
use crate::twin::{Drive, DriveObserver, ScheduledStep, Tokens, TwinArrival, VirtualReply};

const SCALE: f64 = 20.0;

/// One request: prompt length, output length, priority. Every second prompt has the same beginning.
type Ask = (u32, u32, i32);

fn prompt(number: usize, len: u32) -> Vec<u32> {
    let first = if number.is_multiple_of(2) { 0 } else { u32::try_from(number).unwrap() };
    (0..len).map(|at| (first + at) % 997).collect()
}

/// The compared quantities of a step.
#[derive(Debug, PartialEq)]
struct Step {
    running: u64,
    waiting: u64,
    tokens: u64,
    prompt_tokens: u64,
    sequences: u64,
}

/// The steps of each engine with their lengths in virtual seconds, and the numbers of tokens sent for each request.
#[derive(Debug, Default)]
struct Kept {
    steps: BTreeMap<usize, Vec<(Step, f64)>>,
    pieces: BTreeMap<u64, Vec<u64>>,
}

/// Runs the server, and releases the requests only after all have arrived. Returns its schedule.
async fn real(flags: &str, asks: &[Ask]) -> Kept {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("schedule.jsonl");
    let server = ready_in_dev_mode(&format!("{flags} --sim-schedule {}", file.display())).await;
    assert_eq!(server.post("/pause?mode=keep", json!({})).await.0, 200);
    let mut replies = Vec::new();
    for (number, (prompt_len, max_tokens, priority)) in asks.iter().enumerate() {
        let ask = json!({
            "prompt": prompt(number, *prompt_len), "max_tokens": max_tokens, "priority": priority, "ignore_eos": true,
            "stream": true,
        });
        // The head of the reply shows that the front end has received the request.
        replies.push(server.begin("/v1/completions", ask).await);
    }
    // The second pause is answered after all earlier requests have reached the engine.
    assert_eq!(server.post("/pause?mode=keep", json!({})).await.0, 200);
    assert_eq!(server.post("/resume", json!({})).await.0, 200);
    for (reply, (_, max_tokens, _)) in replies.into_iter().zip(asks) {
        let text = reply.text().await.unwrap();
        assert_eq!(text.matches(" token").count(), *max_tokens as usize, "{text}");
    }
    server.end().await;

    let mut kept = Kept::default();
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let step: Json = serde_json::from_str(line).unwrap();
        let number = |name: &str| step[name].as_u64().unwrap();
        let seen = Step {
            running: number("running"),
            waiting: number("waiting"),
            tokens: number("tokens"),
            prompt_tokens: number("prompt_tokens"),
            sequences: number("sequences"),
        };
        let length_s = Duration::from_nanos(number("length_ns")).as_secs_f64() * SCALE;
        kept.steps.entry(number("engine").try_into().unwrap()).or_default().push((seen, length_s));
        for chunk in step["chunks"].as_array().unwrap() {
            kept.pieces.entry(chunk[0].as_u64().unwrap()).or_default().push(chunk[1].as_u64().unwrap());
        }
    }
    kept
}

#[derive(Debug, Default)]
struct Log {
    kept: Kept,
    replies: Vec<VirtualReply>,
}

impl DriveObserver for Log {
    fn step(&mut self, seen: &ScheduledStep) {
        let step = Step {
            running: seen.running as u64,
            waiting: seen.waiting as u64,
            tokens: seen.work.tokens.into(),
            prompt_tokens: seen.work.prompt_tokens.into(),
            sequences: seen.work.sequences.into(),
        };
        let length_s = seen.end.saturating_sub(seen.start).as_secs_f64();
        self.kept.steps.entry(seen.replica).or_default().push((step, length_s));
    }

    fn reply(&mut self, reply: VirtualReply) {
        self.replies.push(reply);
    }
}

/// Runs the same engines and requests in virtual time.
fn in_virtual_time(flags: &str, asks: &[Ask]) -> Log {
    let directory = tempfile::tempdir().unwrap();
    write_model(directory.path());
    let path = directory.path().display().to_string();
    let arguments = std::iter::once(path.as_str()).chain(flags.split_whitespace());
    let options = SimOptions::parse(&arguments.map(str::to_owned).collect::<Vec<_>>()).unwrap();
    let model = ModelShape::read(directory.path()).unwrap();
    let facts = Facts::new(crate::engines::vllm::VLLM_RULES, &model, options.version, options.facts_device());
    let effective = resolve_config(&options.config, &facts);
    let (settings, _) = allocate(&effective, &options.config, &facts, options.device, options.acceptance).unwrap();
    let (mut engines, step_time) = build(&options, &model, &effective, &settings).unwrap();
    let arrivals = asks.iter().enumerate().map(|(number, (prompt_len, output_len, priority))| TwinArrival {
        at: Duration::ZERO,
        prompt: Tokens::Ids(prompt(number, *prompt_len).into()),
        output_len: *output_len,
        priority: *priority,
    });
    let mut log = Log::default();
    let mut drive = Drive { engines: &mut engines, step_time: &step_time.without_frontend() };
    drive.run_open_loop(arrivals, &mut log).unwrap();
    log
}

#[tokio::test]
async fn real_and_virtual_time_have_the_same_schedule() {
    let asks: Vec<Ask> =
        (0..12).map(|number| (20 + 17 * number, 5 + 3 * (number % 5), [3, 0, -2][number as usize % 3])).collect();
    let scale = format!("--sim-time-scale {SCALE} --sim-noise 0 --sim-frontend none");
    for flags in [
        "--max-num-seqs 4 --max-num-batched-tokens 64",
        "--max-num-seqs 4 --max-num-batched-tokens 64 --no-async-scheduling",
        "--max-num-seqs 3 --scheduling-policy priority",
        "--max-num-seqs 8 --stream-interval 4",
        "--max-num-seqs 8 --max-model-len 288 --num-gpu-blocks-override 30",
        "--speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":3} --sim-acceptance-rate 0.6",
        "--data-parallel-size 2 --sim-devices 2 --max-num-seqs 3",
        "--pipeline-parallel-size 2 --sim-devices 2 --max-num-seqs 3",
        "--tensor-parallel-size 2 --sim-devices 2 --max-num-seqs 6",
        "--sim-vllm-version 0.6.3 --max-num-seqs 4",
    ] {
        // The V0 engine rejects priorities.
        let unasked = flags.contains("0.6.3");
        let asks: Vec<Ask> = asks.iter().map(|ask| (ask.0, ask.1, if unasked { 0 } else { ask.2 })).collect();
        let flags = format!("{scale} {flags}");
        let (kept, log) = (real(&flags, &asks).await, in_virtual_time(&flags, &asks));
        assert_eq!(kept.steps.len(), log.kept.steps.len(), "{flags}");
        for (engine, steps) in &log.kept.steps {
            let real = &kept.steps[engine];
            for (at, ((expected, expected_s), (step, length_s))) in steps.iter().zip(real).enumerate() {
                assert_eq!(step, expected, "{flags}: step {at} of engine {engine}");
                assert!((expected_s - length_s).abs() < 1e-6, "{flags}: step {at} takes {length_s}, not {expected_s}");
            }
            assert_eq!(real.len(), steps.len(), "{flags}: steps of engine {engine}");
        }
        for reply in &log.replies {
            let pieces = &kept.pieces[&reply.index];
            assert_eq!(pieces.len(), reply.gaps.len() + 1, "{flags}: pieces of request {}", reply.index);
            assert_eq!(pieces.iter().sum::<u64>(), u64::from(reply.tokens), "{flags}");
        }
        assert_eq!((log.replies.len(), kept.pieces.len()), (asks.len(), asks.len()), "{flags}");
    }
}

#[tokio::test]
async fn a_pause_is_answered_once_what_was_asked_for_before_has_been_read() {
    // 20 times slower than the device: the front end takes some 30 ms to read each request.
    let kept = real("--sim-time-scale 0.05 --max-num-seqs 8", &[(20, 1, 0); 4]).await;
    let sequences: Vec<_> = kept.steps[&0].iter().map(|(step, _)| step.sequences).collect();
    assert_eq!(sequences, [4], "all of them in the first step");
}

#[tokio::test]
async fn replicas_share_the_requests_and_each_has_its_series() {
    let server = ready("--data-parallel-size 2 --sim-devices 2").await;
    let ask = |index: u32| json!({"prompt": [index], "max_tokens": 50, "ignore_eos": true, "stream": true});
    futures_util::future::join_all((0..4).map(|index| server.stream(ask(index)))).await;
    let page = server.get("/metrics").await.unwrap();
    for engine in 0..2 {
        let series = format!("vllm:generation_tokens_total{{engine=\"{engine}\",model_name=\"m\"}} 100\n");
        assert!(page.contains(&series), "{page}");
    }
    assert_eq!(page.matches("# TYPE vllm:generation_tokens counter").count(), 1);
    let log = server.log.text();
    assert!(log.contains("(EngineCore_DP0 pid=") && log.contains("(EngineCore_DP1 pid="), "{log}");
}

#[tokio::test]
async fn speculation_is_counted_as_vllm_counts_it() {
    let server =
        ready("--sim-acceptance-rate 1 --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":3}").await;
    let ask = json!({"prompt": [1, 2], "max_tokens": 9, "ignore_eos": true, "stream": true});
    // The first token is sent alone; each later step adds one token and three drafts.
    let texts: Vec<_> = server.stream(ask).await.iter().map(|event| event.matches(" token").count()).collect();
    assert_eq!(texts, [1, 4, 4, 0]);
    for (name, expected) in [("num_drafts", 2.0), ("num_draft_tokens", 6.0), ("num_accepted_tokens", 6.0)] {
        let value = server.metric(&format!("spec_decode_{name}_total")).await;
        assert!((value - expected).abs() < 0.5, "{name} {value}");
    }
    let page = server.get("/metrics").await.unwrap();
    let last = "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"m\",position=\"2\"} 2\n";
    assert!(page.contains(last), "{page}");
}

#[tokio::test]
async fn the_front_end_writes_one_token_after_the_other_and_none_before_it_is_due() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("schedule.jsonl");
    let server = ready(&format!("--sim-time-scale 1 --sim-noise 0 --sim-schedule {}", file.display())).await;
    let ask = |index: u32| json!({"prompt": [index], "max_tokens": 20, "ignore_eos": true, "stream": true});
    futures_util::future::join_all((0..3).map(|index| server.stream(ask(index)))).await;
    server.end().await;
    let mut pairs = 0;
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let step: Json = serde_json::from_str(line).unwrap();
        let chunks = step["chunks"].as_array().unwrap();
        let due: Vec<u64> = chunks.iter().map(|chunk| chunk[2].as_u64().unwrap()).collect();
        assert!(due.iter().all(|due| *due > step["due_ns"].as_u64().unwrap() + 250_000), "{line}");
        for two in due.windows(2) {
            // 20 microseconds, or more if a request is read in between.
            assert!(two[1] - two[0] >= 19_999, "{line}");
            pairs += 1;
        }
        for (chunk, due) in chunks.iter().zip(due) {
            assert!(chunk[3].as_u64().is_none_or(|written| written + 1_000 >= due), "{line}");
        }
    }
    assert!(pairs > 20, "{pairs}");
}
