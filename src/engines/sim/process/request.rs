//! Requests to `/v1/completions` and `/v1/chat/completions`, and their errors in the words of the simulated release.

use axum::http::StatusCode;
use serde::Deserialize;

use super::chat::{self, ServedMessage};
use super::metrics::RequestFinish;
use crate::facts::EngineVersion;
use crate::stats::f64_to_u32;

/// vLLM's default for completions.
const DEFAULT_MAX_TOKENS: u64 = 16;
/// Mean length in tokens of an answer without `ignore_eos`.
const NATURAL_LENGTH: f64 = 256.0;

/// The API of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedApi {
    Completions,
    Chat,
}

/// The body of a request, with the fields that the simulated engine heeds.
#[derive(Debug, Deserialize)]
pub(super) struct ServedRequest {
    model: Option<String>,
    /// For completions only.
    prompt: Option<Prompt>,
    /// For chats only.
    messages: Option<Vec<ServedMessage>>,
    max_tokens: Option<u64>,
    /// For chats only; it takes precedence over `max_tokens`.
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    ignore_eos: bool,
    #[serde(default)]
    min_tokens: u64,
    #[serde(default)]
    pub(super) stream: bool,
    stream_options: Option<StreamOptions>,
    /// Requests with a smaller number are served earlier.
    #[serde(default)]
    priority: i32,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// The token counts that a stream carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServedUsage {
    /// Whether a chunk with the counts follows the last chunk with content.
    pub(super) after_last_chunk: bool,
    /// Whether every chunk with content carries the counts as well.
    pub(super) in_every_chunk: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Ids(Vec<i64>),
    Texts(Vec<String>),
    Batch(Vec<Vec<i64>>),
}

/// The facts that requests are checked against.
#[derive(Clone, Debug)]
pub(super) struct ServedLimits {
    pub(super) version: EngineVersion,
    /// The names of the model, at least one. Replies carry the first one.
    pub(super) served_names: Vec<String>,
    /// The model as given on the command line.
    pub(super) root: String,
    pub(super) max_model_len: u64,
    pub(super) vocab_size: u64,
    /// Whether the model accepts images.
    pub(super) multimodal: bool,
    /// Whether a priority is an error, as in the V0 engine without priority scheduling. The V1 engine ignores it then.
    pub(super) refuses_priority: bool,
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ErrorResponse {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) message: String,
}

impl ErrorResponse {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, kind: "BadRequestError", message: message.into() }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, kind: "InternalServerError", message: message.into() }
    }
}

/// The work for one prompt, ready for the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PromptTask {
    /// Token ids.
    pub(super) prompt: Vec<u32>,
    /// The number of tokens to generate, and the reported reason of the end.
    pub(super) output_len: u32,
    pub(super) finish: RequestFinish,
    /// The request's own limit, which may exceed `output_len`.
    pub(super) max_output: u32,
    pub(super) priority: i32,
}

impl ServedRequest {
    pub(super) fn parse(body: &[u8]) -> Result<Self, ErrorResponse> {
        serde_json::from_slice(body).map_err(|error| ErrorResponse::bad(format!("1 validation error: {error}")))
    }

    /// Returns the text of the prompt, or of the last message of a chat. `None` for other forms.
    pub(super) fn text(&self) -> Option<&str> {
        match (&self.prompt, &self.messages) {
            (Some(Prompt::Text(text)), _) => Some(text),
            (None, Some(messages)) => messages.last()?.text(),
            _ => None,
        }
    }

    /// Returns the token counts that the client requests. vLLM has changed the defaults twice.
    pub(super) fn usage(&self, version: EngineVersion) -> ServedUsage {
        let Some(options) = &self.stream_options else { return ServedUsage::default() };
        let last = options.include_usage.unwrap_or(version < EngineVersion::new(0, 20, 0));
        ServedUsage {
            after_last_chunk: last,
            in_every_chunk: last && options.continuous_usage_stats.unwrap_or(version.is_v0()),
        }
    }

