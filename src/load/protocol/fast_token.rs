//! Fast recognition of the common chunk, which only adds one token, by a few searches instead of parsing.
//!
//! A quote within a JSON string has a backslash before it. In any text, `"usage"` with both quotes and a following
//! colon can therefore only be a key. Uncertain cases are left to the parser. A wrong "no" costs a microsecond, and a
//! "yes" agrees with the parser for every event that is JSON.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use memchr::{memchr, memchr2};

/// Maximum number of keys of a choice or a delta that are examined before it is left to the parser.
const MAX_KEYS: usize = 8;

/// Searchers for quoted keys, built once.
struct KeyFinders {
    choices: Finder<'static>,
    finish_reason: Finder<'static>,
    usage: Finder<'static>,
    error: Finder<'static>,
}

static KEY_FINDERS: LazyLock<KeyFinders> = LazyLock::new(|| KeyFinders {
    choices: Finder::new("\"choices\""),
    finish_reason: Finder::new("\"finish_reason\""),
    usage: Finder::new("\"usage\""),
    error: Finder::new("\"error\""),
});

/// Returns whether an event's data is certainly a chunk with a token, and without a finish reason, counts or an error.
pub(super) fn is_token(data: &[u8]) -> bool {
    let marks = &*KEY_FINDERS;
    data.first() == Some(&b'{')
        && data.last() == Some(&b'}')
        && marks.choices.find(data).is_some_and(|at| first_choice(&data[at + b"\"choices\"".len()..]).is_some())
        && is_null_value(&marks.finish_reason, data, true) == Some(true)
        && is_null_value(&marks.usage, data, false) != Some(false)
        && marks.error.find(data).is_none()
}

/// Returns whether the only value of a key is null or, if `empty`, an empty string. Returns `None` without such a key.
/// The key is the finder's needle.
fn is_null_value(key: &Finder<'_>, data: &[u8], empty: bool) -> Option<bool> {
    let value = &data[key.find(data)? + key.needle().len()..];
    let null = value_of(value).and_then(|value| {
        let null = value.strip_prefix(b"null");
        null.or_else(|| value.strip_prefix(b"\"\"").filter(|_| empty))
    });
    let ends = null.is_some_and(|rest| matches!(rest.first(), Some(b',' | b'}' | b' ' | b'\t')));
    Some(ends && key.find(value).is_none())
}

/// Returns the text from the value on, given the text after its key. Skips the colon and spaces.
fn value_of(rest: &[u8]) -> Option<&[u8]> {
    rest.trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start)
}

/// Returns `Some` if the first choice has a token. `choices` is the JSON after the key `"choices"`.
fn first_choice(choices: &[u8]) -> Option<()> {
    let list = value_of(choices)?.strip_prefix(b"[")?;
    let mut rest = list.trim_ascii_start().strip_prefix(b"{")?;
    for _ in 0..MAX_KEYS {
        let (key, value) = entry(rest)?;
        match key {
            b"text" => return value.starts_with(b"\"").then_some(()),
            b"delta" => return delta(value.strip_prefix(b"{")?),
            _ => rest = skip(value)?,
        }
    }
    None
}

/// Returns `Some` if a delta has text.
fn delta(mut rest: &[u8]) -> Option<()> {
    for _ in 0..MAX_KEYS {
        let (key, value) = entry(rest)?;
        // An empty text is left to the parser: its meaning depends on the role.
        let is_text = matches!(key, b"content" | b"reasoning_content" | b"reasoning") && value.starts_with(b"\"");
        if is_text {
            return (value.get(1) != Some(&b'"')).then_some(());
        }
        rest = skip(value)?;
    }
    None
}

/// Returns the next key, and the text from its value on.
fn entry(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = rest.trim_ascii_start().strip_prefix(b"\"")?;
    let end = memchr2(b'"', b'\\', rest).filter(|end| rest[*end] == b'"')?;
    Some((&rest[..end], value_of(&rest[end + 1..])?))
}

