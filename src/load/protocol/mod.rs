//! Bodies of requests and replies: a workload's request as JSON, and the reader of its reply.

mod chunk;
mod dialect;
mod fast_token;
mod reply;
mod sse;
mod wire;

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value as Json, json};

use super::{LoadError, LoadTarget, RequestApi, RequestError};
use crate::workload::{ChatMessage, MessagePart, Prompt, Request, Role};

pub(super) use chunk::message_of;
pub use dialect::Dialect;
pub(super) use reply::ReplyState;

use reply::{ReplyLength, ReplyRules};

/// Fields that the workload and the target decide. Other values would change the requested replies.
const RESERVED_FIELDS: [(&str, &str); 5] = [
    ("prompt", "the prompt comes from the workload"),
    ("messages", "the prompt comes from the workload"),
    ("max_tokens", "the output length comes from the workload"),
    ("max_completion_tokens", "the output length comes from the workload"),
    ("stream", "streaming has an option of its own"),
];

pub(super) const COMPLETIONS_PATH: &str = "/v1/completions";
pub(super) const CHAT_PATH: &str = "/v1/chat/completions";

const TOKEN_PROMPTS: &str = "prompts of token ids";
pub(super) const MESSAGE_PROMPTS: &str = "prompts of messages";

/// Format of the requests and replies of one server. Created once per run.
#[derive(Clone, Debug)]
pub(super) struct ServerProtocol {
    api: RequestApi,
    dialect: Dialect,
    stream: bool,
    length: ReplyLength,
    /// The body's fields that all requests share, as JSON without the closing brace.
    head: Vec<u8>,
}

impl ServerProtocol {
    /// # Errors
    /// If `extra_body` replaces a field that the workload decides.
    pub(super) fn new(target: &LoadTarget, allow_eos: bool) -> Result<Self, LoadError> {
        let &LoadTarget { api, dialect, stream, .. } = target;
        for (field, reason) in RESERVED_FIELDS {
            if target.extra_body.contains_key(field) {
                return Err(LoadError::ExtraBody { field, reason });
            }
        }
        // All fields whose defaults differ between servers are stated.
        let mut fields = Map::new();
        fields.insert("model".to_owned(), json!(target.model));
        fields.insert("temperature".to_owned(), json!(0));
        fields.insert("stream".to_owned(), json!(stream));
        if stream {
            fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        let exact = dialect.ignores_eos() && !allow_eos;
        if dialect.ignores_eos() {
            fields.insert("ignore_eos".to_owned(), json!(exact));
        }
        fields.extend(target.extra_body.clone());
        let length = if exact && fields.get("ignore_eos") == Some(&json!(true)) {
            ReplyLength::Exact
        } else {
            ReplyLength::AtMost
        };
        let mut head = Json::Object(fields).to_string().into_bytes();
        head.pop();
        Ok(Self { api, dialect, stream, length, head })
    }

    /// Returns the path of the requests.
    pub(super) fn path(&self) -> &'static str {
        match self.api {
            RequestApi::Completions => COMPLETIONS_PATH,
            RequestApi::Chat => CHAT_PATH,
        }
    }

    /// Returns whether replies are streamed.
    pub(super) fn streams(&self) -> bool {
        self.stream
    }

    /// Returns the body of one request.
    ///
    /// # Errors
    /// If this server does not accept such a prompt at this path.
    pub(super) fn body(&self, request: &Request) -> Result<Vec<u8>, LoadError> {
        let mut body = Vec::with_capacity(self.head.len() + 64 + size(&request.prompt));
        body.extend_from_slice(&self.head);
        let length = self.dialect.length_field(self.api);
        body.extend_from_slice(format!(",\"{length}\":{}", request.output_len).as_bytes());
        let written = match (self.api, &request.prompt) {
            (api, Prompt::Tokens(tokens)) if self.dialect.takes_tokens(api) => {
                body.extend_from_slice(b",\"prompt\":");
                serde_json::to_writer(&mut body, tokens).map_err(std::io::Error::from)
            }
            (RequestApi::Completions, Prompt::Text(text)) => {
                body.extend_from_slice(b",\"prompt\":");
                string(&mut body, text)
            }
            (RequestApi::Chat, Prompt::Text(text)) => {
                body.extend_from_slice(b",\"messages\":[{\"role\":\"user\",\"content\":");
                string(&mut body, text).map(|()| body.extend_from_slice(b"}]"))
            }
            (RequestApi::Chat, Prompt::Messages(messages)) => {
                body.extend_from_slice(b",\"messages\":[");
                let written = messages.iter().enumerate().try_for_each(|(index, one)| {
                    if index > 0 {
                        body.push(b',');
                    }
                    message(&mut body, one)
                });
                body.push(b']');
                written
            }
            (_, Prompt::Tokens(_)) => return Err(self.refuse(TOKEN_PROMPTS)),
            (RequestApi::Completions, Prompt::Messages(_)) => return Err(self.refuse(MESSAGE_PROMPTS)),
        };
        written.map_err(LoadError::Body)?;
        body.push(b'}');
        Ok(body)
    }

