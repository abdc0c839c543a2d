//! Launch commands from a real record: six ended in a `ValueError`, three ran.

use setpoint::engines::vllm::FLAGS;
use setpoint::facts::{Device, EngineVersion, ModelShape};
use setpoint::rule::{Facts, rejection};

use crate::support::{root, shared};

/// The release is not recorded; the flags are those of the V0 era.
const VERSION: EngineVersion = EngineVersion::new(0, 6, 3);

/// Checks the verdict on each recorded command. Returns the numbers of rejected and accepted commands.
fn verdicts(text: &str) -> (usize, usize) {
    let model = ModelShape::read(&root().join("tests/fixtures/models/qwen2-0.5b-instruct")).unwrap();
    let facts = Facts::new(setpoint::engines::vllm::VLLM_RULES, &model, VERSION, Device::UNKNOWN_GPU);
    let (mut rejected, mut accepted) = (0, 0);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(arguments) = line.strip_prefix("vllm serve ") else { continue };
        let arguments: Vec<_> = arguments.split_whitespace().skip(1).map(str::to_owned).collect();
        let config = FLAGS.for_version(VERSION).parse(&arguments).unwrap();
        let expected = lines.next_if(|next| next.starts_with("ValueError: "));
        let finding = rejection(&config, &facts);
        let message = finding.as_ref().map(|finding| finding.message.as_str());
        assert_eq!(message, expected.and_then(|line| line.strip_prefix("ValueError: ")), "{line}");
        rejected += usize::from(message.is_some());
        accepted += usize::from(message.is_none());
    }
    (rejected, accepted)
}

#[test]
fn the_copied_commands_get_the_verdict_and_the_reason_that_the_engine_gave() {
    let text = std::fs::read_to_string(root().join("tests/fixtures/commands_of_the_v0_era.txt")).unwrap();
    assert_eq!(verdicts(&text), (6, 3));
}

#[test]
#[ignore = "needs data in ../shared, which this repository may not ship"]
fn the_original_file_gives_the_same_verdicts() {
    assert_eq!(verdicts(&shared("seeds/004_564cae3269120fa6.txt")), (6, 3));
}
