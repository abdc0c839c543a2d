//! Test server: HTTP on a free port, with a chosen, often wrong, answer to each prompt.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The answer to one request. The tokens of a whole answer are 1 ms apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CannedAnswer {
    /// One event for each token, the finish reason with the last, usage, `[DONE]`.
    Whole,
    /// Like `Whole`, after a pause.
    SlowFirst(Duration),
    /// Like `Whole`, one byte per packet, with CRLF and comments.
    Split,
    /// Like `Whole`, in one packet, two tokens per event.
    OnePacket,
    /// Like `Whole`, with a comment before each event.
    KeepAlive,
    /// Like `Whole`, with the usage in every event.
    UsageEverywhere,
    /// Like `Whole`, with the usage in the last content event only.
    UsageWithLast,
    /// Like `Whole`, in the form of a chat. The first chunk contains only the role.
    Chat,
    /// A chat as SGLang streams it: nulls for absent values, the finish reason in an event of its own.
    SglangChat,
    /// A completion as text-generation-inference streams it: empty finish reasons, usage with the last token.
    Tgi,
    /// A chat of text-generation-inference: a role in every event, and no `[DONE]`, as up to 2.1.
    TgiChat,
    /// A completion as llama.cpp streams it: the end in an event without text, counts in `timings` only, no empty line
    /// after `[DONE]`.
    LlamaCpp,
    /// A line `error: ...` after the first token.
    ErrorLine,
    /// One document instead of a stream.
    Document,
    /// A document that breaks off, in a body that does not.
    HalfDocument,
    /// A document that is an error, with status 200.
    ErrorDocument,
    Status(u16),
    /// Like `Status`, with a body of plain text.
    TextStatus(u16),
    /// Whole, with a body of known length.
    Length,
    /// Whole, with a body that ends with the connection.
    UntilClose,
    /// Whole, preceded by `100 Continue` and `103 Early Hints`.
    Informational,
    /// Whole, with a head that comes byte by byte.
    SlowHead,
    /// A head of a megabyte.
    HugeHead,
    /// An error event after the first token, then `[DONE]`.
    ErrorEvent,
    /// A TCP reset after the first token.
    Reset,
    /// An orderly close after the first token, without the body's end.
    Close,
    /// The answer ends properly, but before `[DONE]`.
    NoDone,
    NoUsage,
    /// Nothing after the first token.
    Stall,
    /// One token less than requested.
    Short,
    /// The server aborts after the first token, and reports it in the finish reason.
    Abort,
    /// An event that is no JSON.
    Garbage,
    /// No HTTP.
    NoHttp,
    /// No answer to the second request on a connection: it is closed, as when an idle connection expires.
    Stale,
    /// Like `Stale`, but the connection is closed long after the request has arrived, so it was not idle.
    LateHangup,
    /// No answer at all.
    Hangup,
}

/// A running server; its tasks end with the test's runtime.
#[derive(Debug)]
pub(super) struct MisbehavingServer {
    pub(super) address: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
}

impl MisbehavingServer {
    /// Starts a server. `choose` maps the number of a prompt to its answer. The number is the prompt's first token id,
    /// or the end of its text.
    pub(super) async fn start(choose: impl Fn(u64) -> CannedAnswer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { address: listener.local_addr().unwrap(), connections: Arc::default() };
        let (connections, choose) = (Arc::clone(&server.connections), Arc::new(choose));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let choose = Arc::clone(&choose);
                tokio::spawn(async move { serve(stream, &*choose).await });
            }
        });
        server
    }
}

/// Returns the number in a request's prompt.
fn number(body: &Json) -> u64 {
    let prompt = body.get("prompt").unwrap_or(&body["messages"][0]["content"]);
    let digits = |text: &str| text.rsplit(' ').next().and_then(|number| number.parse().ok());
    prompt[0].as_u64().or_else(|| digits(prompt.as_str()?)).expect("a prompt with a number")
}

async fn serve(mut stream: TcpStream, choose: &(dyn Fn(u64) -> CannedAnswer + Send + Sync)) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    for served in 0.. {
        let Some(body) = request(&mut stream, &mut buffer).await else { return };
        let asked = body["max_tokens"].as_u64().unwrap();
        let answer = choose(number(&body));
        if answer == CannedAnswer::LateHangup && served > 0 {
            return tokio::time::sleep(Duration::from_millis(700)).await;
        }
        if answer == CannedAnswer::Hangup || answer == CannedAnswer::Stale && served > 0 {
            return;
        }
        if answer == CannedAnswer::Reset {
            stream.set_zero_linger().unwrap();
        }
        // The client may hang up at any time.
        let ends = matches!(answer, CannedAnswer::Reset | CannedAnswer::Close | CannedAnswer::UntilClose);
        if reply(&mut stream, answer, asked).await.is_err() || ends {
            return;
        }
    }
}

