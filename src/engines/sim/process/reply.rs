//! The response to one request, of a completion or a chat: a stream of server-sent events, or one JSON document.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::json;
use tokio::sync::mpsc;

use super::engine::{EngineCommand, EngineUpdate};
use super::fault::{ENGINE_DEAD, StreamFault};
use super::metrics::RequestFinish;
use super::outlet::TokenOutlet;
use super::request::{ServedApi, ServedUsage};
use crate::twin::RequestId;

/// The text of every token, since there is no real model.
const TOKEN_TEXT: &str = " token";

/// The engine's work for one HTTP request. Dropping it aborts the unfinished part.
#[derive(Debug)]
pub(super) struct ServedReply {
    pub(super) api: ServedApi,
    pub(super) id: String,
    /// Unix time in seconds.
    pub(super) created: i64,
    pub(super) model: String,
    /// The number of prompt tokens of each choice.
    pub(super) prompt_tokens: Vec<u64>,
    /// The engine's id of each choice; `None` after its end.
    pub(super) open_ids: Vec<Option<RequestId>>,
    pub(super) updates: mpsc::UnboundedReceiver<EngineUpdate>,
    pub(super) commands: Sender<EngineCommand>,
    /// Present if the engine's thread writes the tokens of a stream itself.
    pub(super) outlet: Option<Arc<TokenOutlet>>,
    /// The text of a whole response. `None` for a prompt without known answer.
    pub(super) text: Option<String>,
}

impl Drop for ServedReply {
    fn drop(&mut self) {
        for id in self.open_ids.iter().flatten() {
            // The engine may have ended first.
            let _ = self.commands.send(EngineCommand::Abort(*id));
        }
    }
}

impl ServedReply {
    /// Encodes a choice with its text, as a chunk or as a whole.
    fn choice(&self, choice: u32, text: &str, finish: Option<RequestFinish>, whole: bool) -> serde_json::Value {
        let finish = finish.map(RequestFinish::name);
        match self.api {
            ServedApi::Completions => json!({
                "index": choice, "text": text, "logprobs": null, "finish_reason": finish, "stop_reason": null,
            }),
            ServedApi::Chat if whole => json!({
                "index": choice, "message": {"role": "assistant", "content": text, "tool_calls": []},
                "logprobs": null, "finish_reason": finish, "stop_reason": null,
            }),
            ServedApi::Chat => Self::delta(choice, &json!({"content": text}), finish),
        }
    }

    fn delta(choice: u32, delta: &serde_json::Value, finish: Option<&str>) -> serde_json::Value {
        json!({"index": choice, "delta": delta, "logprobs": null, "finish_reason": finish})
    }

