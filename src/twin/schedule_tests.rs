//! The finer rules of V1's scheduler on workloads that show one rule each, worked out by hand from vLLM 0.32's sources.

use std::collections::VecDeque;
use std::time::Duration;

use super::replica::Replica;
use super::tests::{STEP, pairs, settings};
use super::{
    QueueOrder, RequestId, Scheduling, Settings, Speculation, StepEvent, Tokens, TwinEngine, TwinRequest, WaitReason,
};
use crate::config::ResolvedConfig;
use crate::stats::to_f64;

/// Prompt length, output length, step before which it arrives, priority.
type Request = (u32, u32, u32, i32);

fn with(scheduling: Scheduling) -> Settings {
    Settings { scheduling, ..settings() }
}

/// Blocks of four tokens.
fn tight(num_blocks: u32, scheduling: Scheduling) -> Settings {
    let settings = with(scheduling);
    let resolved = ResolvedConfig { max_model_len: 4 * u64::from(num_blocks), ..settings.resolved };
    Settings { resolved, num_blocks, ..settings }
}

fn ask(id: u64, (prompt_len, output_len, _, priority): Request) -> TwinRequest<'static> {
    TwinRequest { id: RequestId(id), prompt: Tokens::Count(prompt_len), output_len, most_output: None, priority }
}

/// Runs the requests with the allowed number of concurrent steps. Returns the steps and all events.
fn run(settings: Settings, requests: &[Request]) -> (Vec<Vec<(u64, u32)>>, Vec<StepEvent>) {
    let mut engine = TwinEngine::new(settings).unwrap();
    let mut replica = Replica::new(&mut engine);
    let (mut steps, mut events) = (Vec::new(), Vec::new());
    for round in 0..1000 {
        let now = STEP * round;
        for (id, request) in (0..).zip(requests).filter(|(_, request)| request.2 == round) {
            replica.engine.enqueue(&ask(id, *request), now).unwrap();
            replica.wake();
        }
        replica.fill(now, |_| Duration::ZERO, |_, flight| steps.push(pairs(&flight.batch)));
        if let Some(flight) = replica.ended(now) {
            events.extend(replica.engine.finish(&flight.batch));
            replica.record_step_end();
        }
    }
    assert!(engine.is_idle() && engine.kv_usage().abs() < 1e-9, "something is left");
    (steps, events)
}

fn steps(settings: Settings, requests: &[Request]) -> Vec<Vec<(u64, u32)>> {
    run(settings, requests).0
}

// `long_prefill_token_threshold` in `Scheduler.schedule`: a single request has no limit. The adaptive limit is never
// less than the budget (16) divided by the requests.
#[test]
fn a_long_prompt_leaves_room_for_others_only_while_there_are_others() {
    let limited = |long_prefill_adaptive| {
        with(Scheduling { long_prefill_token_threshold: 5, long_prefill_adaptive, ..Scheduling::default() })
    };
    assert_eq!(steps(limited(false), &[(12, 1, 0, 0)]), [vec![(0, 12)]]);
    let two = [(12, 2, 0, 0), (3, 1, 0, 0)];
    assert_eq!(steps(limited(false), &two), [vec![(0, 5), (1, 3)], vec![(0, 7)], vec![(0, 1)]]);
    assert_eq!(steps(limited(true), &two), [vec![(0, 8), (1, 3)], vec![(0, 4)], vec![(0, 1)]]);
}

// `PriorityRequestQueue` of `request_queue.py`: smaller numbers first, then the earlier arrival.
#[test]
fn priorities_decide_who_is_admitted() {
    let priority = with(Scheduling { order: QueueOrder::Priority, ..Scheduling::default() });
    let one = Settings { resolved: ResolvedConfig { max_num_seqs: 1, ..priority.resolved }, ..priority };
    let requests = [(2, 1, 0, 1), (2, 1, 0, 0), (2, 1, 0, 1), (2, 1, 1, -1)];
    assert_eq!(steps(one, &requests), [vec![(1, 2)], vec![(3, 2)], vec![(0, 2)], vec![(2, 2)]]);
}

// `Scheduler.schedule`, the branch of `SchedulingPolicy.PRIORITY`: the victim is the last by (priority, arrival), even if
// this step has scheduled it already.
#[test]
fn the_least_urgent_is_preempted_even_out_of_the_batch() {
    let settings = tight(4, Scheduling { order: QueueOrder::Priority, ..Scheduling::default() });
    assert_eq!(
        steps(settings, &[(4, 6, 0, 5), (6, 5, 1, 0)]),
        [
            vec![(0, 4)],
            vec![(0, 1), (1, 6)], // now all four blocks are in use
            vec![(0, 1), (1, 1)],
            vec![(0, 1), (1, 1)],
            vec![(1, 1)], // its ninth token: 0 was scheduled before it and is taken out again
            vec![(1, 1)], // 0 needs two blocks for eight tokens, and one is free
            vec![(0, 8)],
            vec![(0, 1)],
        ]
    );
}

