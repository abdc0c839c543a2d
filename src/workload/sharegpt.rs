//! ShareGPT: recorded conversations. The first message is the prompt, and the second determines the reply's length.

use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use serde::Deserialize;
use serde::de::{IgnoredAny, SeqAccess, Visitor};

use super::draw::{DrawPurpose, between, rng};
use super::recorded::RecordedPrompts;
use super::{LeftOut, Prompt, UserSession, WorkloadError, WorkloadSurroundings, json_problem};

/// Limits for the conversations to take, in tokens. The defaults are those of `is_valid_sequence` in
/// `vllm/benchmarks/datasets/datasets.py`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pruning {
    /// Least length of the prompt, and of a recorded reply.
    pub min_len: u32,
    pub max_prompt_len: u32,
    /// Limit of prompt and reply together.
    pub max_total_len: u32,
}

impl Default for Pruning {
    fn default() -> Self {
        Self { min_len: 4, max_prompt_len: 1024, max_total_len: 2048 }
    }
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    conversations: FirstTwo,
}

#[derive(Deserialize)]
struct RecordedMessage {
    value: String,
}

/// The first two messages of a conversation. The others are skipped while reading, because such a file has hundreds of
/// megabytes.
#[derive(Default)]
struct FirstTwo(Option<(String, String)>);

impl<'de> Deserialize<'de> for FirstTwo {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Messages;
        impl<'de> Visitor<'de> for Messages {
            type Value = FirstTwo;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut messages: A) -> Result<FirstTwo, A::Error> {
                let Some(first) = messages.next_element::<RecordedMessage>()? else { return Ok(FirstTwo(None)) };
                let Some(second) = messages.next_element::<RecordedMessage>()? else { return Ok(FirstTwo(None)) };
                while messages.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstTwo(Some((first.value, second.value))))
            }
        }
        deserializer.deserialize_seq(Messages)
    }
}

