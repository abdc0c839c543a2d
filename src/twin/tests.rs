//! Schedules worked out by hand, and properties of every schedule.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::replica::Replica;
use super::{
    AddError, Batch, Counters, QueueOrder, RequestId, Scheduling, Settings, SettingsError, Speculation, Tokens,
    TwinEngine, TwinRequest,
};
use crate::config::ResolvedConfig;

pub(super) const STEP: Duration = Duration::from_millis(10);

pub(super) fn settings() -> Settings {
    Settings {
        resolved: ResolvedConfig {
            max_model_len: 64,
            max_num_seqs: 4,
            max_num_batched_tokens: 16,
            block_size: 4,
            prefix_caching: false,
            ..Settings::default().resolved
        },
        num_blocks: 64,
        ..Settings::default()
    }
}

/// Returns token ids that no other request has.
fn prompt(id: u32, len: u32) -> Vec<u32> {
    (0..len).map(|index| id * 1000 + index).collect()
}

fn engine(settings: Settings, requests: &[(u32, u32)]) -> TwinEngine {
    let mut engine = TwinEngine::new(settings).unwrap();
    for (id, (prompt_len, output_len)) in (0..).zip(requests) {
        engine.add(RequestId(u64::from(id)), &prompt(id, *prompt_len), *output_len, Duration::ZERO).unwrap();
    }
    engine
}

/// Returns the (request, tokens) pairs of every step until no work is left.
fn run(engine: &mut TwinEngine) -> Vec<Vec<(u64, u32)>> {
    let mut steps = Vec::new();
    let mut now = Duration::ZERO;
    while let Some(batch) = engine.step(now) {
        now += STEP;
        engine.finish(&batch);
        steps.push(pairs(&batch));
        assert!(steps.len() < 10_000, "the schedule does not end");
    }
    steps
}

pub(super) fn pairs(batch: &Batch) -> Vec<(u64, u32)> {
    batch.items.iter().map(|item| (item.id.0, item.tokens)).collect()
}

#[test]
fn a_long_prompt_is_computed_in_pieces_together_with_decodes() {
    let mut engine = engine(settings(), &[(10, 3), (20, 2)]);
    assert_eq!(run(&mut engine), [vec![(0, 10), (1, 6)], vec![(0, 1), (1, 14)], vec![(0, 1), (1, 1)],]);
    let counters = engine.counters();
    assert_eq!((counters.prompt_tokens, counters.generated_tokens, counters.finished), (30, 5, 2));
    assert_eq!((engine.running(), engine.waiting()), (0, 0));
    assert!(engine.kv_usage().abs() < 1e-9);
}

#[test]
fn without_chunked_prefill_a_prompt_waits_until_all_of_it_fits() {
    let whole = Settings {
        resolved: ResolvedConfig { chunked_prefill: false, max_model_len: 16, ..settings().resolved },
        ..settings()
    };
    let mut engine = engine(whole, &[(10, 3), (8, 1)]);
    assert_eq!(run(&mut engine), [vec![(0, 10)], vec![(0, 1), (1, 8)], vec![(0, 1)]]);
}

#[test]
fn max_num_seqs_holds_the_queue_back() {
    let two = Settings { resolved: ResolvedConfig { max_num_seqs: 2, ..settings().resolved }, ..settings() };
    let mut engine = engine(two, &[(2, 2), (2, 1), (2, 1)]);
    assert_eq!(run(&mut engine), [vec![(0, 2), (1, 2)], vec![(0, 1), (2, 2)]]);
}

