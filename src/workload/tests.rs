//! Tests of every kind of workload: its sessions never change and have the stated lengths.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// Returns a tokenizer of about 600 tokens that adds one before every text.
pub(super) fn tokenizer() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer")
}

pub(super) fn temporary(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn prompt(workload: &dyn Workload, index: u64) -> Prompt {
    workload.session(index).turns.swap_remove(0).request.prompt
}

pub(super) fn tokens(workload: &dyn Workload, index: u64) -> Vec<u32> {
    match prompt(workload, index) {
        Prompt::Tokens(tokens) => tokens,
        other => panic!("{other:?}"),
    }
}

pub(super) fn texts(workload: &dyn Workload, index: u64) -> String {
    match prompt(workload, index) {
        Prompt::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

fn ids() -> WorkloadSurroundings {
    WorkloadSurroundings {
        seed: 7,
        vocab_size: Some(4096),
        max_model_len: Some(8192),
        takes_tokens: true,
        ..WorkloadSurroundings::default()
    }
}

fn text(chat: bool) -> WorkloadSurroundings {
    WorkloadSurroundings { tokenizer: Some(tokenizer()), takes_tokens: false, chat, ..ids() }
}

fn exact(length: u32) -> TokenLength {
    TokenLength::Exact(length)
}

fn range(min: u32, max: u32) -> TokenLength {
    TokenLength::Range { min, max }
}

fn prefix() -> WorkloadSpec {
    WorkloadSpec::Prefix { groups: 3, prefix_len: 40, share: 0.5, suffix_len: range(10, 20), output_len: exact(5) }
}

fn conversation() -> WorkloadSpec {
    WorkloadSpec::Conversation {
        turns: range(2, 4),
        system_len: 16,
        first_len: exact(20),
        user_len: range(5, 9),
        output_len: exact(8),
        think: Think::Exponential(Duration::from_secs(2)),
    }
}

fn image() -> WorkloadSpec {
    WorkloadSpec::Image { sizes: vec![(40, 30), (64, 64)], count: 2, input_len: exact(12), output_len: exact(5) }
}

fn mixture() -> WorkloadSpec {
    WorkloadSpec::Mixture { parts: vec![(3.0, WorkloadSpec::random(8, 2)), (1.0, prefix())] }
}

#[test]
fn plain_random_prompts_are_those_of_the_first_studies() {
    let built = WorkloadSpec::random(6, 4).build(&ids()).unwrap();
    let simple = RandomWorkload { input_len: 6, output_len: 4, vocab_size: 4096, seed: 7 };
    for index in [0, 1, 99] {
        assert_eq!(built.session(index), simple.session(index));
    }
    assert_eq!(tokens(&*built, 0), [757, 821, 908, 858, 1224, 2780]);
}

#[test]
fn a_range_for_one_length_does_not_change_the_tokens() {
    let spec = WorkloadSpec::Random { input_len: range(3, 9), output_len: range(1, 100), prefix_len: 0 };
    let (ranged, fixed) = (spec.build(&ids()).unwrap(), WorkloadSpec::random(9, 1).build(&ids()).unwrap());
    for index in 0..50 {
        let (short, long) = (tokens(&*ranged, index), tokens(&*fixed, index));
        assert!((3..=9).contains(&short.len()) && long.starts_with(&short));
    }
    let lengths: std::collections::BTreeSet<_> = (0..200).map(|index| tokens(&*ranged, index).len()).collect();
    assert_eq!(lengths, (3..=9).collect());
    assert_eq!(ranged.longest(), 109);
}

#[test]
fn sessions_of_a_prefix_workload_share_exactly_their_prefix() {
    let built = prefix().build(&ids()).unwrap();
    let begins: Vec<_> = (0..400).map(|index| tokens(&*built, index)[..40].to_vec()).collect();
    let mut counts = std::collections::HashMap::new();
    for begin in &begins {
        *counts.entry(begin).or_insert(0) += 1;
    }
    let shared: Vec<_> = counts.values().filter(|count| **count > 1).copied().collect();
    assert_eq!(shared.len(), 3, "{counts:?}");
    assert!((160..240).contains(&shared.iter().sum::<i32>()));
    assert!((0..50).all(|index| (50..=60).contains(&tokens(&*built, index).len())));
    assert_eq!(built.longest(), 65);
}

#[test]
fn each_turn_of_a_conversation_begins_with_the_whole_history() {
    for surroundings in [ids(), text(false)] {
        let built = conversation().build(&surroundings).unwrap();
        let (one, two) = (built.session(0), built.session(1));
        assert!((2..=4).contains(&one.turns.len()));
        let begins = |long: &Prompt, short: &Prompt| match (long, short) {
            (Prompt::Tokens(long), Prompt::Tokens(short)) => {
                assert!((5 + 8..=9 + 8).contains(&(long.len() - short.len())));
                long.starts_with(short)
            }
            (Prompt::Text(long), Prompt::Text(short)) => long.starts_with(short),
            other => panic!("{other:?}"),
        };
        for pair in one.turns.windows(2) {
            assert!(begins(&pair[1].request.prompt, &pair[0].request.prompt));
        }
        assert_eq!(one.turns[0].think, Duration::ZERO);
        assert!(one.turns[1].think > Duration::ZERO);
        assert_ne!(one.turns[0], two.turns[0]);
    }
    let system = |index| tokens(&*conversation().build(&ids()).unwrap(), index)[..16].to_vec();
    assert_eq!(system(0), system(9));
}

#[test]
fn think_times_have_the_requested_mean() {
    let built = conversation().build(&ids()).unwrap();
    let turns: Vec<_> = (0..2000).flat_map(|index| built.session(index).turns.split_off(1)).collect();
    let total: Duration = turns.iter().map(|turn| turn.think).sum();
    let mean = (total / u32::try_from(turns.len()).unwrap()).as_secs_f64();
    assert!((mean - 2.0).abs() < 0.15, "{mean}");
}

#[test]
fn a_conversation_over_chat_has_a_message_for_each_speaker() {
    let built = conversation().build(&text(true)).unwrap();
    let session = built.session(0);
    let Prompt::Messages(messages) = &session.turns[1].request.prompt else { panic!("{session:?}") };
    let roles: Vec<_> = messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
    let read = tokenizer::Tokenizer::read(&tokenizer()).unwrap();
    let lengths: Vec<_> = messages
        .iter()
        .map(|message| match &message.content[..] {
            [MessagePart::Text(text)] => read.count(text, false),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((lengths[0], lengths[1], lengths[2]), (16, 20, 8));
    assert!((5..=9).contains(&lengths[3]));
}

fn pixels(part: &MessagePart) -> (u32, u32, Vec<u8>) {
    let MessagePart::Image(file) = part else { panic!("{part:?}") };
    let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
    (info.width, info.height, pixels)
}

#[test]
fn images_have_the_requested_sizes_and_are_all_different() {
    let built = image().build(&text(true)).unwrap();
    let mut seen = std::collections::HashSet::new();
    for index in 0..20 {
        let Prompt::Messages(messages) = prompt(&*built, index) else { panic!() };
        let [one, two, MessagePart::Text(_)] = &messages[0].content[..] else { panic!("{messages:?}") };
        for part in [one, two] {
            let (width, height, pixels) = pixels(part);
            assert!([(40, 30), (64, 64)].contains(&(width, height)));
            assert_eq!(u32::try_from(pixels.len()), Ok(3 * width * height));
            assert!(seen.insert(pixels));
        }
    }
    let error = image().build(&ids()).unwrap_err().to_string();
    assert_eq!(error, "images cannot be sent to /v1/completions");
}

#[test]
fn a_mixture_draws_its_parts_by_weight() {
    let built = mixture().build(&ids()).unwrap();
    let short = (0..2000).filter(|index| tokens(&*built, *index).len() == 8).count();
    assert!((1420..1580).contains(&short), "{short}");
    assert_eq!(built.longest(), 65);
}

#[test]
fn the_sessions_of_every_kind_never_change() {
    let trace = temporary("{\"timestamp\": 0, \"input_length\": 700, \"output_length\": 5, \"hash_ids\": [46]}");
    let trace = WorkloadSpec::of_file(trace.path()).unwrap().build(&ids()).unwrap();
    let first = |spec: WorkloadSpec| tokens(&*spec.build(&ids()).unwrap(), 5)[..4].to_vec();
    let session = conversation().build(&ids()).unwrap().session(3);
    let last = session.turns.last().unwrap();
    let Prompt::Tokens(whole) = &last.request.prompt else { panic!("{last:?}") };
    let Prompt::Messages(messages) = prompt(&*image().build(&text(true)).unwrap(), 0) else { panic!() };
    let conversations: Vec<_> = (0..9)
        .map(|n| format!("{{\"conversations\": [{{\"value\": \"what is {n}\"}}, {{\"value\": \"it is a number\"}}]}}"))
        .collect();
    let conversations = temporary(&format!("[{}]", conversations.join(",")));
    let share_gpt = WorkloadSpec::of_file(conversations.path()).unwrap().build(&text(false)).unwrap();
    let found = [
        format!("random {:?}", tokens(&*WorkloadSpec::random(6, 4).build(&ids()).unwrap(), 0)),
        format!("text {:?}", texts(&*WorkloadSpec::random(6, 4).build(&text(false)).unwrap(), 0)),
        format!("prefix {:?}", first(prefix())),
        format!("conversation {} {} {:?} {:?}", session.turns.len(), whole.len(), whole[whole.len() - 1], last.think),
        format!("image {:?} {:?}", &pixels(&messages[0].content[0]).2[..3], messages[0].content[2]),
        format!("mixture {:?}", first(mixture())),
        format!("trace {:?}", &tokens(&*trace, 0)[510..514]),
        format!("sharegpt {:?} {:?}", texts(&*share_gpt, 0), texts(&*share_gpt, 1)),
    ];
    let expected = [
        "random [757, 821, 908, 858, 1224, 2780]",
        "text \" st that engine an be\"",
        "prefix [2157, 2726, 1387, 3089]",
        "conversation 4 81 2277 4.799877512s",
        "image [132, 117, 246] Text(\" st that engine an be launch at ask or so rules th\")",
        "mixture [2157, 2726, 1387, 3089]",
        "trace [324, 3467, 757, 821]",
        "sharegpt \"what is 1\" \"what is 0\"",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_file_is_known_by_its_begin() {
    for (text, kind) in [
        ("[\n{\"conversations\": []}]", "sharegpt"),
        ("{\"prompt\": \"a\"}\n", "jsonl"),
        ("\n{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 5}\n", "trace"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "trace"),
    ] {
        assert_eq!(WorkloadSpec::of_file(temporary(text).path()).unwrap().kind(), kind, "{text}");
    }
}

#[test]
fn a_workload_that_cannot_be_built_is_reported_with_its_values() {
    let cases = [
        (
            WorkloadSpec::random(8000, 200),
            ids(),
            "input_len 8000 + output_len 200 = 8200 tokens; the limit of the model is 8192",
        ),
        (WorkloadSpec::random(9, 9), WorkloadSurroundings { vocab_size: None, ..ids() }, "the size of the vocabulary"),
        (
            WorkloadSpec::random(9, 9),
            WorkloadSurroundings { takes_tokens: false, ..ids() },
            "the model's tokenizer is not known",
        ),
        (WorkloadSpec::Trace { path: None }, ids(), "a trace workload needs a file with its requests"),
        (WorkloadSpec::Trace { path: Some("/nowhere".into()) }, ids(), "/nowhere cannot be read: No such file"),
        (WorkloadSpec::Mixture { parts: vec![(0.0, prefix())] }, ids(), "part: no part has a weight above 0"),
        (WorkloadSpec::Mixture { parts: vec![(-1.0, prefix())] }, ids(), "weight: -1 is not a number of at least 0"),
        (WorkloadSpec::random(0, 3), ids(), "input_len: must be at least 1"),
    ];
    for (spec, surroundings, problem) in cases {
        let error = spec.build(&surroundings).unwrap_err().to_string();
        assert!(error.starts_with(problem), "{error}");
    }
}

#[test]
#[ignore = "needs data in ../shared, which this repository may not ship"]
fn the_traces_that_were_measured_are_read() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data/traces");
    for (file, rows) in [("azure2023_conv.csv", 19_366), ("sharegpt_vicuna_lengths_20k.csv", 20_000)] {
        let surroundings = WorkloadSurroundings { max_model_len: None, ..ids() };
        let built = WorkloadSpec::of_file(&root.join(file)).unwrap().build(&surroundings).unwrap();
        let left_out: u64 = built.left_out().iter().map(|left_out| left_out.rows).sum();
        assert_eq!(built.len(), Some(rows - left_out), "{file}");
        assert!((0..rows - left_out).is_sorted_by_key(|index| built.due(index)));
    }
}

proptest! {
    #[test]
    fn no_request_is_longer_than_the_longest(index in any::<u64>(), kind in 0_usize..4) {
        let spec = [WorkloadSpec::random(9, 3), prefix(), conversation(), mixture()][kind].clone();
        let built = spec.build(&ids()).unwrap();
        for turn in built.session(index).turns {
            let Prompt::Tokens(tokens) = turn.request.prompt else { panic!() };
            prop_assert!(tokens.len() as u64 + u64::from(turn.request.output_len) <= built.longest());
        }
        prop_assert_eq!(built.session(index), built.session(index));
    }

    #[test]
    fn different_indices_never_give_the_same_prompt(one in any::<u64>(), other in any::<u64>(), kind in 0_usize..4) {
        prop_assume!(one != other);
        let own = |index| {
            let spec = [WorkloadSpec::random(9, 3), prefix(), conversation(), mixture()][kind].clone();
            let mut tokens = tokens(&*spec.build(&ids()).unwrap(), index);
            // The tokens after any shared beginning.
            tokens.split_off(tokens.len() - 8)
        };
        prop_assert_ne!(own(one), own(other));
    }
}
