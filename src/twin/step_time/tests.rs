//! Known magnitudes, and properties of every batch.

use super::*;
use crate::config::ResolvedConfig;
use crate::twin::{Scheduling, test_model};
use proptest::prelude::*;

fn settings() -> Settings {
    Settings {
        resolved: ResolvedConfig { max_num_seqs: 256, block_size: 16, ..crate::twin::tests::settings().resolved },
        ..crate::twin::tests::settings()
    }
}

fn on(device: &str, settings: &Settings) -> StepTime {
    StepTime::new(&test_model(), DevicePreset::find(device).unwrap(), settings).unwrap()
}

fn seconds(work: BatchWork) -> f64 {
    on("h100", &settings()).step_duration(&work).as_secs_f64()
}

fn decode(sequences: u32, context: u32) -> BatchWork {
    let decode_context = u64::from(sequences) * u64::from(context);
    BatchWork {
        sequences,
        tokens: sequences,
        samples: sequences,
        decodes: sequences,
        decode_context,
        decode_longest: context,
        blocks: decode_context / 16,
        ..BatchWork::default()
    }
}

fn prefill(tokens: u32) -> BatchWork {
    let pairs = u64::from(tokens) * u64::from(tokens) / 2;
    let blocks = u64::from(tokens) / 16;
    BatchWork {
        sequences: 1,
        tokens,
        samples: 1,
        prompt_tokens: tokens,
        prompt_pairs: pairs,
        blocks,
        ..BatchWork::default()
    }
}

fn both(prompt: u32, sequences: u32, context: u32) -> BatchWork {
    let (prompt, decodes) = (prefill(prompt), decode(sequences, context));
    BatchWork {
        sequences: prompt.sequences + decodes.sequences,
        tokens: prompt.tokens + decodes.tokens,
        samples: prompt.samples + decodes.samples,
        prompt_tokens: prompt.prompt_tokens,
        prompt_pairs: prompt.prompt_pairs,
        blocks: prompt.blocks + decodes.blocks,
        ..decodes
    }
}

#[test]
fn eight_billion_weights_take_as_long_as_the_bus_needs() {
    // 15 GB of weights without the input embedding over 2.68 TB/s are 5.6 ms, plus 1 ms of overhead.
    let time = seconds(decode(1, 100));
    assert!((0.006..0.0077).contains(&time), "{time}");
}

#[test]
fn a_small_batch_is_nearly_free_and_a_large_one_is_not() {
    assert!(seconds(decode(16, 500)) < 1.15 * seconds(decode(1, 500)));
    assert!(seconds(decode(256, 2000)) > 2.0 * seconds(decode(16, 2000)));
}

#[test]
fn prefill_grows_faster_than_its_tokens() {
    let (short, long) = (seconds(prefill(2048)), seconds(prefill(16384)));
    assert!((0.04..0.08).contains(&short), "{short}");
    assert!(long > 8.0 * short, "{short} {long}");
}

#[test]
fn a_batch_pays_for_the_graph_that_it_is_padded_to() {
    let time = on("h100", &settings());
    let linear = |tokens| time.parts(&decode(tokens, 100)).linear_s.to_bits();
    assert_eq!(linear(33), linear(40));
    assert_ne!(linear(40), linear(41));
}

#[test]
fn a_graph_is_replayed_whole_only_without_prompts() {
    let time = on("h100", &settings());
    let launch = |work| time.parts(&work).launch_s;
    assert!(launch(decode(100, 10)) == 0.0 && launch(both(50, 50, 10)) > 0.0 && launch(decode(600, 10)) > 0.0);
}

#[test]
fn eager_decoding_takes_as_long_as_python_needs_to_launch_it() {
    let eager = on("h100", &Settings { eager: true, ..settings() });
    let (slow, fast) = (eager.step_duration(&decode(1, 100)).as_secs_f64(), seconds(decode(1, 100)));
    assert!((1.3..2.5).contains(&(slow / fast)), "{slow} {fast}");
    let ratio = eager.step_duration(&prefill(8192)).as_secs_f64() / seconds(prefill(8192));
    assert!((0.98..1.02).contains(&ratio), "a long prompt hides it: {ratio}");
}

#[test]
fn an_overlapped_host_costs_nothing_until_it_is_the_slower_one() {
    let scheduling = Scheduling { async_scheduling: true, ..Scheduling::default() };
    let time = on("h100", &Settings { scheduling, ..settings() });
    let parts = time.parts(&decode(8, 100));
    let device = parts.linear_s + parts.attention_s + parts.sampling_s;
    assert!(parts.host_s < device && (parts.total_s - device).abs() < 1e-12);
    let mut slow = Factors::ONE;
    slow[TermFactor::Host] = 100.0;
    let parts = time.scaled(slow).parts(&decode(8, 100));
    assert!((parts.total_s - parts.host_s).abs() < 1e-12);
}

#[test]
fn two_devices_are_faster_than_one_and_slower_than_half_of_it() {
    let device = DevicePreset::find("h100").unwrap();
    let of = |tensor, pipeline, work: &BatchWork| {
        let parallel = Parallel { tensor, pipeline };
        StepTime::on_devices(&test_model(), device, &settings(), parallel).unwrap().step_duration(work).as_secs_f64()
    };
    for work in [decode(64, 1000), prefill(4096)] {
        let (one, two, staged) = (of(1, 1, &work), of(2, 1, &work), of(1, 2, &work));
        assert!(two < one && two > 0.5 * one, "{one} {two}");
        assert!(staged > one && staged < 1.05 * one, "what is handed on comes on top: {one} {staged}");
    }
}

#[test]
fn as_many_sequences_as_can_be_named_do_not_overflow() {
    let many =
        Settings { resolved: ResolvedConfig { max_num_seqs: u32::MAX.into(), ..settings().resolved }, ..settings() };
    assert!(on("h100", &many).parts(&decode(512, 10)).launch_s == 0.0);
    assert!(on("h100", &many).parts(&decode(513, 10)).launch_s > 0.0);
}

proptest! {
    #[test]
    fn more_of_anything_never_takes_less_time(
        device in prop::sample::select(DevicePreset::names().collect::<Vec<_>>()),
        prompt in 1_u32..4000, sequences in 1_u32..300, context in 1_u32..8000, more in 1_u32..2000,
    ) {
        let time = on(device, &settings());
        let base = time.step_duration(&both(prompt, sequences, context));
        prop_assert!(base > Duration::ZERO && base < Duration::from_secs(10_000));
        for larger in [both(prompt + more, sequences, context), both(prompt, sequences + more, context), both(prompt, sequences, context + more)] {
            prop_assert!(time.step_duration(&larger) >= base, "{larger:?}");
        }
        prop_assert!(time.step_duration(&decode(sequences + more, context)) >= time.step_duration(&decode(sequences, context)));
    }
}