    fn document(&self, choices: &[serde_json::Value], usage: &serde_json::Value, whole: bool) -> serde_json::Value {
        let object = match self.api {
            ServedApi::Completions => "text_completion",
            ServedApi::Chat if whole => "chat.completion",
            ServedApi::Chat => "chat.completion.chunk",
        };
        let mut document = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        });
        // A chat's chunks omit unset fields (`exclude_unset` in vLLM's `serving_chat.py`).
        if self.api == ServedApi::Completions || !usage.is_null() {
            document["usage"] = usage.clone();
        }
        document
    }

    /// Encodes token counts without `prompt_tokens_details`, which vLLM sends only with
    /// `--enable-prompt-tokens-details`.
    fn usage(prompt_tokens: &[u64], completion_tokens: &[u64]) -> serde_json::Value {
        let [prompt, completion]: [u64; 2] = [prompt_tokens, completion_tokens].map(|tokens| tokens.iter().sum());
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }

    fn event(&self, choices: &[serde_json::Value], usage: &serde_json::Value) -> Bytes {
        Bytes::from(format!("data: {}\n\n", self.document(choices, usage, false)))
    }

    /// Returns the bytes that the engine's thread writes for one token, two tokens, and so on, framed as chunks of
    /// HTTP/1.1.
    pub(super) fn encode_pieces(&self, choice: u32, most: usize) -> Arc<[Bytes]> {
        let null = serde_json::Value::Null;
        let piece = |sent: usize| {
            let event = self.event(&[self.choice(choice, &TOKEN_TEXT.repeat(sent), None, false)], &null);
            let mut piece = format!("{:x}\r\n", event.len()).into_bytes();
            piece.extend_from_slice(&event);
            piece.extend_from_slice(b"\r\n");
            Bytes::from(piece)
        };
        (1..=most).map(piece).collect()
    }

    fn close(&mut self, choice: u32) {
        if let Some(open) = self.open_ids.get_mut(choice as usize) {
            *open = None;
        }
    }

    /// Waits for the last token, then responds with all of them.
    pub(super) async fn respond_whole(mut self) -> Response {
        let mut lengths = vec![0_u64; self.open_ids.len()];
        let mut finishes = vec![RequestFinish::Abort; self.open_ids.len()];
        while self.open_ids.iter().any(Option::is_some) {
            let Some(update) = self.updates.recv().await else { break };
            let index = update.choice as usize;
            lengths[index] = u64::from(update.tokens);
            if let Some(finish) = update.finish {
                finishes[index] = finish;
                self.close(update.choice);
            }
        }
        let choices: Vec<_> = (0..)
            .zip(lengths.iter().zip(&finishes))
            .map(|(choice, (length, finish))| {
                let tokens = || TOKEN_TEXT.repeat(usize::try_from(*length).unwrap_or(0));
                let text = self.text.clone().unwrap_or_else(tokens);
                self.choice(choice, &text, Some(*finish), true)
            })
            .collect();
        axum::Json(self.document(&choices, &Self::usage(&self.prompt_tokens, &lengths), true)).into_response()
    }

    /// Streams each token when it arrives, with the given fault.
    pub(super) fn stream(self, usage: ServedUsage, fault: Option<StreamFault>) -> Response {
        let count = u32::try_from(self.open_ids.len()).unwrap_or(0);
        let null = serde_json::Value::Null;
        let chunks =
            (0..count).map(|choice| self.event(&[self.choice(choice, TOKEN_TEXT, None, false)], &null)).collect();
        let tokens = vec![0; self.open_ids.len()];
        let opened = self.api == ServedApi::Completions;
        let stage = StreamStage::Head;
        let stream = Events { reply: self, chunks, tokens, usage, stage, sent_roles: opened, held_update: None, fault };
        let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(stream)).into_response()
    }
}

/// The next part of a stream.
#[derive(Clone, Copy, Debug)]
enum StreamStage {
    /// The web server has the head and no part of the body.
    Head,
    Tokens,
    Usage,
    Done,
    End,
}