#[test]
fn when_blocks_run_out_the_newest_starts_over() {
    // Four blocks of four tokens; each request ends with 11 tokens computed, which is three blocks.
    let tight =
        Settings { resolved: ResolvedConfig { max_model_len: 12, ..settings().resolved }, num_blocks: 4, ..settings() };
    let mut engine = engine(tight, &[(8, 4), (8, 4)]);
    assert_eq!(
        run(&mut engine),
        [
            vec![(0, 8), (1, 8)],
            vec![(0, 1)], // a third block for 0: 1 is preempted
            vec![(0, 1)], // 1 needs three blocks for its nine tokens, and one is free
            vec![(0, 1)],
            vec![(1, 9)],
            vec![(1, 1)],
            vec![(1, 1)],
        ]
    );
    assert_eq!(engine.counters().preemptions, 1);
}

#[test]
fn a_preemption_is_reported_with_the_next_token_of_the_preempted_request() {
    let tight =
        Settings { resolved: ResolvedConfig { max_model_len: 12, ..settings().resolved }, num_blocks: 4, ..settings() };
    let mut engine = engine(tight, &[(8, 4), (8, 4)]);
    let mut told = Vec::new();
    while let Some(batch) = engine.step(Duration::ZERO) {
        engine.finish(&batch);
        told.push((engine.counters().preemptions, engine.counters().reported_preemptions));
    }
    // It waits while the other ends, and has its next token after the fifth step.
    assert_eq!(told, [(0, 0), (1, 0), (1, 0), (1, 0), (1, 1), (1, 1), (1, 1)]);
}

#[test]
fn a_shared_beginning_is_computed_once() {
    let caching = Settings { resolved: ResolvedConfig { prefix_caching: true, ..settings().resolved }, ..settings() };
    let mut engine = TwinEngine::new(caching).unwrap();
    let tokens: Vec<u32> = (0..12).collect();
    for id in 0..2 {
        engine.add(RequestId(id), &tokens, 1, Duration::ZERO).unwrap();
    }
    // The last token is computed in any case, and with it the rest of its block.
    assert_eq!(run(&mut engine), [vec![(0, 12), (1, 4)]]);
    let Counters { prefix_queries, prefix_hits, prompt_tokens, cached_tokens, .. } = engine.counters();
    assert_eq!((prefix_queries, prefix_hits, prompt_tokens, cached_tokens), (24, 8, 24, 8));

    engine.reset_prefix_cache();
    engine.add(RequestId(2), &tokens, 1, Duration::ZERO).unwrap();
    assert_eq!(run(&mut engine), [vec![(2, 12)]]);
}

#[test]
fn v0_computes_prompts_alone_and_first() {
    let v0 = Settings {
        resolved: ResolvedConfig { v0: true, chunked_prefill: false, max_model_len: 16, ..settings().resolved },
        ..settings()
    };
    let mut engine = engine(v0, &[(10, 3), (8, 2)]);
    assert_eq!(run(&mut engine), [vec![(0, 10)], vec![(1, 8)], vec![(0, 1), (1, 1)], vec![(0, 1)]]);
}

#[test]
fn v0_delay_lets_decodes_go_on_before_the_next_prompt() {
    let delayed = Settings {
        resolved: ResolvedConfig {
            v0: true,
            chunked_prefill: false,
            max_model_len: 16,
            scheduler_delay_factor: 1.5,
            ..settings().resolved
        },
        ..settings()
    };
    let mut engine = engine(delayed, &[(10, 5), (8, 1)]);
    // The prompt step took 10 ms, so the second request waits until 20 ms have passed.
    assert_eq!(run(&mut engine), [vec![(0, 10)], vec![(0, 1)], vec![(1, 8)], vec![(0, 1)], vec![(0, 1)], vec![(0, 1)]]);
}

#[test]
fn an_abort_during_a_step_drops_its_token() {
    let mut engine = engine(settings(), &[(4, 9), (4, 1)]);
    let batch = engine.step(Duration::ZERO).unwrap();
    assert!(engine.abort(RequestId(0)));
    assert!(!engine.abort(RequestId(0)));
    let events = engine.finish(&batch);
    assert_eq!(events.iter().map(|event| event.id.0).collect::<Vec<_>>(), [1]);
    assert!(engine.kv_usage().abs() < 1e-9);
    assert_eq!(engine.counters().aborted, 1);
}

