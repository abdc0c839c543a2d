//! The routes of the simulated server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{StatusCode, Uri, Version};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};

use super::client_link::DirectStream;
use super::engine::{EngineCommand, QueuedPrompt};
use super::fault::{ActiveFaults, RequestFaults};
use super::greedy::GreedyModel;
use super::outlet::{OutletHandle, TokenOutlet};
use super::reply::ServedReply;
use super::request::{ErrorResponse, ServedApi, ServedLimits, ServedRequest, ServedUsage};
use crate::facts::EngineVersion;
use crate::twin::RequestId;

/// The largest body of a request in bytes. It fits prompts of a million token ids, and chats with dozens of large
/// images.
const LARGEST_BODY: usize = 256 << 20;

/// The state that all routes share.
#[derive(Debug)]
pub(super) struct FrontEnd {
    pub(super) limits: ServedLimits,
    pub(super) seed: u64,
    pub(super) greedy: GreedyModel,
    pub(super) commands: Sender<EngineCommand>,
    /// The largest number of tokens that the engine's thread writes at once for one request.
    pub(super) max_tokens_per_write: usize,
    pub(super) next_id: AtomicU64,
    pub(super) faults: Arc<ActiveFaults>,
    /// As `SimOptions::api_keys` returns them.
    pub(super) api_keys: Vec<String>,
    /// As `SimOptions::is_dev_mode` returns it.
    pub(super) is_dev_mode: bool,
}

/// Rejects requests under `/v1` without a valid key, like the `AuthenticationMiddleware` of vLLM's `api_server.py`.
async fn authenticate(State(front_end): State<Arc<FrontEnd>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let is_open = front_end.api_keys.is_empty() || !request.uri().path().starts_with("/v1");
    if is_open || given.is_some_and(|given| front_end.api_keys.iter().any(|key| key == given)) {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, Json(json!({"error": "Unauthorized"}))).into_response()
}

pub(super) fn router(front_end: FrontEnd) -> Router {
    let front_end = Arc::new(front_end);
    let dev_mode = if front_end.is_dev_mode {
        Router::new()
            .route("/reset_prefix_cache", post(reset_prefix_cache))
            .route("/pause", post(pause))
            .route("/resume", post(resume))
    } else {
        Router::new()
    };
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/version", get(version))
        .route("/v1/models", get(models))
        .route("/metrics", get(metrics))
        .merge(dev_mode)
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(from_fn_with_state(Arc::clone(&front_end), authenticate))
        .with_state(front_end)
}

async fn health(State(front_end): State<Arc<FrontEnd>>) -> StatusCode {
    front_end.faults.health()
}

async fn version(State(front_end): State<Arc<FrontEnd>>) -> Response {
    Json(json!({"version": front_end.limits.version.to_string()})).into_response()
}

async fn models(State(front_end): State<Arc<FrontEnd>>) -> Response {
    let limits = &front_end.limits;
    let created = Timestamp::now().as_second();
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": created, "owned_by": "vllm",
            "root": limits.root, "parent": null, "max_model_len": limits.max_model_len, "permission": [],
        })
    };
    Json(json!({"object": "list", "data": limits.served_names.iter().map(model).collect::<Vec<_>>()})).into_response()
}