/// Returns the next request's body, or `None` if the client has closed the connection.
async fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Json> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1)?.lines().next()?.parse::<usize>().ok()?;
            if buffer.len() >= end + 4 + length {
                let body = serde_json::from_slice(&buffer[end + 4..end + 4 + length]).ok()?;
                buffer.drain(..end + 4 + length);
                return Some(body);
            }
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

const DONE: &str = "data: [DONE]\n\n";

fn event(chunk: &Json) -> String {
    format!("data: {chunk}\n\n")
}

fn token(finish: Option<&str>) -> String {
    event(&json!({"id": "c", "choices": [{"index": 0, "text": " a", "finish_reason": finish}]}))
}

fn counts(tokens: u64) -> Json {
    json!({"prompt_tokens": 1, "completion_tokens": tokens})
}

fn usage(tokens: u64) -> String {
    event(&json!({"choices": [], "usage": counts(tokens)}))
}

/// Returns the events of a stream, in the form of one of the servers or faults.
fn events(answer: CannedAnswer, asked: u64) -> Vec<String> {
    let (more, last) = (|| token(None), || token(Some("length")));
    let finish = |index: u64| (index == asked).then_some("length");
    let each = |chunk: &dyn Fn(u64) -> Json| (1..=asked).map(|index| event(&chunk(index))).collect::<Vec<_>>();
    let delta = |delta: Json, finish: Option<&str>| {
        event(&json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": null}))
    };
    let whole: Vec<String> = (1..asked).map(|_| more()).chain([last(), usage(asked), DONE.to_owned()]).collect();
    match answer {
        CannedAnswer::Split => {
            let text = format!(": keep-alive\n\n{}", whole.concat()).replace('\n', "\r\n");
            text.chars().map(String::from).collect()
        }
        CannedAnswer::OnePacket => {
            let merged = [(2..asked).step_by(2).map(|_| more()).collect(), last(), usage(asked), DONE.to_owned()];
            vec![merged.concat()]
        }
        CannedAnswer::KeepAlive => whole.iter().map(|event| format!(": keep-alive\n\n{event}")).collect(),
        CannedAnswer::UsageEverywhere => {
            let chunk =
                |index| json!({"choices": [{"text": "a", "finish_reason": finish(index)}], "usage": counts(index)});
            [each(&chunk), vec![usage(asked), DONE.to_owned()]].concat()
        }
        CannedAnswer::UsageWithLast => {
            let chunk = |index| {
                let usage = (index == asked).then(|| counts(asked));
                json!({"choices": [{"text": "a", "finish_reason": finish(index)}], "usage": usage})
            };
            [each(&chunk), vec![DONE.to_owned()]].concat()
        }
        CannedAnswer::Chat => {
            let role = delta(json!({"role": "assistant", "content": ""}), None);
            let tokens = (1..=asked).map(|index| delta(json!({"content": "a"}), finish(index)));
            [vec![role], tokens.collect(), vec![usage(asked), DONE.to_owned()]].concat()
        }
        CannedAnswer::SglangChat => {
            let says = |role: Option<&str>, content: Option<&str>, finish: Option<&str>| {
                delta(json!({"role": role, "content": content, "reasoning_content": null, "tool_calls": null}), finish)
            };
            let tokens = (1..=asked).map(|_| says(None, Some("a"), None)).collect();
            let end = vec![says(None, None, Some("length")), usage(asked), DONE.to_owned()];
            [vec![says(Some("assistant"), Some(""), None)], tokens, end].concat()
        }
        CannedAnswer::Tgi => {
            let chunk = |index| {
                let choice = json!({"index": 0, "text": "a", "finish_reason": finish(index).unwrap_or_default()});
                let usage = (index == asked).then(|| counts(asked));
                usage.map_or_else(|| json!({"choices": [choice]}), |usage| json!({"choices": [choice], "usage": usage}))
            };
            [each(&chunk), vec![DONE.to_owned()]].concat()
        }
        CannedAnswer::TgiChat => {
            let tokens = (1..=asked).map(|index| delta(json!({"role": "assistant", "content": "a"}), finish(index)));
            tokens.chain([usage(asked)]).collect()
        }
        CannedAnswer::LlamaCpp => {
            let timings = json!({"cache_n": 1, "prompt_n": 0, "predicted_n": asked});
            let end = json!({"choices": [{"text": "", "finish_reason": "length"}], "timings": timings});
            let end = [event(&end), "data: [DONE]\n".to_owned()];
            (1..=asked).map(|_| more()).chain(end).collect()
        }
        CannedAnswer::ErrorLine => {
            vec![more(), "error: {\"code\":500,\"message\":\"engine died\"}\n\n".to_owned(), DONE.to_owned()]
        }
        CannedAnswer::ErrorEvent => {
            vec![more(), event(&json!({"error": {"message": "engine died"}})), DONE.to_owned()]
        }
        CannedAnswer::Abort => vec![more(), token(Some("abort")), usage(2), DONE.to_owned()],
        CannedAnswer::Reset | CannedAnswer::Close | CannedAnswer::Stall => vec![more()],
        CannedAnswer::NoDone => whole.into_iter().filter(|event| event != DONE).collect(),
        CannedAnswer::NoUsage => whole.into_iter().filter(|event| !event.contains("usage")).collect(),
        CannedAnswer::Short => (2..asked).map(|_| more()).chain([last(), usage(asked - 1), DONE.to_owned()]).collect(),
        CannedAnswer::Garbage => [vec![more(), "data: {\"choices\":[\n\n".to_owned()], whole[1..].to_vec()].concat(),
        _ => whole,
    }
}

/// Returns the response of an answer that has no stream of chunks and is written at once.
fn at_once(answer: CannedAnswer, asked: u64) -> Option<String> {
    let with_length =
        |status: &str, body: &str| format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let choice = json!({"index": 0, "text": "a a a", "finish_reason": "length"});
    let document = json!({"choices": [choice], "usage": counts(asked)}).to_string();
    Some(match answer {
        CannedAnswer::Status(status) => {
            with_length(&format!("{status} Refused"), r#"{"error":{"message":"refused for the test","code":0}}"#)
        }
        CannedAnswer::TextStatus(status) => with_length(&format!("{status} Refused"), " refused for the test\n"),
        CannedAnswer::Document => with_length("200 OK", &document),
        CannedAnswer::HalfDocument => with_length("200 OK", &document[..document.len() / 2]),
        CannedAnswer::ErrorDocument => {
            with_length("200 OK", r#"{"object":"error","message":"engine died","code":500}"#)
        }
        CannedAnswer::Length => with_length("200 OK", &events(CannedAnswer::Whole, asked).concat()),
        CannedAnswer::NoHttp => "hello, this is no HTTP at all\r\n\r\n".to_owned(),
        _ => return None,
    })
}

async fn reply(stream: &mut TcpStream, answer: CannedAnswer, asked: u64) -> std::io::Result<()> {
    if let Some(text) = at_once(answer, asked) {
        return stream.write_all(text.as_bytes()).await;
    }
    if let CannedAnswer::SlowFirst(pause) = answer {
        tokio::time::sleep(pause).await;
    }
    if answer == CannedAnswer::Informational {
        let early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n";
        stream.write_all(early).await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let ok = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    match answer {
        CannedAnswer::UntilClose => stream.write_all(format!("{ok}connection: close\r\n\r\n").as_bytes()).await?,
        CannedAnswer::HugeHead => {
            let line = format!("x-filler: {}\r\n", "x".repeat(1 << 20));
            stream.write_all(format!("{ok}{line}transfer-encoding: chunked\r\n\r\n").as_bytes()).await?;
        }
        CannedAnswer::SlowHead => {
            for byte in format!("{ok}transfer-encoding: chunked\r\n\r\n").bytes() {
                stream.write_all(&[byte]).await?;
                tokio::task::yield_now().await;
            }
        }
        _ => stream.write_all(format!("{ok}transfer-encoding: chunked\r\n\r\n").as_bytes()).await?,
    }
    let chunked = answer != CannedAnswer::UntilClose;
    for event in &events(answer, asked) {
        let framed = if chunked { format!("{:x}\r\n{event}\r\n", event.len()) } else { event.clone() };
        stream.write_all(framed.as_bytes()).await?;
        if answer != CannedAnswer::Split {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    match answer {
        CannedAnswer::Stall => std::future::pending().await,
        CannedAnswer::Reset | CannedAnswer::Close | CannedAnswer::UntilClose => Ok(()),
        _ => stream.write_all(b"0\r\n\r\n").await,
    }
}