#[test]
fn a_request_that_can_never_run_is_refused() {
    let mut one = engine(settings(), &[(4, 1)]);
    assert_eq!(
        one.add(RequestId(1), &[1; 60], 5, Duration::ZERO),
        Err(AddError::TooLong { prompt: 60, output: 5, max_model_len: 64 })
    );
    assert_eq!(one.add(RequestId(0), &[1], 1, Duration::ZERO), Err(AddError::Duplicate(RequestId(0))));
    assert_eq!(
        Settings { num_blocks: 15, ..settings() }.check(),
        Err(SettingsError::Cache { num_blocks: 15, block_size: 4, max_model_len: 64 })
    );
    assert!(matches!(
        Settings { resolved: ResolvedConfig { chunked_prefill: false, ..settings().resolved }, ..settings() }.check(),
        Err(SettingsError::Budget { .. })
    ));
    let with = |scheduling| Settings { scheduling, ..settings() }.check();
    let speculation = Speculation { tokens: 15, acceptance: 0.5, seed: 0, lookahead: 0, draft_slots: 1 };
    let drafts = Scheduling { speculation: Some(speculation), ..Scheduling::default() };
    assert_eq!(with(drafts), Err(SettingsError::Drafts { room: 15, drafts: 15 }));
    let zero = Scheduling { stream_interval: 0, ..Scheduling::default() };
    assert_eq!(with(zero), Err(SettingsError::Zero("stream_interval")));
    let all = Scheduling { watermark: 1.0, ..Scheduling::default() };
    assert!(matches!(with(all), Err(SettingsError::Share { name: "watermark", .. })));
}

prop_compose! {
    fn any_scheduling()(
        priority in any::<bool>(), long_prefill_token_threshold in prop::sample::select(vec![0, 0, 4, 6]),
        long_prefill_adaptive in any::<bool>(), max_num_active_seqs in prop::option::of(1_u32..6),
        reserve_full_isl in any::<bool>(), watermark in 0.0_f64..0.5, async_scheduling in any::<bool>(),
        pipeline_stages in 1_u32..4, stream_interval in 1_u32..4, tokens in 0_u32..4, acceptance in 0.0_f64..1.0,
        seed in any::<u64>(), lookahead in 0_u32..3,
    ) -> Scheduling {
        let speculation = Speculation { tokens, acceptance, seed, lookahead, draft_slots: 0 };
        Scheduling {
            order: if priority { QueueOrder::Priority } else { QueueOrder::Arrival },
            long_prefill_token_threshold,
            long_prefill_adaptive,
            max_num_active_seqs,
            max_num_scheduled_tokens: None,
            reserve_full_isl,
            watermark,
            async_scheduling,
            pipeline_stages,
            stream_interval,
            speculation: (tokens > 0).then_some(speculation),
        }
    }
}

prop_compose! {
    fn any_settings()(
        v0 in any::<bool>(), chunked_prefill in any::<bool>(), prefix_caching in any::<bool>(),
        max_num_seqs in 1_u32..6, budget in 4_u32..24, block_size in 1_u32..6, spare in 0_u32..12,
        scheduler_delay_factor in 0.0_f64..3.0, scheduling in any_scheduling(),
    ) -> Settings {
        let max_model_len: u32 = 24;
        let tokens = if chunked_prefill { budget } else { max_model_len + budget };
        Settings {
            resolved: ResolvedConfig {
                v0,
                max_model_len: max_model_len.into(),
                max_num_seqs: max_num_seqs.into(),
                max_num_batched_tokens: tokens.into(),
                block_size: block_size.into(),
                chunked_prefill,
                prefix_caching,
                scheduler_delay_factor,
                ..Settings::default().resolved
            },
            num_blocks: max_model_len.div_ceil(block_size) + spare,
            // V0 has none of these.
            scheduling: if v0 { Scheduling::default() } else { scheduling },
            ..Settings::default()
        }
    }
}