/// Returns the text after a plain value and its comma. Returns `None` for lists, objects and texts with escapes.
fn skip(value: &[u8]) -> Option<&[u8]> {
    let rest = match value {
        [b'{' | b'[', ..] => return None,
        [b'"', text @ ..] => {
            let end = memchr2(b'"', b'\\', text).filter(|end| text[*end] == b'"')?;
            &text[end + 1..]
        }
        _ => {
            let end = memchr(b',', value)?;
            // The last value of an object has no comma: this one belongs to an outer object.
            if value[..end].contains(&b'}') {
                return None;
            }
            &value[end..]
        }
    };
    rest.trim_ascii_start().strip_prefix(b",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::load::Dialect;
    use crate::load::protocol::chunk::{ChoiceFinish, ReplyChunk};

    #[test]
    fn the_chunks_of_every_server_are_recognised() {
        for chunk in [
            // vLLM
            r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],"usage":null}"#,
            r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}"#,
            r#"{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"reasoning":"a"},"logprobs":null,"finish_reason":null}]}"#,
            // SGLang
            r#"{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":"a","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}"#,
            // text-generation-inference
            r#"{"object":"text_completion","id":"","created":1,"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":""}],"model":"m","system_fingerprint":"3.3.0"}"#,
            r#"{"object":"chat.completion.chunk","id":"","created":1,"model":"m","system_fingerprint":"3.3.0","choices":[{"index":0,"delta":{"role":"assistant","content":"a"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
            // llama.cpp
            r#"{"choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":null}],"created":1,"model":"m","system_fingerprint":"b1","object":"text_completion","id":"c"}"#,
            r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"a"}}],"created":1,"id":"c","model":"m","system_fingerprint":"b1","object":"chat.completion.chunk"}"#,
            // Written by Python's json module
            r#"{"id": "c", "choices": [{"index": 0, "text": "\"error\": 5, \"usage\"", "finish_reason": null}], "usage": null}"#,
        ] {
            assert!(is_token(chunk.as_bytes()), "{chunk}");
        }
    }

    #[test]
    fn chunks_with_further_fields_are_left_to_the_parser() {
        for chunk in [
            "[DONE]",
            "",
            "{}",
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
            r#"{"choices":[{"text":"a","finish_reason":"length"}],"usage":null}"#,
            r#"{"choices":[{"text":"a","finish_reason":null}],"usage":{"prompt_tokens":1}}"#,
            r#"{"choices":[{"text":"a","finish_reason":null},{"text":"b","finish_reason":"stop"}]}"#,
            r#"{"choices":[{"text":"a","finish_reason":nullable}]}"#,
            r#"{"choices":[{"text":null,"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"content":null},"finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":null}]}"#,
            r#"{"choices":[{"text":"a","finish_reason":null}],"error":{"message":"x"}}"#,
            r#"{"choices":[{"text":"a","finish_reason":null"#,
        ] {
            assert!(!is_token(chunk.as_bytes()), "{chunk}");
        }
    }

    /// Generates JSON strings with everything that could be mistaken for structure.
    fn text() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "a",
            "",
            "\"",
            "\\",
            "\\\"",
            "é",
            "\u{1f600}",
            "\n",
            "\u{1}",
            "null",
            ":",
            ",",
            "{",
            "}",
            "[",
            "]",
            " ",
            "usage",
            "error",
            "choices",
            "finish_reason",
            "\"usage\":{",
            "\"finish_reason\":null",
            "\"error\":",
            "text",
        ]);
        prop::collection::vec(piece, 0..4).prop_map(|pieces| serde_json::to_string(&pieces.concat()).unwrap())
    }

    fn one_of(texts: &[&'static str]) -> impl Strategy<Value = String> + use<> {
        prop::sample::select(texts.to_vec()).prop_map(str::to_owned)
    }

    fn finish() -> impl Strategy<Value = String> {
        prop_oneof![6 => Just("null".to_owned()), 1 => one_of(&["\"\"", "\"length\"", "\"abort\""])]
    }

    fn object(parts: Vec<(&'static str, String)>, colon: &str, comma: &str) -> String {
        let parts: Vec<_> = parts.into_iter().map(|(key, value)| format!("\"{key}\"{colon}{value}")).collect();
        format!("{{{}}}", parts.join(comma))
    }

    fn maybe(
        key: &'static str,
        value: impl Strategy<Value = String>,
    ) -> impl Strategy<Value = Vec<(&'static str, String)>> {
        prop::option::of(value).prop_map(move |value| value.map(|value| (key, value)).into_iter().collect())
    }

    /// Generates a chunk that some server could write, with its fields in any order.
    fn chunk() -> impl Strategy<Value = String> {
        let spacing = prop::sample::select(vec![(":", ","), (": ", ", "), (" : ", " , ")]);
        spacing.prop_flat_map(|(colon, comma)| {
            let nullable = || prop_oneof![text(), Just("null".to_owned())];
            let role = one_of(&["null", "\"assistant\""]);
            let calls = one_of(&["null", "[]", "[{\"index\":0}]"]);
            let delta = (
                maybe("role", role),
                maybe("content", nullable()),
                maybe("reasoning", nullable()),
                maybe("tool_calls", calls),
            )
                .prop_map(|(a, b, c, d)| [a, b, c, d].concat())
                .prop_shuffle()
                .prop_map(move |parts| object(parts, colon, comma));
            let body =
                prop_oneof![nullable().prop_map(|text| ("text", text)), delta.prop_map(|delta| ("delta", delta)),];
            let logprobs = one_of(&["null", "{\"content\":[{\"token\":\"usage\"}]}"]);
            let choice =
                (body, maybe("finish_reason", finish()), maybe("logprobs", logprobs), maybe("stop_reason", nullable()))
                    .prop_map(|(body, a, b, c)| [vec![body, ("index", "0".to_owned())], a, b, c].concat())
                    .prop_shuffle()
                    .prop_map(move |parts| object(parts, colon, comma));
            let choices = prop::collection::vec(choice, 0..3).prop_map(move |list| format!("[{}]", list.join(comma)));
            let usage = prop_oneof![
                3 => Just("null".to_owned()),
                1 => Just(r#"{"prompt_tokens":1,"completion_tokens":2}"#.to_owned()),
            ];
            let error = one_of(&["null", "\"dead\""]);
            let timings = Just(r#"{"prompt_n":1,"predicted_n":2}"#.to_owned());
            let rare = prop_oneof![8 => Just(Vec::new()), 1 => maybe("error", error), 1 => maybe("timings", timings)];
            (text(), choices, maybe("usage", usage), rare)
                .prop_map(|(id, choices, a, b)| [vec![("id", id), ("choices", choices)], a, b].concat())
                .prop_shuffle()
                .prop_map(move |parts| object(parts, colon, comma))
        })
    }

    proptest! {
        #[test]
        fn a_recognised_token_agrees_with_the_parser(chunk in chunk()) {
            if is_token(chunk.as_bytes()) {
                let parsed = ReplyChunk::parse(chunk.as_bytes()).unwrap();
                prop_assert_eq!((parsed.finish, parsed.usage), (ChoiceFinish::NotFinished, None), "{}", chunk);
                prop_assert!(Dialect::ALL.iter().all(|dialect| parsed.has_token(*dialect)), "{}", chunk);
            }
        }

        #[test]
        fn an_ordinary_chunk_is_recognised_whatever_its_text(text in text(), name in text()) {
            for body in [format!("\"text\":{text}"), format!("\"delta\":{{\"content\":{text}}}")] {
                let chunk = format!(r#"{{"model":{name},"choices":[{{{body},"finish_reason":null}}],"usage":null}}"#);
                // A text with the quoted name of a key is left to the parser, and so is an empty text in a chat.
                let names = ["usage", "error", "choices", "finish_reason"].map(|name| format!("\"{name}\""));
                let named = names.iter().any(|key| text.contains(key) || name.contains(key));
                let plain = !named && text != "\"\"";
                prop_assert!(!plain || is_token(chunk.as_bytes()), "{}", chunk);
            }
        }
    }
}