    /// Returns one order for each prompt. The length of an answer without `ignore_eos` depends only on `draw`, which
    /// returns uniform numbers in [0, 1), because there is no model that could end it.
    pub(super) fn orders(
        self,
        api: ServedApi,
        limits: &ServedLimits,
        mut draw: impl FnMut() -> f64,
    ) -> Result<Vec<PromptTask>, ErrorResponse> {
        if let Some(model) = self.model.as_deref().filter(|model| limits.served_names.iter().all(|name| name != model))
        {
            return Err(ErrorResponse {
                status: StatusCode::NOT_FOUND,
                kind: "NotFoundError",
                message: format!("The model `{model}` does not exist."),
            });
        }
        if self.stream_options.is_some() && !self.stream {
            return Err(ErrorResponse::bad("Stream options can only be defined when `stream=True`."));
        }
        if limits.refuses_priority && self.priority != 0 {
            // `LLMEngine.add_request` of `vllm/engine/llm_engine.py`.
            let priority = self.priority;
            return Err(ErrorResponse::bad(format!("Got priority {priority} but Priority scheduling is not enabled.")));
        }
        // The default is a fixed number for completions, and for chats the rest of the model length.
        let asked = match api {
            ServedApi::Completions => Some(self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)),
            ServedApi::Chat => self.max_completion_tokens.or(self.max_tokens),
        };
        if asked == Some(0) {
            return Err(ErrorResponse::bad("max_tokens must be at least 1, got 0."));
        }
        if let Some(asked) = asked.filter(|asked| self.min_tokens > *asked) {
            let message =
                format!("min_tokens must be less than or equal to max_tokens={asked}, got {}.", self.min_tokens);
            return Err(ErrorResponse::bad(message));
        }
        let missing = |field| ErrorResponse::bad(format!("1 validation error: missing field `{field}`"));
        let prompts = match api {
            ServedApi::Completions => self.prompt.ok_or_else(|| missing("prompt"))?.tokens(limits.vocab_size)?,
            ServedApi::Chat => vec![chat::prompt(&self.messages.ok_or_else(|| missing("messages"))?, limits)?],
        };
        if prompts.is_empty() {
            return Err(ErrorResponse::bad("Either prompt or prompt_embeds must be provided and non-empty."));
        }
        let orders = prompts.into_iter().map(|prompt| {
            let len = prompt.len() as u64;
            let asked = asked.unwrap_or(limits.max_model_len.saturating_sub(len).max(1));
            let most = allowed_output(limits, len, asked)?;
            let most = u32::try_from(most).unwrap_or(u32::MAX);
            let natural = if self.ignore_eos { u32::MAX } else { natural_length(draw(), self.min_tokens) };
            let finish = if natural < most { RequestFinish::Stop } else { RequestFinish::Length };
            Ok(PromptTask { prompt, output_len: most.min(natural), finish, max_output: most, priority: self.priority })
        });
        orders.collect()
    }
}

/// Returns the number of output tokens within the model length. Releases up to 0.20 reject a larger number. Later ones
/// reduce it, unless it exceeds the model length by itself.
fn allowed_output(limits: &ServedLimits, prompt: u64, asked: u64) -> Result<u64, ErrorResponse> {
    let most = limits.max_model_len;
    let total = prompt.saturating_add(asked);
    let fits = total <= most;
    let cuts = limits.version >= EngineVersion::new(0, 21, 0);
    if prompt == 0 {
        return Err(ErrorResponse::bad("The decoder prompt cannot be empty"));
    }
    if fits || (cuts && asked <= most && prompt < most) {
        return Ok(asked.min(most - prompt));
    }
    Err(ErrorResponse::bad(format!(
        "This model's maximum context length is {most} tokens. However, you requested {total} tokens ({prompt} in the \
         messages, {asked} in the completion). Please reduce the length of the messages or completion."
    )))
}

/// Converts a uniform number to a geometrically distributed length with mean [`NATURAL_LENGTH`], at least `least` and
/// at least 1.
fn natural_length(uniform: f64, least: u64) -> u32 {
    let length = (1.0 - uniform).ln() / (1.0 - 1.0 / NATURAL_LENGTH).ln();
    let length = f64_to_u32(length.ceil());
    length.max(u32::try_from(least).unwrap_or(u32::MAX)).max(1)
}

impl Prompt {
    fn tokens(self, vocabulary: u64) -> Result<Vec<Vec<u32>>, ErrorResponse> {
        match self {
            Self::Text(text) => Ok(vec![tokenize(&text, vocabulary)]),
            Self::Texts(texts) => Ok(texts.iter().map(|text| tokenize(text, vocabulary)).collect()),
            Self::Ids(ids) => Ok(vec![check(&ids, vocabulary)?]),
            Self::Batch(batch) => batch.iter().map(|ids| check(ids, vocabulary)).collect(),
        }
    }
}

/// Splits a text into tokens of four bytes, because there is no tokenizer. Equal bytes become equal tokens.
pub(super) fn tokenize(text: &str, vocabulary: u64) -> Vec<u32> {
    let token = |bytes: &[u8]| {
        let number = bytes.iter().fold(0_u64, |number, byte| number * 256 + u64::from(*byte));
        u32::try_from(number % vocabulary.max(1)).unwrap_or(0)
    };
    text.as_bytes().chunks(4).map(token).collect()
}