// That branch for a request that is itself the least urgent. The batch ends up empty. The engine core has nothing to
// wait for and schedules again.
#[test]
fn who_preempts_itself_does_not_hold_the_others_up() {
    let settings = tight(4, Scheduling { order: QueueOrder::Priority, ..Scheduling::default() });
    assert_eq!(
        steps(settings, &[(6, 5, 0, 5), (4, 3, 1, 0)]),
        [vec![(0, 6)], vec![(0, 1), (1, 4)], vec![(0, 1), (1, 1)], vec![(1, 1)], vec![(0, 9)], vec![(0, 1)]]
    );
}

// `full_sequence_must_fit` in `KVCacheManager.allocate_slots`.
#[test]
fn a_prompt_begins_when_all_of_it_fits_or_at_once_if_that_is_not_required() {
    let first = |reserve_full_isl| {
        let scheduling = Scheduling { reserve_full_isl, ..Scheduling::default() };
        let tight = tight(6, scheduling);
        let settings = Settings { resolved: ResolvedConfig { max_num_batched_tokens: 8, ..tight.resolved }, ..tight };
        steps(settings, &[(8, 6, 0, 0), (16, 1, 0, 0)]).into_iter().take(2).collect::<Vec<_>>()
    };
    // The prompt needs four blocks, and three of six are left.
    assert_eq!(first(true), [vec![(0, 8)], vec![(0, 1)]]);
    assert_eq!(first(false), [vec![(0, 8)], vec![(0, 1), (1, 7)]]);
}

// `watermark_blocks` there: a half of seven blocks, the null block included, is three.
#[test]
fn the_watermark_is_left_by_those_who_come_to_others() {
    let settings = tight(6, Scheduling { watermark: 0.5, ..Scheduling::default() });
    let requests = [(4, 3, 0, 0), (4, 1, 0, 0), (4, 1, 0, 0), (4, 1, 0, 0)];
    assert_eq!(steps(settings, &requests), [vec![(0, 4), (1, 4), (2, 4)], vec![(0, 1), (3, 4)], vec![(0, 1)]]);
    // A single request may take all blocks.
    let settings = tight(6, Scheduling { watermark: 0.5, ..Scheduling::default() });
    let settings =
        Settings { resolved: ResolvedConfig { max_num_batched_tokens: 24, ..settings.resolved }, ..settings };
    assert_eq!(steps(settings, &[(23, 1, 0, 0)]), [vec![(0, 23)]]);
}

fn asynchronous() -> Scheduling {
    Scheduling { async_scheduling: true, ..Scheduling::default() }
}

// `async_scheduler.py`: a placeholder stands for the token that is still computed. The step after the last token is
// left out only if `max_tokens` identifies it as the last.
#[test]
fn asynchronous_steps_run_one_ahead_and_one_too_far_if_the_end_is_unknown() {
    for (most_output, expected) in [(None, 3), (Some(9), 4)] {
        let mut engine = TwinEngine::new(with(asynchronous())).unwrap();
        engine.enqueue(&TwinRequest { most_output, ..ask(0, (4, 3, 0, 0)) }, Duration::ZERO).unwrap();
        let first = engine.step(Duration::ZERO).unwrap();
        let mut ahead = engine.step(Duration::ZERO);
        assert_eq!(ahead.as_ref().map(pairs), Some(vec![(0, 1)]), "before the first token is there");
        let mut events = engine.finish(&first);
        while let Some(batch) = ahead {
            ahead = engine.step(Duration::ZERO);
            events.extend(engine.finish(&batch));
        }
        assert_eq!(
            events.iter().map(|event| (event.token, event.last)).collect::<Vec<_>>(),
            [(1, false), (2, false), (3, true)]
        );
        assert_eq!((engine.counters().steps, engine.is_idle()), (expected, true));
    }
}