async fn metrics(State(front_end): State<Arc<FrontEnd>>) -> Response {
    let (reply, page) = oneshot::channel();
    let sent = front_end.commands.send(EngineCommand::Metrics(reply)).is_ok();
    match page.await {
        Ok(page) if sent => ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response(),
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn reset_prefix_cache(State(front_end): State<Arc<FrontEnd>>) -> StatusCode {
    match front_end.commands.send(EngineCommand::ResetPrefixCache) {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Pauses the engine. Of vLLM's modes only `keep` is simulated, which leaves requests unchanged and freezes the
/// schedule.
async fn pause(State(front_end): State<Arc<FrontEnd>>, uri: Uri) -> Response {
    let mode = uri.query().unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("mode="));
    if mode != Some("keep") {
        let error = format!("mode is {}, but only keep is simulated", mode.unwrap_or("abort"));
        return (StatusCode::BAD_REQUEST, Json(json!({"error": error}))).into_response();
    }
    front_end.pause(true, "paused").await
}

async fn resume(State(front_end): State<Arc<FrontEnd>>) -> Response {
    front_end.pause(false, "resumed").await
}

async fn completions(
    State(front_end): State<Arc<FrontEnd>>,
    ConnectInfo(line): ConnectInfo<OutletHandle>,
    version: Version,
    body: Bytes,
) -> Response {
    front_end.answer(ServedApi::Completions, (version, line), &body).await
}

async fn chat(
    State(front_end): State<Arc<FrontEnd>>,
    ConnectInfo(line): ConnectInfo<OutletHandle>,
    version: Version,
    body: Bytes,
) -> Response {
    front_end.answer(ServedApi::Chat, (version, line), &body).await
}

impl FrontEnd {
    async fn pause(&self, paused: bool, status: &str) -> Response {
        let (done, holds) = oneshot::channel();
        let sent = self.commands.send(EngineCommand::Pause(paused, done)).is_ok();
        if sent && holds.await.is_ok() {
            return Json(json!({"status": status})).into_response();
        }
        StatusCode::SERVICE_UNAVAILABLE.into_response()
    }

    async fn answer(&self, api: ServedApi, (version, line): (Version, OutletHandle), body: &[u8]) -> Response {
        let RequestFaults { stream: fault, step } = match self.faults.apply_request().await {
            Ok(faults) => faults,
            Err(complaint) => return self.error_response(&complaint),
        };
        if let Some(step) = step {
            // If the engine has ended, the request fails below.
            let _ = self.commands.send(EngineCommand::Stall(step));
        }
        // Only a chunked body (HTTP/1.1) can have two writers. The web server alone writes a stream with a fault.
        let outlet = (version == Version::HTTP_11 && fault.is_none()).then_some(line.0);
        match self.complete(api, outlet, body) {
            Ok((reply, Some(usage))) => reply.stream(usage, fault),
            Ok((reply, None)) => reply.respond_whole().await,
            Err(complaint) => self.error_response(&complaint),
        }
    }

    /// Passes the request to the engine. The second value is `None` without streaming.
    fn complete(
        &self,
        api: ServedApi,
        outlet: Option<Arc<TokenOutlet>>,
        body: &[u8],
    ) -> Result<(ServedReply, Option<ServedUsage>), ErrorResponse> {
        let arrived = Instant::now();
        let ask = ServedRequest::parse(body)?;
        let stream = ask.stream.then(|| ask.usage(self.limits.version));
        let first = self.next_id.load(Ordering::Relaxed);
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(first);
        let text = ask.text().and_then(|text| self.greedy.reply(text, first));
        let orders = ask.orders(api, &self.limits, || rng.random())?;
        let outlet = outlet.filter(|_| stream.is_some_and(|usage| !usage.in_every_chunk));
        if let Some(outlet) = &outlet {
            // A chat begins with a piece without tokens.
            outlet.begin(if api == ServedApi::Chat { 2 } else { 1 });
        }
        let (sender, updates) = mpsc::unbounded_channel();
        let mut reply = ServedReply {
            api,
            id: String::new(),
            created: Timestamp::now().as_second(),
            model: self.limits.served_names.first().cloned().unwrap_or_default(),
            prompt_tokens: orders.iter().map(|order| order.prompt.len() as u64).collect(),
            open_ids: Vec::with_capacity(orders.len()),
            updates,
            commands: self.commands.clone(),
            outlet,
            text,
        };
        for (choice, order) in (0..).zip(orders) {
            let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
            if choice == 0 {
                let prefix = if api == ServedApi::Chat { "chatcmpl" } else { "cmpl" };
                reply.id = format!("{prefix}-{:032x}", id.0);
            }
            reply.open_ids.push(Some(id));
            let direct = reply.outlet.as_ref().map(|outlet| DirectStream {
                outlet: Arc::clone(outlet),
                pieces: reply.encode_pieces(choice, self.max_tokens_per_write),
            });
            let job = QueuedPrompt {
                id,
                choice,
                arrived,
                prompt: order.prompt,
                output_len: order.output_len,
                finish: order.finish,
                max_output: order.max_output,
                priority: order.priority,
                updates: sender.clone(),
                direct,
            };
            self.commands.send(EngineCommand::Add(Box::new(job))).map_err(|_| ErrorResponse {
                status: StatusCode::SERVICE_UNAVAILABLE,
                kind: "ServiceUnavailableError",
                message: "EngineCore encountered an issue. See stack trace (above) for the root cause.".to_owned(),
            })?;
        }
        Ok((reply, stream))
    }

    fn error_response(&self, complaint: &ErrorResponse) -> Response {
        let ErrorResponse { status, kind, message } = complaint;
        let body = if self.limits.version >= EngineVersion::new(0, 10, 0) {
            json!({"error": {"message": message, "type": kind, "param": null, "code": status.as_u16()}})
        } else {
            json!({"object": "error", "message": message, "type": kind, "param": null, "code": status.as_u16()})
        };
        (*status, Json(body)).into_response()
    }
}