/// Takes up to `prompts` conversations in an order that the seed determines, none twice: the first that pass the
/// pruning. `vllm bench serve --dataset-name sharegpt` does the same.
pub(super) fn read(
    file: &Path,
    prompts: u32,
    output_len: Option<u32>,
    pruning: Pruning,
    surroundings: &WorkloadSurroundings,
) -> Result<RecordedPrompts, WorkloadError> {
    let tokenizer = surroundings.read_tokenizer()?;
    let opened =
        File::open(file).map_err(|error| WorkloadError::Read { file: file.to_owned(), problem: error.to_string() })?;
    let entries: Vec<Entry> = serde_json::from_reader(BufReader::with_capacity(1 << 20, opened)).map_err(|error| {
        let line = error.line() as u64;
        WorkloadError::Row { file: file.to_owned(), line, problem: json_problem(&error) }
    })?;
    let all = entries.len();
    let mut pairs: Vec<_> = entries.into_iter().filter_map(|entry| entry.conversations.0).collect();
    let single = all - pairs.len();

    let mut order = rng(surroundings.seed, DrawPurpose::Order, 0);
    let (mut sessions, mut longest, mut pruned) = (Vec::new(), 0, 0);
    for at in 0..pairs.len() {
        if sessions.len() == prompts as usize {
            break;
        }
        let last = u32::try_from(pairs.len() - 1 - at).unwrap_or(u32::MAX);
        pairs.swap(at, at + between(&mut order, 0, last) as usize);
        let (prompt, reply) = &mut pairs[at];
        let input = tokenizer.count(prompt, true);
        let output = output_len.map_or_else(|| tokenizer.count(reply, true), u64::from);
        let total = input + output;
        let kept = input >= u64::from(pruning.min_len)
            && (output_len.is_some() || output >= u64::from(pruning.min_len))
            && input <= u64::from(pruning.max_prompt_len)
            && total <= u64::from(pruning.max_total_len).min(surroundings.max_model_len.unwrap_or(u64::MAX));
        if !kept {
            pruned += 1;
            continue;
        }
        longest = longest.max(total);
        sessions
            .push(UserSession::single(Prompt::Text(std::mem::take(prompt)), u32::try_from(output).unwrap_or(u32::MAX)));
    }
    let reasons = [("with fewer than two messages", single as u64), ("too short or too long", pruned)];
    let left_out = reasons.into_iter().filter(|(_, rows)| *rows > 0);
    let left_out = left_out.map(|(reason, rows)| LeftOut { reason: reason.to_owned(), rows }).collect();
    if sessions.is_empty() {
        return Err(WorkloadError::Empty { file: file.to_owned(), left_out });
    }
    Ok(RecordedPrompts::new(sessions, longest, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;
    use crate::workload::tests::{temporary, texts, tokenizer};

    fn take(text: &str, prompts: u32, output_len: Option<u32>, seed: u64) -> Result<RecordedPrompts, WorkloadError> {
        let surroundings =
            WorkloadSurroundings { seed, tokenizer: Some(tokenizer()), ..WorkloadSurroundings::default() };
        read(temporary(text).path(), prompts, output_len, Pruning::default(), &surroundings)
    }

    fn file(messages: &[&[&str]]) -> String {
        let said = |value: &&str| serde_json::json!({"from": "human", "value": value});
        let entry =
            |values: &&[&str]| serde_json::json!({"conversations": values.iter().map(said).collect::<Vec<_>>()});
        serde_json::Value::from(messages.iter().map(entry).collect::<Vec<_>>()).to_string()
    }

    #[test]
    fn conversations_are_taken_without_repetition_until_they_are_exhausted() {
        let prompts: Vec<_> = (0..20).map(|number| format!("how do you do number {number}")).collect();
        let pairs: Vec<_> = prompts.iter().map(|prompt| [prompt.as_str(), "very well and thank you", "more"]).collect();
        let text = file(&pairs.iter().map(|pair| &pair[..]).collect::<Vec<_>>());
        let all = take(&text, 100, None, 1).unwrap();
        assert_eq!(all.len(), Some(20));
        let mut seen: Vec<_> = (0..20).map(|index| texts(&all, index)).collect();
        assert_ne!(seen, prompts);
        seen.sort();
        let mut sorted = prompts.clone();
        sorted.sort();
        assert_eq!(seen, sorted);
        let few = take(&text, 5, None, 1).unwrap();
        assert_eq!(few.len(), Some(5));
        assert_eq!(texts(&few, 3), texts(&all, 3), "how many are asked does not change the first");
        assert_eq!(few.session(7), few.session(2));
        assert_ne!(texts(&few, 0), texts(&take(&text, 5, None, 2).unwrap(), 0));
    }

    #[test]
    fn the_pruning_matches_vllm_and_counts_the_pruned_rows() {
        let long = "word and ".repeat(600);
        let good = "how are you doing today my friend";
        let text =
            file(&[&[good, "very well and thank you so much"], &["a"], &["a", good], &[good, "a"], &[&long, good]]);
        let taken = take(&text, 100, None, 1).unwrap();
        assert_eq!(taken.len(), Some(1));
        let expected = [
            LeftOut { reason: "with fewer than two messages".to_owned(), rows: 1 },
            LeftOut { reason: "too short or too long".to_owned(), rows: 3 },
        ];
        assert_eq!(taken.left_out(), expected);
        // A given length replaces the reply's.
        assert_eq!(take(&text, 100, Some(2), 1).unwrap().len(), Some(2));
    }

    #[test]
    fn an_invalid_file_is_an_error_with_its_line() {
        for (text, problem) in [
            ("[{\"conversations\":\n [{\"from\": \"human\"}]}]", ":2: missing field `value`"),
            ("{}", ":1: invalid type: map"),
            ("[{\"conversations\": 5}]", ":1: invalid type: integer `5`, expected an array of messages"),
            ("[]", "contains no usable request"),
        ] {
            let error = take(text, 1, None, 1).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