    fn refuse(&self, what: &'static str) -> LoadError {
        LoadError::Prompt { dialect: self.dialect.name(), path: self.path(), what }
    }

    /// Returns the reader of the reply to a request for `asked` tokens.
    pub(super) fn reply(&self, asked: u32) -> ReplyState {
        ReplyState::new(
            ReplyRules { api: self.api, dialect: self.dialect, stream: self.stream, length: self.length },
            asked,
        )
    }
}

/// Estimates the bytes of a prompt in a body.
fn size(prompt: &Prompt) -> usize {
    match prompt {
        // Token ids of today's vocabularies have at most six digits and a comma.
        Prompt::Tokens(tokens) => 7 * tokens.len(),
        Prompt::Text(text) => text.len() + text.len() / 16,
        Prompt::Messages(messages) => messages.iter().flat_map(|message| &message.content).map(part_size).sum(),
    }
}

fn part_size(part: &MessagePart) -> usize {
    match part {
        MessagePart::Text(text) => text.len() + text.len() / 16 + 64,
        MessagePart::Image(png) => png.len() / 3 * 4 + 128,
    }
}

fn string(body: &mut Vec<u8>, text: &str) -> std::io::Result<()> {
    serde_json::to_writer(body, text).map_err(std::io::Error::from)
}

fn message(body: &mut Vec<u8>, message: &ChatMessage) -> std::io::Result<()> {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    write!(body, "{{\"role\":\"{role}\",\"content\":")?;
    // A single text is sent as a string: not every server and template accepts a list of one.
    if let [MessagePart::Text(text)] = &message.content[..] {
        string(body, text)?;
    } else {
        body.push(b'[');
        for (index, part) in message.content.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            match part {
                MessagePart::Text(text) => {
                    body.extend_from_slice(b"{\"type\":\"text\",\"text\":");
                    string(body, text)?;
                    body.push(b'}');
                }
                MessagePart::Image(png) => {
                    body.extend_from_slice(b"{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,");
                    body.extend_from_slice(BASE64.encode(png).as_bytes());
                    body.extend_from_slice(b"\"}}");
                }
            }
        }
        body.push(b']');
    }
    body.push(b'}');
    Ok(())
}