fn check(ids: &[i64], vocabulary: u64) -> Result<Vec<u32>, ErrorResponse> {
    ids.iter()
        .map(|id| {
            let known = u32::try_from(*id).ok().filter(|id| u64::from(*id) < vocabulary);
            known.ok_or_else(|| ErrorResponse::bad(format!("Token id {id} is out of vocabulary")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn orders(version: &str, ask: &serde_json::Value) -> Result<Vec<PromptTask>, ErrorResponse> {
        let limits = ServedLimits {
            version: version.parse().unwrap(),
            served_names: vec!["m".to_owned()],
            root: "m".to_owned(),
            max_model_len: 1024,
            vocab_size: 1000,
            multimodal: false,
            refuses_priority: version == "0.6.3",
        };
        let api = if ask.get("messages").is_some() { ServedApi::Chat } else { ServedApi::Completions };
        ServedRequest::parse(ask.to_string().as_bytes())?.orders(api, &limits, || 0.5)
    }

    #[test]
    fn every_form_of_prompt_is_taken() {
        for (prompt, lengths) in [
            (json!([5, 6, 7]), vec![3]),
            (json!([[5, 6], [7]]), vec![2, 1]),
            (json!("twelve bytes"), vec![3]),
            (json!(["one", "two words"]), vec![1, 3]),
        ] {
            let orders = orders("0.32.0", &json!({"model": "m", "prompt": prompt, "ignore_eos": true})).unwrap();
            assert_eq!(orders.iter().map(|order| order.prompt.len()).collect::<Vec<_>>(), lengths);
            assert!(orders.iter().all(|order| order.output_len == 16 && order.finish == RequestFinish::Length));
        }
    }

    #[test]
    fn a_chat_may_have_all_that_the_model_length_leaves() {
        let order = |more: serde_json::Value| {
            let mut ask = json!({"messages": [{"role": "user", "content": "twelve bytes"}], "ignore_eos": true});
            ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            orders("0.32.0", &ask).unwrap().remove(0)
        };
        assert_eq!((order(json!({})).prompt.len(), order(json!({})).output_len), (11, 1024 - 11));
        assert_eq!(order(json!({"max_tokens": 7})).output_len, 7);
        assert_eq!(order(json!({"max_tokens": 7, "max_completion_tokens": 9})).output_len, 9);
    }

    #[test]
    fn as_many_tokens_as_can_be_named_are_too_many() {
        for version in ["0.6.3", "0.32.0"] {
            let complaint = orders(version, &json!({"prompt": [1, 2], "max_tokens": u64::MAX})).unwrap_err();
            assert!(complaint.message.contains("maximum context length is 1024 tokens"), "{complaint:?}");
        }
    }

    #[test]
    fn an_answer_may_end_early_unless_the_request_forbids_it() {
        let order = |ignore_eos| {
            let ask = json!({"prompt": [1], "max_tokens": 900, "ignore_eos": ignore_eos});
            orders("0.32.0", &ask).unwrap().remove(0)
        };
        assert_eq!((order(true).output_len, order(true).finish), (900, RequestFinish::Length));
        // The median of a geometric distribution with mean 256.
        assert_eq!((order(false).output_len, order(false).finish), (178, RequestFinish::Stop));
    }

    #[test]
    fn too_long_is_refused_by_old_releases_and_cut_by_new_ones() {
        let ask = json!({"prompt": vec![1; 1020], "max_tokens": 5, "ignore_eos": true});
        let message = orders("0.20.2", &ask).unwrap_err().message;
        assert!(message.starts_with("This model's maximum context length is 1024 tokens. However, you requested 1025"));
        assert_eq!(orders("0.32.0", &ask).unwrap()[0].output_len, 4);
        assert!(orders("0.32.0", &json!({"prompt": [1], "max_tokens": 1025})).is_err());
        assert!(orders("0.32.0", &json!({"prompt": vec![1; 1024]})).is_err());
    }

    #[test]
    fn a_priority_is_an_error_only_if_v0_lacks_the_policy() {
        let ask = json!({"prompt": [1], "priority": -3, "ignore_eos": true});
        assert_eq!(orders("0.32.0", &ask).unwrap()[0].priority, -3);
        let complaint = orders("0.6.3", &ask).unwrap_err();
        assert_eq!(
            (complaint.status.as_u16(), complaint.message.as_str()),
            (400, "Got priority -3 but Priority scheduling is not enabled.")
        );
    }

    #[test]
    fn a_wrong_request_is_named() {
        for (ask, status, text) in [
            (json!({"model": "other", "prompt": [1]}), 404, "The model `other` does not exist."),
            (json!({"prompt": [1000]}), 400, "Token id 1000 is out of vocabulary"),
            (json!({"prompt": [-1]}), 400, "Token id -1 is out of vocabulary"),
            (json!({"prompt": []}), 400, "prompt cannot be empty"),
            (json!({"prompt": [1], "max_tokens": 0}), 400, "at least 1"),
            (json!({"prompt": [1], "min_tokens": 17}), 400, "max_tokens=16"),
            (json!({"prompt": [1], "stream_options": {}}), 400, "Stream options can only"),
            (json!({}), 400, "missing field `prompt`"),
        ] {
            let complaint = orders("0.32.0", &ask).unwrap_err();
            assert_eq!(complaint.status.as_u16(), status);
            assert!(complaint.message.contains(text), "{complaint:?}");
        }
    }
}
