//! The answer to one completion request: a stream of server-sent events, or one JSON document.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::json;
use tokio::sync::mpsc;

use super::ask::Usage;
use super::engine::{Command, Update};
use super::metrics::Finish;
use crate::twin::RequestId;

/// The text of every token: the simulated model has nothing to say.
const TOKEN_TEXT: &str = " token";

/// One HTTP request's share of the engine. Dropping it aborts what is not finished.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) id: String,
    pub(super) created: i64,
    pub(super) model: String,
    /// Of each choice.
    pub(super) prompt_tokens: Vec<u64>,
    /// The engine's id of each choice; `None` once it is finished.
    pub(super) open: Vec<Option<RequestId>>,
    pub(super) updates: mpsc::UnboundedReceiver<Update>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

impl Drop for Reply {
    fn drop(&mut self) {
        for id in self.open.iter().flatten() {
            // The engine may have ended first.
            let _ = self.commands.send(Command::Abort(*id));
        }
    }
}

impl Reply {
    fn choice(choice: u32, text: &str, finish: Option<Finish>) -> serde_json::Value {
        json!({
            "index": choice, "text": text, "logprobs": null, "finish_reason": finish.map(Finish::name),
            "stop_reason": null,
        })
    }

    fn document(&self, choices: &[serde_json::Value], usage: &serde_json::Value) -> serde_json::Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
            "choices": choices, "usage": usage,
        })
    }

    fn usage(prompt_tokens: &[u64], completion_tokens: &[u64]) -> serde_json::Value {
        let [prompt, completion]: [u64; 2] = [prompt_tokens, completion_tokens].map(|tokens| tokens.iter().sum());
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
    }

    fn event(&self, choices: &[serde_json::Value], usage: &serde_json::Value) -> Bytes {
        Bytes::from(format!("data: {}\n\n", self.document(choices, usage)))
    }

    fn close(&mut self, choice: u32) {
        if let Some(open) = self.open.get_mut(choice as usize) {
            *open = None;
        }
    }

    /// Waits for the last token, then answers with all of them.
    pub(super) async fn whole(mut self) -> Response {
        let mut lengths = vec![0_u64; self.open.len()];
        let mut finishes = vec![Finish::Abort; self.open.len()];
        while self.open.iter().any(Option::is_some) {
            let Some(update) = self.updates.recv().await else { break };
            let index = update.choice as usize;
            if update.finish != Some(Finish::Abort) {
                lengths[index] += 1;
            }
            if let Some(finish) = update.finish {
                finishes[index] = finish;
                self.close(update.choice);
            }
        }
        let choices: Vec<_> = (0..)
            .zip(lengths.iter().zip(&finishes))
            .map(|(choice, (length, finish))| {
                let text = TOKEN_TEXT.repeat(usize::try_from(*length).unwrap_or(0));
                Self::choice(choice, &text, Some(*finish))
            })
            .collect();
        axum::Json(self.document(&choices, &Self::usage(&self.prompt_tokens, &lengths))).into_response()
    }

    /// Sends each token as it comes.
    pub(super) fn stream(self, usage: Usage) -> Response {
        let count = u32::try_from(self.open.len()).unwrap_or(0);
        let null = serde_json::Value::Null;
        let chunks = (0..count).map(|choice| self.event(&[Self::choice(choice, TOKEN_TEXT, None)], &null)).collect();
        let tokens = vec![0; self.open.len()];
        let stream = Events { reply: self, chunks, tokens, usage, stage: Stage::Tokens };
        let headers = [(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(stream)).into_response()
    }
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Tokens,
    Usage,
    Done,
    End,
}

#[derive(Debug)]
struct Events {
    reply: Reply,
    /// For each choice the chunk of a token that is not its last: always the same, so it is written once.
    chunks: Vec<Bytes>,
    /// Of each choice, so far.
    tokens: Vec<u64>,
    usage: Usage,
    stage: Stage,
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let bytes = match this.stage {
            Stage::Tokens => match this.reply.updates.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                // The engine is gone.
                Poll::Ready(None) => {
                    this.stage = Stage::End;
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(update)) => this.token(update),
            },
            Stage::Usage => {
                this.stage = Stage::Done;
                let usage = Reply::usage(&this.reply.prompt_tokens, &this.tokens);
                this.reply.event(&[], &usage)
            }
            Stage::Done => {
                this.stage = Stage::End;
                Bytes::from_static(b"data: [DONE]\n\n")
            }
            Stage::End => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl Events {
    fn token(&mut self, update: Update) -> Bytes {
        let index = update.choice as usize;
        let aborted = update.finish == Some(Finish::Abort);
        if let Some(tokens) = self.tokens.get_mut(index).filter(|_| !aborted) {
            *tokens += 1;
        }
        if update.finish.is_none() && !self.usage.every {
            return self.chunks.get(index).cloned().unwrap_or_default();
        }
        if update.finish.is_some() {
            self.reply.close(update.choice);
        }
        if self.reply.open.iter().all(Option::is_none) {
            self.stage = if self.usage.last && !aborted { Stage::Usage } else { Stage::Done };
        }
        let text = if aborted { "" } else { TOKEN_TEXT };
        let choice = Reply::choice(update.choice, text, update.finish);
        let usage = if self.usage.every {
            Reply::usage(&self.reply.prompt_tokens[index..=index], &self.tokens[index..=index])
        } else {
            serde_json::Value::Null
        };
        self.reply.event(&[choice], &usage)
    }
}
