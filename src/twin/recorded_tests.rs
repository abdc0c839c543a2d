//! The twin's schedules against those of vLLM 0.32's own scheduler, step by step.
//!
//! `tests/fixtures/record_schedules.py` has recorded them: tokens of each request, blocks in use, requests running and
//! waiting, and the tokens of each output.

use std::time::Duration;

use serde_json::{Value, json};

use super::replica::Replica;
use super::{QueueOrder, RequestId, Scheduling, Settings, Speculation, Tokens, TwinEngine, TwinRequest};
use crate::config::ResolvedConfig;

const ROUNDS: u64 = 26;

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn settings(recorded: &Value) -> Settings {
    let of = |name: &str| number(&recorded[name]);
    let is = |name: &str| recorded[name].as_bool().unwrap();
    let share = |name: &str| recorded[name].as_f64().unwrap();
    let optional = |name: &str| recorded[name].as_u64().map(|value| u32::try_from(value).unwrap());
    let speculation = Speculation {
        tokens: of("drafts"),
        acceptance: share("acceptance"),
        seed: of("seed").into(),
        lookahead: of("lookahead"),
        draft_slots: of("draft_slots"),
    };
    Settings {
        resolved: ResolvedConfig {
            max_model_len: 24,
            max_num_seqs: of("max_num_seqs").into(),
            max_num_batched_tokens: of("max_num_batched_tokens").into(),
            block_size: of("block_size").into(),
            chunked_prefill: is("chunked_prefill"),
            prefix_caching: is("prefix_caching"),
            ..Settings::default().resolved
        },
        num_blocks: of("num_blocks"),
        scheduling: Scheduling {
            order: if is("priority") { QueueOrder::Priority } else { QueueOrder::Arrival },
            long_prefill_token_threshold: of("long_prefill_token_threshold"),
            long_prefill_adaptive: is("long_prefill_adaptive"),
            max_num_active_seqs: optional("max_num_active_seqs"),
            max_num_scheduled_tokens: optional("max_num_scheduled_tokens"),
            reserve_full_isl: is("reserve_full_isl"),
            watermark: share("watermark"),
            async_scheduling: is("async_scheduling"),
            pipeline_stages: of("pipeline_stages"),
            stream_interval: 1,
            speculation: (speculation.tokens > 0).then_some(speculation),
        },
        ..Settings::default()
    }
}

/// Returns steps and tokens in the form of the recording.
fn replay(case: &Value) -> (Vec<Value>, Vec<Value>) {
    let settings = settings(&case["settings"]);
    let blocks = settings.num_blocks;
    let requests = case["requests"].as_array().unwrap();
    let mut engine = TwinEngine::new(settings).unwrap();
    let mut replica = Replica::new(&mut engine);
    let (mut steps, mut tokens) = (Vec::new(), Vec::new());
    for round in 0.. {
        let now = Duration::from_secs(round);
        for (id, request) in (0..).zip(requests) {
            let of = |name: &str| number(&request[name]);
            if u64::from(of("round")) == round {
                let prompt: Vec<u32> = (0..of("prompt_len")).map(|token| token / 7 * of("family")).collect();
                let ask = TwinRequest {
                    id: RequestId(id),
                    prompt: Tokens::Ids(prompt.into()),
                    output_len: of("output_len"),
                    most_output: Some(of("output_len") + of("beyond")),
                    priority: of("priority").cast_signed(),
                };
                replica.engine.enqueue(&ask, now + Duration::from_millis(id)).unwrap();
            }
        }
        for (id, request) in (0..).zip(requests) {
            if request["abort"].as_u64() == Some(round) {
                replica.engine.abort(RequestId(id));
            }
        }
        replica.wake();
        replica.fill(
            now,
            |_| Duration::ZERO,
            |engine, flight| {
                let items: Vec<_> = flight.batch.items.iter().map(|item| json!([item.id.0, item.tokens])).collect();
                let used = blocks - engine.pool.unused();
                steps.push(json!([items, used, engine.running(), engine.waiting()]));
            },
        );
        match replica.ended(now) {
            Some(flight) => {
                let events = replica.engine.finish(&flight.batch);
                replica.record_step_end();
                tokens.extend(events.iter().map(|event| json!([event.id.0, event.tokens])));
            }
            None if round >= ROUNDS => break,
            None => {}
        }
        assert!(round < 1000, "the schedule does not end");
    }
    assert!(engine.is_idle() && engine.pool.unused() == blocks, "something is left");
    (steps, tokens)
}

#[test]
fn every_step_is_the_one_that_vllm_has_scheduled() {
    let recorded: Value = serde_json::from_str(include_str!("../../tests/fixtures/vllm-schedules.json")).unwrap();
    let cases = recorded.as_array().unwrap();
    assert!(cases.len() >= 50, "{}", cases.len());
    for (index, case) in cases.iter().enumerate() {
        let (steps, tokens) = replay(case);
        let expected = case["steps"].as_array().unwrap();
        for (at, step) in expected.iter().enumerate() {
            assert_eq!(steps.get(at), Some(step), "case {index}, step {at}: {} {}", case["settings"], case["requests"]);
        }
        assert_eq!(steps.len(), expected.len(), "case {index}");
        assert_eq!(&tokens, case["tokens"].as_array().unwrap(), "case {index}");
    }
}
