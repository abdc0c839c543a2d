//! For tests: an HTTP server on a free port that answers each prompt in a chosen, often wrong, way.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How one request is answered. The tokens of a whole answer are 1 ms apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// One event for each token, the finish reason with the last, usage, `[DONE]`.
    Whole,
    /// The same, preceded by a pause.
    SlowFirst(Duration),
    /// The same, one byte in a packet, with CRLF and comments.
    Split,
    /// The same in one packet, two tokens to an event.
    OnePacket,
    Status(u16),
    /// An error event after the first token, then `[DONE]`.
    ErrorEvent,
    /// A TCP reset after the first token.
    Reset,
    /// An orderly close after the first token, without the body's end.
    Close,
    /// The answer ends, in order, before `[DONE]`.
    NoDone,
    NoUsage,
    /// Nothing after the first token.
    Stall,
    /// One token less than asked for.
    Short,
    /// An event that is no JSON.
    Garbage,
    /// No HTTP.
    NoHttp,
    /// No answer to the second request on a connection: it is closed, as when an idle connection expires.
    Stale,
    /// No answer at all.
    Hangup,
}

/// A running server; its tasks end with the test's runtime.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) connections: Arc<AtomicUsize>,
}

impl Server {
    /// Answers a prompt as `choose` says of its first token id.
    pub(super) async fn start(choose: impl Fn(u64) -> Answer + Send + Sync + 'static) -> Self {
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

async fn serve(mut stream: TcpStream, choose: &(dyn Fn(u64) -> Answer + Send + Sync)) {
    stream.set_nodelay(true).unwrap();
    let mut buffer = Vec::new();
    for served in 0.. {
        let Some(body) = request(&mut stream, &mut buffer).await else { return };
        let asked = body["max_tokens"].as_u64().unwrap();
        let answer = choose(body["prompt"][0].as_u64().unwrap());
        if answer == Answer::Hangup || answer == Answer::Stale && served > 0 {
            return;
        }
        if answer == Answer::Reset {
            stream.set_zero_linger().unwrap();
        }
        // The client may hang up at any time.
        if reply(&mut stream, answer, asked).await.is_err() || answer == Answer::Reset || answer == Answer::Close {
            return;
        }
    }
}

/// The next request's body; `None` when the client has closed the connection.
async fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<serde_json::Value> {
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

fn token(finish: &str) -> String {
    format!("data: {{\"id\":\"c\",\"choices\":[{{\"index\":0,\"text\":\" a\",\"finish_reason\":{finish}}}]}}\n\n")
}

fn usage(tokens: u64) -> String {
    format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{tokens}}}}}\n\n")
}

const DONE: &str = "data: [DONE]\n\n";

async fn reply(stream: &mut TcpStream, answer: Answer, asked: u64) -> std::io::Result<()> {
    let (more, last) = (|| token("null"), || token("\"length\""));
    match answer {
        Answer::Status(status) => {
            let body = r#"{"error":{"message":"refused for the test","code":0}}"#;
            let head = format!("HTTP/1.1 {status} Refused\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            return stream.write_all(head.as_bytes()).await;
        }
        Answer::NoHttp => return stream.write_all(b"hello, this is no HTTP at all\r\n\r\n").await,
        Answer::SlowFirst(pause) => tokio::time::sleep(pause).await,
        _ => {}
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let mut events: Vec<String> = (1..asked).map(|_| more()).chain([last(), usage(asked), DONE.to_owned()]).collect();
    let first = events[0].clone();
    match answer {
        Answer::Split => {
            let text = format!(": keep-alive\n\n{}", events.concat()).replace('\n', "\r\n");
            events = text.chars().map(String::from).collect();
        }
        Answer::OnePacket => {
            let merged = [(2..asked).step_by(2).map(|_| more()).collect(), last(), usage(asked), DONE.to_owned()];
            events = vec![merged.concat()];
        }
        Answer::ErrorEvent => {
            events = vec![first, "data: {\"error\":{\"message\":\"engine died\"}}\n\n".to_owned(), DONE.to_owned()];
        }
        Answer::Reset | Answer::Close | Answer::Stall => events.truncate(1),
        Answer::NoDone => events.retain(|event| event != DONE),
        Answer::NoUsage => events.retain(|event| !event.contains("usage")),
        Answer::Short => {
            events = (2..asked).map(|_| more()).chain([last(), usage(asked - 1), DONE.to_owned()]).collect();
        }
        Answer::Garbage => events.insert(1, "data: {\"choices\":[\n\n".to_owned()),
        _ => {}
    }
    for event in &events {
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
        if answer != Answer::Split {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    match answer {
        Answer::Stall => std::future::pending().await,
        Answer::Reset | Answer::Close => Ok(()),
        _ => stream.write_all(b"0\r\n\r\n").await,
    }
}