// `num_stale_output_tokens` of `_preempt_request` and `update_from_output`: tokens under way still count.
#[test]
fn a_preempted_request_keeps_the_token_that_was_under_way() {
    let mut engine = TwinEngine::new(Settings {
        resolved: ResolvedConfig { max_model_len: 12, ..tight(4, asynchronous()).resolved },
        ..tight(4, asynchronous())
    })
    .unwrap();
    (0..2).for_each(|id| engine.enqueue(&ask(id, (8, 4, 0, 0)), Duration::ZERO).unwrap());
    let first = engine.step(Duration::ZERO).unwrap();
    let second = engine.step(Duration::ZERO).unwrap();
    assert_eq!((pairs(&first), pairs(&second)), (vec![(0, 8), (1, 8)], vec![(0, 1)]));
    assert_eq!((engine.counters().preemptions, engine.running(), engine.waiting()), (1, 1, 1));
    let events = engine.finish(&first);
    assert_eq!(events.iter().map(|event| (event.id.0, event.token)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    let mut under_way = VecDeque::from([second]);
    let mut last = None;
    while let Some(batch) = under_way.pop_front() {
        last = engine.finish(&batch).last().copied().or(last);
        while under_way.len() < 2
            && let Some(batch) = engine.step(Duration::ZERO)
        {
            under_way.push_back(batch);
        }
    }
    // It begins again with its prompt and that token, and generates the other three.
    assert_eq!(last.map(|event| (event.id.0, event.token, event.last)), Some((1, 4, true)));
    assert_eq!(engine.counters().generated_tokens, 8);
}

fn speculation(tokens: u32, acceptance: f64) -> Scheduling {
    let speculation = Speculation { tokens, acceptance, seed: 3, lookahead: 0, draft_slots: 0 };
    Scheduling { speculation: Some(speculation), ..Scheduling::default() }
}

// `scheduled_spec_decode_tokens` in `schedule` and `update_from_output`: a decode is one token and its drafts. Rejected
// drafts are computed again, and tokens beyond `max_tokens` are cut off.
#[test]
fn drafts_are_scheduled_with_their_token_and_come_as_far_as_they_are_accepted() {
    let (all, events) = run(with(speculation(3, 1.0)), &[(4, 6, 0, 0)]);
    assert_eq!(all, [vec![(0, 4)], vec![(0, 4)], vec![(0, 4)]]);
    assert_eq!(events.iter().map(|event| (event.tokens, event.token)).collect::<Vec<_>>(), [(1, 1), (4, 5), (1, 6)]);
    let (none, events) = run(with(speculation(3, 0.0)), &[(4, 3, 0, 0)]);
    assert_eq!(none, [vec![(0, 4)], vec![(0, 4)], vec![(0, 4)]]);
    assert!(events.iter().all(|event| event.tokens == 1));
}

#[test]
fn the_number_of_accepted_drafts_follows_the_rate() {
    for asynchronous in [false, true] {
        let scheduling = Scheduling { async_scheduling: asynchronous, ..speculation(2, 0.7) };
        let long = Settings {
            resolved: ResolvedConfig { max_model_len: 10_000, ..settings().resolved },
            num_blocks: 5_000,
            ..with(scheduling)
        };
        let most = long.scheduling.concurrent_steps();
        let mut engine = TwinEngine::new(long).unwrap();
        engine.enqueue(&ask(0, (4, 9_000, 0, 0)), Duration::ZERO).unwrap();
        let mut flights = VecDeque::new();
        loop {
            while flights.len() < most
                && let Some(batch) = engine.step(Duration::ZERO)
            {
                flights.push_back(batch);
            }
            let Some(batch) = flights.pop_front() else { break };
            engine.finish(&batch);
        }
        let counters = engine.counters();
        // 0.7 for the first of two drafts, 0.7 squared for the second.
        let share = to_f64(counters.accepted_tokens) / to_f64(counters.draft_tokens);
        assert!((share - 0.595).abs() < 0.015, "{share}");
        assert_eq!(counters.generated_tokens, 9_000);
    }
}

// `make_request_output` of `v1/engine/output_processor.py`.
#[test]
fn the_stream_interval_gathers_all_tokens_but_the_first() {
    let (_, events) = run(with(Scheduling { stream_interval: 3, ..Scheduling::default() }), &[(4, 8, 0, 0)]);
    assert_eq!(events.iter().map(|event| event.sent).collect::<Vec<_>>(), [1, 0, 0, 3, 0, 0, 3, 1]);
    assert!(events.iter().all(|event| event.tokens == 1));
}

// `step_with_batch_queue` of `v1/engine/core.py`, and `next_decode_eligible_step` of `async_scheduler.py`.
#[test]
fn a_pipeline_has_a_step_of_other_requests_in_each_stage() {
    let mut engine = TwinEngine::new(with(Scheduling { pipeline_stages: 2, ..Scheduling::default() })).unwrap();
    let step = |engine: &mut TwinEngine| engine.step(Duration::ZERO);
    engine.enqueue(&ask(0, (4, 2, 0, 0)), Duration::ZERO).unwrap();
    let first = step(&mut engine).unwrap();
    engine.enqueue(&ask(1, (4, 2, 0, 0)), Duration::ZERO).unwrap();
    let second = step(&mut engine).unwrap();
    assert_eq!((pairs(&first), pairs(&second)), (vec![(0, 4)], vec![(1, 4)]));
    assert!(step(&mut engine).is_none(), "all requests are under way");
    engine.finish(&first);
    assert_eq!(step(&mut engine).as_ref().map(pairs), Some(vec![(0, 1)]));
    engine.finish(&second);
    assert_eq!(step(&mut engine).as_ref().map(pairs), Some(vec![(1, 1)]));

    let mut engine = TwinEngine::new(with(Scheduling { pipeline_stages: 2, ..asynchronous() })).unwrap();
    engine.enqueue(&ask(0, (4, 3, 0, 0)), Duration::ZERO).unwrap();
    assert_eq!(step(&mut engine).as_ref().map(pairs), Some(vec![(0, 4)]));
    assert!(step(&mut engine).is_none(), "a decode is scheduled in every second step");
    assert_eq!(step(&mut engine).as_ref().map(pairs), Some(vec![(0, 1)]));
}

#[test]
fn aborts_are_forgotten_at_once_wherever_the_request_is() {
    let two = Settings {
        resolved: ResolvedConfig { max_num_seqs: 2, ..with(asynchronous()).resolved },
        ..with(asynchronous())
    };
    let mut engine = TwinEngine::new(two).unwrap();
    (0..4).for_each(|id| engine.enqueue(&ask(id, (4, 9, 0, 0)), Duration::ZERO).unwrap());
    let first = engine.step(Duration::ZERO).unwrap();
    assert!(engine.abort(RequestId(0)) && engine.abort(RequestId(2)));
    assert_eq!((engine.running(), engine.waiting()), (1, 1));
    // The id and the slot of a request that has left, while a step with it is under way.
    engine.enqueue(&ask(0, (5, 1, 0, 0)), Duration::ZERO).unwrap();
    let second = engine.step(Duration::ZERO).unwrap();
    assert_eq!(pairs(&second), [(1, 1), (3, 4)]);
    assert_eq!(engine.finish(&first).iter().map(|event| event.id.0).collect::<Vec<_>>(), [1]);
    assert_eq!(engine.finish(&second).iter().map(|event| event.id.0).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn the_reason_of_the_first_wait_is_reported_until_the_queue_is_empty() {
    let waits = |settings: Settings, requests: &[Request]| {
        let mut engine = TwinEngine::new(settings).unwrap();
        for (id, request) in (0..).zip(requests) {
            engine.enqueue(&ask(id, *request), Duration::ZERO).unwrap();
        }
        let mut waits = Vec::new();
        while let Some(batch) = engine.step(STEP * u32::try_from(waits.len()).unwrap()) {
            waits.push(engine.wait_reason());
            engine.finish(&batch);
        }
        waits.dedup();
        waits
    };
    let some = |wait| vec![Some(wait), None];
    let plain = || with(Scheduling::default());
    assert_eq!(waits(plain(), &[(4, 2, 0, 0)]), [None]);
    let one = Settings { resolved: ResolvedConfig { max_num_seqs: 1, ..plain().resolved }, ..plain() };
    assert_eq!(waits(one, &[(4, 2, 0, 0), (4, 2, 0, 0)]), some(WaitReason::Sequences));
    // A budget of 16: the second prompt has no token of the first step.
    assert_eq!(waits(plain(), &[(16, 3, 0, 0), (4, 2, 0, 0)]), some(WaitReason::Budget));
    // Four blocks, three of them taken by the first.
    let tight = || tight(4, Scheduling::default());
    assert_eq!(waits(tight(), &[(10, 4, 0, 0), (6, 2, 0, 0)]), some(WaitReason::Blocks));
    // Both fit, and then one has to give way.
    assert_eq!(waits(tight(), &[(7, 6, 0, 0), (7, 6, 0, 0)]), [None, Some(WaitReason::Blocks), None]);
    // A prompt that may not be cut does not fit beside the other.
    let whole = || Settings {
        resolved: ResolvedConfig { chunked_prefill: false, max_model_len: 16, ..plain().resolved },
        ..plain()
    };
    assert_eq!(waits(whole(), &[(10, 3, 0, 0), (10, 2, 0, 0)]), some(WaitReason::Budget));
    // V0 lets the first one decode until the second has waited for longer than two prompt steps.
    let delayed =
        Settings { resolved: ResolvedConfig { v0: true, scheduler_delay_factor: 2.0, ..whole().resolved }, ..whole() };
    let delayed = waits(delayed, &[(10, 6, 0, 0), (10, 2, 0, 0)]);
    assert_eq!(delayed[..2], [Some(WaitReason::Budget), Some(WaitReason::Delay)], "{delayed:?}");
}
