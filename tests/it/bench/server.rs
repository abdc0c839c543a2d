//! A minimal server of OpenAI's interface, which records its requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value as Json, json};

/// The server's way to answer completion requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// All requested tokens at once.
    Good,
    /// One token a millisecond.
    Slow,
    /// Every other request fails with status 500.
    HalfFail,
    /// This status for every request.
    Status(u16),
}

pub(crate) struct Server {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<(String, Json)>>>,
}

impl Server {
    /// Starts a server. Its threads end with the test's process.
    pub(crate) fn start(way: Way) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let asked = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, way, &asked));
            }
        });
        Self { port, asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the head and the body of each request so far.
    pub(crate) fn asked(&self) -> Vec<(String, Json)> {
        self.asked.lock().unwrap().clone()
    }
}

/// Answers requests on one connection until the client closes it.
fn serve(stream: TcpStream, way: Way, asked: &Mutex<Vec<(String, Json)>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    stream.set_nodelay(true).ok()?;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        if head.starts_with("GET /v1/models ") {
            let models = json!({"object": "list", "data": [{"id": "made-up", "max_model_len": 4096}]}).to_string();
            respond(&mut stream, 200, "application/json", &models)?;
            continue;
        }
        if head.starts_with("GET ") {
            respond(&mut stream, 404, "text/plain", "not here")?;
            continue;
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        let mut body = vec![0; length?];
        reader.read_exact(&mut body).ok()?;
        let body: Json = serde_json::from_slice(&body).ok()?;
        let number = {
            let mut asked = asked.lock().unwrap();
            asked.push((head, body.clone()));
            asked.len()
        };
        match way {
            Way::Status(status) => {
                respond(&mut stream, status, "application/json", r#"{"error":{"message":"made up"}}"#)?;
            }
            Way::HalfFail if number % 2 == 0 => respond(&mut stream, 500, "text/plain", "made up")?,
            Way::Good | Way::HalfFail => complete(&mut stream, &body, Duration::ZERO)?,
            Way::Slow => complete(&mut stream, &body, Duration::from_millis(1))?,
        }
    }
}

fn respond(stream: &mut TcpStream, status: u16, kind: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}

/// Sends a completion as vLLM does: a stream, or a whole reply if the request disables streaming.
fn complete(stream: &mut TcpStream, body: &Json, gap: Duration) -> Option<()> {
    let tokens = body["max_tokens"].as_u64()?;
    let prompt = body["prompt"].as_array().map_or(1, Vec::len);
    if body["stream"] == false {
        let usage = json!({"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": 0});
        let choices = json!([{"index": 0, "text": "a", "finish_reason": "length"}]);
        return respond(stream, 200, "application/json", &json!({"choices": choices, "usage": usage}).to_string());
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        .ok()?;
    let mut event = |text: &str| {
        let event = format!("data: {text}\n\n");
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).ok()
    };
    for token in 1..=tokens {
        let finish = if token == tokens { json!("length") } else { Json::Null };
        event(&json!({"choices": [{"index": 0, "text": " a", "finish_reason": finish}]}).to_string())?;
        std::thread::sleep(gap);
    }
    event(&json!({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}}).to_string())?;
    event("[DONE]")?;
    stream.write_all(b"0\r\n\r\n").ok()
}
