//! Reads prompts from a file with one JSON object in each line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::Deserialize;

use super::recorded::RecordedPrompts;
use super::tokenizer::Tokenizer;
use super::{
    ChatMessage, LeftOut, MessagePart, Prompt, Role, UserSession, WorkloadError, WorkloadSurroundings, json_problem,
};

/// One line. It has exactly one of `prompt` (text, or token ids), `messages` (as in `/v1/chat/completions`, text only)
/// and `conversations`. Conversations are as in ShareGPT: the first message is the prompt, and the second determines
/// the length of the reply.
#[derive(Deserialize)]
struct Line {
    prompt: Option<LinePrompt>,
    messages: Option<Vec<RoleMessage>>,
    conversations: Option<Vec<ConversationMessage>>,
    output_len: Option<u32>,
    max_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of token ids")]
enum LinePrompt {
    Text(String),
    Tokens(Vec<u32>),
}

#[derive(Deserialize)]
struct RoleMessage {
    role: Speaker,
    content: Content,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Speaker {
    System,
    User,
    Assistant,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of parts with `text`")]
enum Content {
    Text(String),
    Parts(Vec<TextPart>),
}

#[derive(Deserialize)]
struct TextPart {
    text: String,
}

#[derive(Deserialize)]
struct ConversationMessage {
    value: String,
}

/// Reads all prompts, in the file's order. `output_len` applies to lines without one. Without a tokenizer, a prompt's
/// number of tokens is estimated as a fourth of its bytes. The estimate decides whether a request is left out, and it
/// is part of the longest request, which the rules use. The sent prompt does not depend on it.
pub(super) fn read(
    file: &Path,
    output_len: Option<u32>,
    surroundings: &WorkloadSurroundings,
) -> Result<RecordedPrompts, WorkloadError> {
    let opened =
        File::open(file).map_err(|error| WorkloadError::Read { file: file.to_owned(), problem: error.to_string() })?;
    let tokenizer = surroundings.tokenizer.as_deref().map(Tokenizer::read).transpose()?;
    let limit = surroundings.max_model_len.unwrap_or(u64::MAX);
    let (mut sessions, mut longest, mut too_long) = (Vec::new(), 0, 0);
    for (line, text) in (1..).zip(BufReader::new(opened).lines()) {
        let error = |problem: String| WorkloadError::Row { file: file.to_owned(), line, problem };
        let text = text.map_err(|problem| error(problem.to_string()))?;
        if text.trim().is_empty() {
            continue;
        }
        let parsed: Line = serde_json::from_str(&text).map_err(|problem| error(json_problem(&problem)))?;
        let stated = match (parsed.output_len, parsed.max_tokens) {
            (Some(0), _) => return Err(error("output_len: 0 is not at least 1".to_owned())),
            (None, Some(0)) => return Err(error("max_tokens: 0 is not at least 1".to_owned())),
            (output_len, max_tokens) => output_len.or(max_tokens),
        };
        let reply =
            parsed.conversations.as_ref().and_then(|messages| messages.get(1)).map(|message| message.value.clone());
        let prompt = prompt(parsed, surroundings.chat).map_err(|problem| error(problem.to_owned()))?;
        if matches!(prompt, Prompt::Tokens(_)) && !surroundings.takes_tokens {
            return Err(error(
                "prompt: contains token ids, but the server takes only texts here; write the prompt as a text"
                    .to_owned(),
            ));
        }
        let output = match (stated.or(output_len), reply, &tokenizer) {
            (Some(output), ..) => output,
            (None, Some(reply), Some(tokenizer)) => {
                u32::try_from(tokenizer.count(&reply, true)).unwrap_or(u32::MAX).max(1)
            }
            (None, Some(_), None) => return Err(WorkloadError::NoTokenizer),
            (None, None, _) => {
                return Err(error(
                    "output_len: is missing here and in the workload; add it to the line or to the workload".to_owned(),
                ));
            }
        };
        let total = count(&prompt, tokenizer.as_ref(), !surroundings.chat) + u64::from(output);
        if total > limit {
            too_long += 1;
            continue;
        }
        longest = longest.max(total);
        sessions.push(UserSession::single(prompt, output));
    }
    let reason = format!("longer than the limit of the model (max_model_len {limit})");
    let left_out = if too_long == 0 { Vec::new() } else { vec![LeftOut { reason, rows: too_long }] };
    if sessions.is_empty() {
        return Err(WorkloadError::Empty { file: file.to_owned(), left_out });
    }
    Ok(RecordedPrompts::new(sessions, longest, left_out))
}

fn prompt(line: Line, chat: bool) -> Result<Prompt, &'static str> {
    match (line.prompt, line.messages, line.conversations) {
        (Some(LinePrompt::Text(text)), None, None) => Ok(Prompt::Text(text)),
        (Some(LinePrompt::Tokens(tokens)), None, None) if tokens.is_empty() => Err("prompt: holds no token"),
        (Some(LinePrompt::Tokens(tokens)), None, None) => Ok(Prompt::Tokens(tokens)),
        (None, Some(_), None) if !chat => Err("messages: cannot be sent to /v1/completions; use the chat interface"),
        (None, Some(messages), None) if messages.is_empty() => Err("messages: holds no message"),
        (None, Some(messages), None) => Ok(Prompt::Messages(messages.into_iter().map(message).collect())),
        (None, None, Some(messages)) => match messages.into_iter().next() {
            Some(message) => Ok(Prompt::Text(message.value)),
            None => Err("conversations: holds no message"),
        },
        _ => Err("needs exactly one of prompt, messages and conversations"),
    }
}

fn message(line: RoleMessage) -> ChatMessage {
    let role = match line.role {
        Speaker::System => Role::System,
        Speaker::User => Role::User,
        Speaker::Assistant => Role::Assistant,
    };
    let content = match line.content {
        Content::Text(text) => vec![MessagePart::Text(text)],
        Content::Parts(parts) => parts.into_iter().map(|part| MessagePart::Text(part.text)).collect(),
    };
    ChatMessage { role, content }
}

/// Returns the number of tokens of a prompt. `adds_special` states whether the server adds the tokenizer's special
/// tokens, as it does to the prompt of a completion.
fn count(prompt: &Prompt, tokenizer: Option<&Tokenizer>, adds_special: bool) -> u64 {
    let text = |text: &str| match tokenizer {
        Some(tokenizer) => tokenizer.count(text, adds_special),
        None => text.len() as u64 / 4,
    };
    match prompt {
        Prompt::Tokens(tokens) => tokens.len() as u64,
        Prompt::Text(prompt) => text(prompt),
        Prompt::Messages(messages) => {
            let parts = messages.iter().flat_map(|message| &message.content);
            parts.map(|part| if let MessagePart::Text(part) = part { text(part) } else { 0 }).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;
    use crate::workload::tests::{temporary, texts, tokenizer};

    fn read_text(text: &str, output_len: Option<u32>, chat: bool) -> Result<RecordedPrompts, WorkloadError> {
        let surroundings = WorkloadSurroundings {
            tokenizer: Some(tokenizer()),
            takes_tokens: !chat,
            chat,
            ..WorkloadSurroundings::default()
        };
        read(temporary(text).path(), output_len, &surroundings)
    }

    #[test]
    fn prompts_are_sent_in_the_order_of_the_file_and_start_over() {
        let text = "{\"prompt\": \"one\", \"output_len\": 3}\n\n{\"prompt\": \"two\", \"max_tokens\": 4}\n\
                    {\"prompt\": [300, 301]}\n\
                    {\"conversations\": [{\"value\": \"three\"}, {\"value\": \"the reply\"}], \"output_len\": 9}\n";
        let recorded = read_text(text, Some(7), false).unwrap();
        let output = |index| recorded.session(index).turns[0].request.output_len;
        assert_eq!([0, 1, 2, 3, 4].map(output), [3, 4, 7, 9, 3]);
        assert_eq!([texts(&recorded, 0), texts(&recorded, 1), texts(&recorded, 3)], ["one", "two", "three"]);
        assert_eq!(recorded.session(2).turns[0].request.prompt, Prompt::Tokens(vec![300, 301]));
    }

    #[test]
    fn messages_keep_their_roles() {
        let text = "{\"messages\": [{\"role\": \"system\", \"content\": \"be kind\"}, \
                    {\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hello\"}]}]}";
        let recorded = read_text(text, Some(7), true).unwrap();
        let message = |role, text: &str| ChatMessage { role, content: vec![MessagePart::Text(text.to_owned())] };
        let expected = vec![message(Role::System, "be kind"), message(Role::User, "hello")];
        assert_eq!(recorded.session(0).turns[0].request.prompt, Prompt::Messages(expected));
        let error = read_text(text, Some(7), false).unwrap_err().to_string();
        assert!(error.ends_with(":1: messages: cannot be sent to /v1/completions; use the chat interface"), "{error}");
    }

    #[test]
    fn a_line_that_cannot_be_used_is_an_error() {
        for (text, problem) in [
            ("{\"prompt\": \"a\"}", ":1: output_len: is missing"),
            ("{\"prompt\": \"a\", \"max_tokens\": 1}\n{\"prompt\": ", ":2: EOF"),
            ("{\"prompt\": \"a\", \"max_tokens\": 0}", ":1: max_tokens: 0 is not at least 1"),
            ("{\"prompt\": \"a\", \"messages\": []}", ":1: needs exactly one of prompt, messages and conversations"),
            ("{\"prompt\": \"a\", \"output_len\": 0}", ":1: output_len: 0 is not at least 1"),
            ("{\"prompt\": 5}", ":1: a text or a list of token ids"),
            ("{\"prompt\": []}", ":1: prompt: holds no token"),
            ("{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}", ":1: unknown variant `tool`"),
            ("\n", "contains no usable request"),
        ] {
            let error = read_text(text, None, false).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