/// The body of a streamed response, as server-sent events.
#[derive(Debug)]
struct Events {
    reply: ServedReply,
    /// For each choice, the chunk of a token that is not its last. It never changes and is encoded once.
    chunks: Vec<Bytes>,
    /// Tokens of each choice so far.
    tokens: Vec<u64>,
    usage: ServedUsage,
    stage: StreamStage,
    /// Whether the chunks with the role, which open a chat, have been sent.
    sent_roles: bool,
    /// The first update of a chat, held back while the role is sent.
    held_update: Option<EngineUpdate>,
    fault: Option<StreamFault>,
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if matches!(this.stage, StreamStage::Head) {
            this.stage = StreamStage::Tokens;
            this.record_received();
        }
        match this.due_fault() {
            // No event wakes this task any more. It ends with the connection.
            Some(StreamFault::Stall { .. }) => return Poll::Pending,
            Some(StreamFault::EndEarly { .. }) => this.stage = StreamStage::End,
            Some(StreamFault::Error { .. }) => {
                (this.stage, this.fault) = (StreamStage::Done, None);
                return Poll::Ready(Some(Ok(error_event())));
            }
            None => {}
        }
        let bytes = match this.stage {
            StreamStage::Head | StreamStage::Tokens => {
                let next = match this.held_update.take() {
                    Some(update) => Some(update),
                    None => ready!(this.reply.updates.poll_recv(context)),
                };
                match next {
                    Some(update) if this.sent_roles => this.encode_token(update),
                    // As in vLLM, the roles are sent together with the first token.
                    Some(update) => {
                        (this.sent_roles, this.held_update) = (true, Some(update));
                        this.roles()
                    }
                    // The engine has ended.
                    None => {
                        this.stage = StreamStage::Done;
                        error_event()
                    }
                }
            }
            StreamStage::Usage => {
                this.stage = StreamStage::Done;
                let usage = ServedReply::usage(&this.reply.prompt_tokens, &this.tokens);
                this.reply.event(&[], &usage)
            }
            StreamStage::Done => {
                this.stage = StreamStage::End;
                Bytes::from_static(b"data: [DONE]\n\n")
            }
            StreamStage::End => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(bytes)))
    }
}

/// Returns vLLM's event for a failure in a stream that has begun; `[DONE]` follows.
fn error_event() -> Bytes {
    let error = json!({"message": ENGINE_DEAD, "type": "InternalServerError", "param": null, "code": 500});
    Bytes::from(format!("data: {}\n\n", json!({"error": error})))
}

impl Events {
    /// Returns the fault if it takes effect now.
    fn due_fault(&self) -> Option<StreamFault> {
        let fault = self.fault?;
        let sent: u64 = self.tokens.iter().sum();
        let due = match fault {
            StreamFault::Stall { after }
            | StreamFault::Error { after }
            | StreamFault::EndEarly { after: Some(after) } => sent >= after,
            StreamFault::EndEarly { after: None } => matches!(self.stage, StreamStage::Done),
        };
        due.then_some(fault)
    }

    /// Returns the chunks that open a chat, one for each choice.
    fn roles(&self) -> Bytes {
        self.record_received();
        let usage = if self.usage.in_every_chunk {
            ServedReply::usage(&self.reply.prompt_tokens, &[])
        } else {
            serde_json::Value::Null
        };
        let opening = json!({"role": "assistant", "content": ""});
        let chunks = (0..)
            .zip(&self.tokens)
            .map(|(choice, _)| self.reply.event(&[ServedReply::delta(choice, &opening, None)], &usage));
        chunks.collect::<Vec<_>>().concat().into()
    }

    /// Records that the web server receives a piece which the outlet counts.
    fn record_received(&self) {
        if let Some(outlet) = &self.reply.outlet {
            outlet.record_received();
        }
    }

    fn encode_token(&mut self, update: EngineUpdate) -> Bytes {
        self.record_received();
        let index = update.choice as usize;
        let aborted = update.finish == Some(RequestFinish::Abort);
        if let Some(tokens) = self.tokens.get_mut(index) {
            *tokens = u64::from(update.tokens);
        }
        if update.finish.is_none() && !self.usage.in_every_chunk && update.sent == 1 {
            return self.chunks.get(index).cloned().unwrap_or_default();
        }
        if update.finish.is_some() {
            self.reply.close(update.choice);
        }
        if self.reply.open_ids.iter().all(Option::is_none) {
            self.stage = if self.usage.after_last_chunk && !aborted { StreamStage::Usage } else { StreamStage::Done };
        }
        let text = TOKEN_TEXT.repeat(update.sent as usize);
        let choice = self.reply.choice(update.choice, &text, update.finish, false);
        let usage = if self.usage.in_every_chunk {
            ServedReply::usage(&self.reply.prompt_tokens[index..=index], &self.tokens[index..=index])
        } else {
            serde_json::Value::Null
        };
        self.reply.event(&[choice], &usage)
    }
}
