//! One request over HTTP/1.1: sending, reading and, once, sending again when a kept connection had gone stale.

use std::error::Error as _;
use std::io;
use std::time::{Duration, Instant};

use reqwest::header::{CONNECTION, CONTENT_TYPE};
use reqwest::{Response, StatusCode, Url};

use super::body::Job;
use super::chunk::{excerpt, message_of};
use super::protocol::Protocol;
use super::reply::Reply;
use super::{Error, LoadError, Plan, Record, Target};

/// vLLM closes a connection that is idle for five seconds; one that is reused just then would be a failure of ours.
const IDLE: Duration = Duration::from_secs(3);

/// How long the end of the body may take after `[DONE]` before the connection is given up.
const DRAIN: Duration = Duration::from_millis(250);

/// How much of an error's body is read.
const ERROR_BODY: usize = 64 << 10;

/// What every request shares.
#[derive(Clone, Debug)]
pub(super) struct Client {
    url: Url,
    limit: Duration,
    protocol: Protocol,
}

/// A place for one request at a time, with its own connection. It shares no pool with other slots (a client costs about
/// a microsecond and 2 KiB), so that it is known whether a request went out on a kept connection, and a retry cannot
/// meet another stale one.
#[derive(Debug)]
pub(super) struct Slot {
    http: reqwest::Client,
    /// The last response was read to its end and left a connection behind.
    kept: bool,
}

impl Slot {
    pub(super) fn new() -> Result<Self, LoadError> {
        let http = reqwest::Client::builder()
            .http1_only()
            .tcp_nodelay(true)
            // A proxy from the environment would be measured along, or would not reach 127.0.0.1 at all.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE)
            .build()
            .map_err(|error| LoadError::Client(chain(&error)))?;
        Ok(Self { http, kept: false })
    }
}

/// A request that did not get to the end of its stream.
struct Lost {
    error: Error,
    /// Not a byte of a response had arrived.
    unanswered: bool,
}

impl Client {
    pub(super) fn new(target: &Target, plan: &Plan) -> Result<Self, LoadError> {
        let invalid = |reason: String| LoadError::Url { url: target.base_url.clone(), reason };
        let base = target.base_url.trim_end_matches('/').trim_end_matches("/v1");
        let protocol = Protocol::new(target, plan.allow_eos)?;
        let url: Url = format!("{base}{}", protocol.path()).parse().map_err(|error| invalid(format!("{error}")))?;
        if url.scheme() != "http" {
            return Err(invalid(format!("the scheme is {:?}, only \"http\" is supported", url.scheme())));
        }
        Ok(Self { url, limit: plan.request_timeout, protocol })
    }

    pub(super) fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// Sends one request and reads its response to the end. `began` is zero on the record's clock.
    pub(super) async fn exchange(&self, job: &Job, slot: &mut Slot, _due: Instant, began: Instant) -> Record {
        let mut sent = Instant::now();
        let mut reply = self.protocol.reply(job.output_len);
        let retry = std::mem::take(&mut slot.kept);
        let attempts = async {
            match self.attempt(&slot.http, job, sent, &mut reply).await {
                Err(lost) if lost.unanswered && retry && matches!(lost.error, Error::Reset(_)) => {
                    sent = Instant::now();
                    self.attempt(&slot.http, job, sent, &mut reply).await
                }
                other => other,
            }
        };
        let ended = tokio::time::timeout(self.limit, attempts).await;
        let end = Instant::now();
        let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
        let (rest, lost) = match ended {
            Ok(Ok(response)) => (response, None),
            Ok(Err(lost)) => (None, Some(lost.error)),
            Err(_) => (None, Some(Error::Timeout { limit_ms, chunks: reply.chunks.len() })),
        };
        let result = reply.finish(lost);
        if let Some(response) = rest {
            slot.kept = drain(response).await;
        }
        let (prompt_tokens, output_tokens, cached_tokens) =
            (reply.prompt_tokens(), reply.output_tokens(), reply.cached_tokens());
        Record {
            session: job.session,
            turn: 0,
            due: sent - began,
            sent: sent - began,
            chunk_count: u32::try_from(reply.chunks.len()).unwrap_or(u32::MAX),
            thinned: false,
            queued: false,
            chunks: reply.chunks,
            end: end - began,
            streamed: self.protocol.streams(),
            asked_tokens: job.output_len,
            cached_tokens,
            prompt_tokens,
            output_tokens,
            result,
        }
    }

    /// Reads until `[DONE]` or the end of the body; the response is returned for its rest.
    async fn attempt(
        &self,
        http: &reqwest::Client,
        job: &Job,
        sent: Instant,
        reply: &mut Reply,
    ) -> Result<Option<Response>, Lost> {
        let request = http.post(self.url.clone()).header(CONTENT_TYPE, "application/json");
        let sending = request.body(job.body.clone()).send();
        let mut response = sending.await.map_err(|error| Lost { error: classify(&error), unanswered: true })?;
        let answered = |error| Lost { error, unanswered: false };
        if response.status() != StatusCode::OK {
            return Err(answered(refused(response).await));
        }
        while !reply.is_done() {
            let Some(bytes) = response.chunk().await.map_err(|error| answered(classify(&error)))? else {
                break;
            };
            reply.feed(micros(sent.elapsed()), &bytes);
        }
        Ok(Some(response))
    }
}

/// Reads what follows `[DONE]`, so that the connection can serve again. Whether it can.
async fn drain(mut response: Response) -> bool {
    let keep = response.headers().get(CONNECTION).is_none_or(|value| !value.as_bytes().eq_ignore_ascii_case(b"close"));
    let rest = async {
        while let Ok(chunk) = response.chunk().await {
            if chunk.is_none() {
                return true;
            }
        }
        false
    };
    let whole = tokio::time::timeout(DRAIN, rest).await.unwrap_or(false);
    // The connection's own task puts it back into the pool; without its turn the next request would open another.
    tokio::task::yield_now().await;
    whole && keep
}

/// The error of a response whose status is not 200.
async fn refused(mut response: Response) -> Error {
    let status = response.status().as_u16();
    let mut body = Vec::new();
    while let Ok(Some(bytes)) = response.chunk().await {
        body.extend_from_slice(&bytes);
        if body.len() > ERROR_BODY {
            break;
        }
    }
    Error::Http { status, seen: message_of(&body) }
}

/// Sorts an error of the HTTP layer into its class.
fn classify(error: &reqwest::Error) -> Error {
    let text = chain(error);
    if error.is_connect() {
        return Error::Connect(text);
    }
    let sources = std::iter::successors(error.source(), |source| (*source).source());
    let kind = sources.filter_map(|source| source.downcast_ref::<io::Error>()).last().map(io::Error::kind);
    match kind {
        Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => Error::Protocol(text),
        // hyper names a response head that it cannot read "... parsed", and has no public type for it.
        None if text.contains("parsed") || text.contains("too large") => Error::Protocol(text),
        _ => Error::Reset(text),
    }
}

/// The innermost causes of an error: the outer ones only repeat the URL.
fn chain(error: &reqwest::Error) -> String {
    let sources: Vec<String> =
        std::iter::successors(error.source(), |source| (*source).source()).map(ToString::to_string).collect();
    let text = if sources.is_empty() { error.to_string() } else { sources.join(": ") };
    excerpt(text.as_bytes())
}

/// Microseconds, up to 71 minutes.
fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