/// Reads pieces of bytes as the body of one reply to a request for `asked` tokens. Returns the number of its chunks,
/// the tokens of its prompt and output, and the verdict. Only for fuzzing.
#[doc(hidden)]
#[must_use]
pub fn read(target: &LoadTarget, asked: u32, pieces: &[&[u8]]) -> Option<(usize, [u32; 2], Result<(), RequestError>)> {
    let mut reply = ServerProtocol::new(target, false).ok()?.reply(asked);
    for piece in pieces {
        reply.feed(0, piece);
    }
    let verdict = reply.finish(None);
    Some((reply.chunks.len(), [reply.prompt_tokens(), reply.output_tokens()], verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(change: impl FnOnce(&mut LoadTarget), allow_eos: bool, prompt: Prompt) -> Result<Json, LoadError> {
        let mut target = LoadTarget::new("http://127.0.0.1:1", "a \"model\"");
        change(&mut target);
        let body = ServerProtocol::new(&target, allow_eos)?.body(&Request { prompt, output_len: 8 })?;
        Ok(serde_json::from_slice(&body).unwrap())
    }

    fn tokens() -> Prompt {
        Prompt::Tokens(vec![5, 600, 70_000])
    }

    fn dialect(dialect: Dialect, api: RequestApi) -> impl FnOnce(&mut LoadTarget) {
        move |target| (target.dialect, target.api) = (dialect, api)
    }

    #[test]
    fn the_body_states_everything_that_a_server_could_default() {
        let expected = json!({
            "model": "a \"model\"", "prompt": [5, 600, 70_000], "max_tokens": 8, "ignore_eos": true, "temperature": 0,
            "stream": true, "stream_options": {"include_usage": true},
        });
        assert_eq!(body(|_| {}, false, tokens()).unwrap(), expected);
    }

    #[test]
    fn a_text_is_a_prompt_or_the_only_message_of_a_user() {
        let text = || Prompt::Text("say \"é\"\n".to_owned());
        assert_eq!(body(|_| {}, false, text()).unwrap()["prompt"], "say \"é\"\n");
        let chat = body(dialect(Dialect::OpenAi, RequestApi::Chat), false, text()).unwrap();
        let expected = json!({
            "model": "a \"model\"", "messages": [{"role": "user", "content": "say \"é\"\n"}], "temperature": 0,
            "max_completion_tokens": 8, "stream": true, "stream_options": {"include_usage": true},
        });
        assert_eq!(chat, expected);
    }

    #[test]
    fn images_are_data_urls_beside_their_text() {
        let content = vec![
            MessagePart::Text("what is \"this\"?".to_owned()),
            MessagePart::Image([0x89, b'P', b'N', b'G'].into()),
        ];
        let system = ChatMessage { role: Role::System, content: vec![MessagePart::Text("be brief".to_owned())] };
        let prompt = Prompt::Messages(vec![system, ChatMessage { role: Role::User, content }]);
        let chat = body(dialect(Dialect::Vllm, RequestApi::Chat), false, prompt).unwrap();
        let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}});
        let text = json!({"type": "text", "text": "what is \"this\"?"});
        let expected = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": [text, image]}]);
        assert_eq!(chat["messages"], expected);
    }

    #[test]
    fn only_servers_that_support_it_get_ignore_eos() {
        for (server, told) in [
            (Dialect::Vllm, Some(true)),
            (Dialect::Sglang, Some(true)),
            (Dialect::LlamaCpp, Some(true)),
            (Dialect::Tgi, None),
            (Dialect::OpenAi, None),
        ] {
            let text = || Prompt::Text("a".to_owned());
            let asked = body(dialect(server, RequestApi::Chat), false, text()).unwrap();
            assert_eq!(asked.get("ignore_eos").and_then(Json::as_bool), told, "{server:?}");
            let allowed = body(dialect(server, RequestApi::Chat), true, text()).unwrap();
            assert_eq!(allowed.get("ignore_eos").and_then(Json::as_bool), told.map(|_| false), "{server:?}");
        }
    }

    #[test]
    fn unsupported_prompts_are_refused_by_name() {
        let refused = |server, api, prompt| body(dialect(server, api), false, prompt).unwrap_err().to_string();
        let at = |path: &str| format!("a vllm server accepts no prompts of token ids at {path}");
        assert_eq!(refused(Dialect::Vllm, RequestApi::Chat, tokens()), at("/v1/chat/completions"));
        assert_eq!(
            refused(Dialect::Tgi, RequestApi::Completions, tokens()),
            "a tgi server accepts no prompts of token ids at /v1/completions"
        );
        assert_eq!(
            refused(Dialect::Vllm, RequestApi::Completions, Prompt::Messages(Vec::new())),
            "a vllm server accepts no prompts of messages at /v1/completions"
        );
    }

    #[test]
    fn extra_fields_replace_and_extend_all_fields_but_those_of_the_workload() {
        let with = |field: &str, value: Json| {
            let field = field.to_owned();
            body(move |target| _ = target.extra_body.insert(field, value), false, tokens())
        };
        assert_eq!(with("temperature", json!(0.7)).unwrap()["temperature"], 0.7);
        assert_eq!(with("cache_salt", json!("x")).unwrap()["cache_salt"], "x");
        for (field, reason) in RESERVED_FIELDS {
            let message = format!("extra body field {field:?}: {reason}");
            assert_eq!(with(field, json!(1)).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn without_streaming_there_are_no_stream_options() {
        let asked = body(|target| target.stream = false, false, tokens()).unwrap();
        assert_eq!((&asked["stream"], asked.get("stream_options")), (&json!(false), None));
    }
}