/// Generates requests: prompt length, output length, token ids to draw from (few: shared beginnings), step of arrival.
fn any_requests() -> impl Strategy<Value = Vec<(u32, u32, u32, u32)>> {
    prop::collection::vec((1_u32..16, 1_u32..8, 0_u32..3, 0_u32..20), 1..12)
}

/// Checks a step that was just scheduled.
fn check(engine: &TwinEngine, batch: &Batch) {
    let settings = engine.settings();
    let tokens: u32 = batch.items.iter().map(|item| item.tokens).sum();
    assert!(tokens <= settings.max_num_batched_tokens() && tokens == batch.work.tokens);
    assert!(batch.items.len() <= engine.running() && engine.running() <= settings.max_running());
    let held: usize = engine.sequences.iter().map(|sequence| sequence.blocks.len()).sum();
    let in_use = settings.num_blocks - engine.pool.unused();
    assert!(held >= in_use as usize, "{held} held, {in_use} in use");
    assert!(settings.resolved.prefix_caching || held == in_use as usize);
    for item in &batch.items {
        let blocks = engine.sequences[item.slot].blocks.len();
        assert!(item.context + item.tokens <= u32::try_from(blocks).unwrap() * settings.block_size());
    }
}

/// Runs a whole schedule, checks every step, returns it.
fn checked(settings: &Settings, requests: &[(u32, u32, u32, u32)]) -> Vec<Vec<(u64, u32)>> {
    let mut engine = TwinEngine::new(settings.clone()).unwrap();
    // Tokens generated and sent.
    let mut counts: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    let mut steps: Vec<Vec<(u64, u32)>> = Vec::new();
    let mut replica = Replica::new(&mut engine);
    for round in 0.. {
        let now = STEP * round;
        for (id, (prompt_len, output_len, family, arrival)) in (0..).zip(requests) {
            if *arrival == round {
                let prompt = (0..*prompt_len).map(|token| token / 7 * family).collect();
                let priority = i32::try_from(*family).unwrap();
                let (id, prompt, output_len) = (RequestId(id), Tokens::Ids(prompt), *output_len);
                replica
                    .engine
                    .enqueue(&TwinRequest { id, prompt, output_len, most_output: None, priority }, now)
                    .unwrap();
                replica.wake();
            }
        }
        replica.fill(
            now,
            |_| Duration::ZERO,
            |engine, flight| {
                check(engine, &flight.batch);
                steps.push(pairs(&flight.batch));
            },
        );
        let Some(flight) = replica.ended(now) else {
            let engine = &replica.engine;
            assert_eq!((engine.running(), engine.waiting()), (0, 0), "a request is stuck");
            assert_eq!(engine.pool.unused(), settings.num_blocks, "blocks were lost");
            if round >= 20 {
                break;
            }
            continue;
        };
        let events = replica.engine.finish(&flight.batch);
        replica.record_step_end();
        for event in events {
            let (generated, sent) = counts.entry(event.id.0).or_default();
            *generated += event.tokens;
            *sent += event.sent;
            assert_eq!(*generated, event.token);
            let (_, output_len, ..) = requests[usize::try_from(event.id.0).unwrap()];
            assert_eq!(event.last, *generated == output_len);
            assert!(*sent + settings.scheduling.stream_interval > *generated);
        }
        assert!(round < 5_000, "the schedule does not end");
    }
    for (id, (_, output_len, ..)) in (0..).zip(requests) {
        assert_eq!(counts.get(&id), Some(&(*output_len, *output_len)));
    }
    steps
}

proptest! {
    #[test]
    fn every_request_gets_exactly_its_tokens_and_every_block_comes_back(
        settings in any_settings(), requests in any_requests()
    ) {
        let first = checked(&settings, &requests);
        prop_assert_eq!(first, checked(&settings, &requests));
    }
}
