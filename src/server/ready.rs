//! The readiness check: the health check passes, the listener is ours, the server has the requested model, and it has
//! generated one token.

use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use procfs::process::Process;
use serde_json::{Value as Json, json};

use super::{LogTail, ResourceHolder, Server, ServerKey, port, process};
use crate::engine::{Engine, ModelNameCheck};
use crate::trial::without_controls;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

/// The largest body of a response in bytes. A metrics page of vLLM has some 100 KiB.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The error text for a larger body.
const BODY_LIMIT_TEXT: &str = "exceeds the limit of 4194304 bytes";

/// The largest number of characters of a release that are kept.
const MAX_VERSION_CHARS: usize = 100;

/// A server that can be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyServer {
    /// From spawn to readiness.
    pub startup: Duration,
    /// The model's name for requests.
    pub model: String,
    /// The release that the server reports, if any.
    pub version: Option<String>,
}

#[derive(Debug)]
pub enum StartError {
    /// The leader ended before the server was ready; exit code 0 is a failure as well.
    Exited(ExitStatus),
    /// The server was not ready within this time.
    Timeout(Duration),
    /// The client for the readiness check cannot be created.
    Client(reqwest::Error),
    /// Another program than the started engine answers, or the server does not have the requested model.
    WrongServer(String),
    /// The health check succeeds, but a request gets no answer.
    Unresponsive(String),
    /// The health check succeeds, but a request gets an error or an answer without a token.
    RequestRefused(String),
}

/// The requests that prove that a server is ready.
#[derive(Clone, Copy, Debug)]
pub struct ReadyCheck<'a> {
    /// The names under which the server may have the model.
    pub names: &'a [String],
    pub first: FirstRequest,
}

/// The request for one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstRequest {
    /// A completion of token ids.
    Tokens,
    /// A completion of a text.
    Text,
    Chat,
}

impl FirstRequest {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Tokens | Self::Text => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
        }
    }

    pub(super) fn body(self, model: &str) -> Json {
        match self {
            Self::Tokens => json!({"model": model, "prompt": PROMPT_TOKENS, "max_tokens": 1, "temperature": 0}),
            Self::Text => json!({"model": model, "prompt": GREETING, "max_tokens": 1, "temperature": 0}),
            Self::Chat => {
                let messages = json!([{"role": "user", "content": GREETING}]);
                json!({"model": model, "messages": messages, "max_tokens": 1, "temperature": 0})
            }
        }
    }
}

/// A callback for each line of the log, with the time since spawn at which the line was read.
pub type OnLine<'a> = &'a mut (dyn FnMut(&str, Duration) + Send);

const POLL: Duration = Duration::from_millis(50);

/// The time limit of one probe, so that a stuck listener does not hide the engine's death.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

/// A server that had less time than this for its first token counts as slow to start, and not as mute.
const MIN_TOKEN_TIME: Duration = Duration::from_secs(1);

/// Token ids that exist in every vocabulary. Three tokens do not fill a block of a prefix cache.
const PROMPT_TOKENS: [u32; 3] = [1, 2, 3];

/// The prompt for a server that accepts no token ids.
const GREETING: &str = "Hello";

/// The number of characters of an error message that are reported.
const MAX_ERROR_CHARS: usize = 400;

impl Server {
    /// Waits until the server is ready. If the future is cancelled, the caller has to stop the server.
    ///
    /// `/health` answers as soon as the HTTP server is up, even if the engine behind it hangs (vLLM of all releases).
    /// The check therefore also requires the answer to a request.
    ///
    /// # Errors
    /// If the engine ends, is too slow, does not serve, or if another program answers.
    pub async fn wait_until_ready(
        &mut self,
        check: &ReadyCheck<'_>,
        timeout: Duration,
        on_line: OnLine<'_>,
    ) -> Result<ReadyServer, StartError> {
        let mut log = self.tail();
        let readiness = self.engine.readiness();
        let announced = AtomicBool::new(readiness.log.is_none());
        let on_line: OnLine<'_> = &mut |line, at| {
            if readiness.log.as_ref().is_some_and(|pattern| pattern.is_match(line)) {
                announced.store(true, Ordering::Relaxed);
            }
            on_line(line, at);
        };
        let ready = self.check_readiness(check, &announced, timeout, &mut log, on_line).await;
        // The log may have grown since the last poll, for instance by the final lines of an engine that has ended.
        forward_lines(&mut log, self.started, on_line);
        ready
    }

    /// Runs the checks of `ready` in order. `announced` is set when the log has reported readiness.
    async fn check_readiness(
        &mut self,
        check: &ReadyCheck<'_>,
        announced: &AtomicBool,
        timeout: Duration,
        log: &mut LogTail,
        on_line: OnLine<'_>,
    ) -> Result<ReadyServer, StartError> {
        let deadline = self.started + timeout;
        let base_url = self.plain_url();
        let client = self.client().map_err(StartError::Client)?;
        let readiness = self.engine.readiness();
        while !announced.load(Ordering::Relaxed)
            || !self.while_alive(log, on_line, is_healthy(&client, &base_url, readiness.health.as_deref())).await?
        {
            if Instant::now() >= deadline {
                return Err(StartError::Timeout(timeout));
            }
            self.while_alive(log, on_line, tokio::time::sleep(POLL)).await?;
        }
        self.check_listener().map_err(StartError::WrongServer)?;
        let engine = Arc::clone(&self.engine);
        let model = self.while_alive(log, on_line, check_model(&client, &base_url, check.names, &*engine)).await??;
        let page = format!("{base_url}{}", readiness.release.path);
        let version =
            self.while_alive(log, on_line, get_json(&client, &page)).await?.map_err(StartError::WrongServer)?;
        let version = version.and_then(|json| json.get(readiness.release.key)?.as_str().map(release_text));

        let asked = Instant::now();
        let left = deadline.saturating_duration_since(asked);
        let token = first_token(&client, &base_url, check.first, &model, deadline);
        match self.while_alive(log, on_line, tokio::time::timeout(left, token)).await? {
            Ok(answer) => answer?,
            Err(_) if left < MIN_TOKEN_TIME => return Err(StartError::Timeout(timeout)),
            Err(_) => return Err(StartError::Unresponsive(mute(asked.elapsed()))),
        }
        Ok(ReadyServer { startup: self.started.elapsed(), model, version })
    }

    /// Runs `work` while the engine lives and its log is read. Returns an error if the engine ends first.
    async fn while_alive<T>(
        &mut self,
        log: &mut LogTail,
        on_line: OnLine<'_>,
        work: impl Future<Output = T>,
    ) -> Result<T, StartError> {
        let started = self.started;
        let mut work = std::pin::pin!(work);
        loop {
            forward_lines(log, started, on_line);
            tokio::select! {
                biased;
                status = self.wait_for_exit() => return Err(StartError::Exited(status)),
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// Returns a client that sends the server's key with each request.
    pub(super) fn client(&self) -> reqwest::Result<reqwest::Client> {
        client(self.api_key.as_ref())
    }

    /// Returns whether the health check succeeds now.
    pub async fn is_healthy(&self) -> bool {
        match self.client() {
            Ok(client) => is_healthy(&client, &self.plain_url(), self.engine.readiness().health.as_deref()).await,
            Err(_) => false,
        }
    }

    /// Fetches the text under a path of the server. Returns `None` if the server does not succeed within `PROBE_LIMIT`.
    pub async fn page(&self, path: &str) -> Option<String> {
        let response = self.client().ok()?.get(format!("{}{path}", self.plain_url())).send().await.ok()?;
        text_of(response.error_for_status().ok()?).await.ok()
    }

    /// Checks that each listener of the port belongs to this launch. A healthy answer alone is no proof, because a
    /// stale server may hold or share the port. vLLM 0.8 to 0.20 listens with `SO_REUSEPORT`, so that the kernel
    /// spreads requests over both servers.
    ///
    /// If the port is forwarded, its listener is another program. Two other checks replace this one: the port was free
    /// just before the start, and no listener may remain after the end.
    fn check_listener(&self) -> Result<(), String> {
        if self.forwarded {
            return Ok(());
        }
        let listeners = port::listening_inodes(self.port);
        let ours: Vec<_> = self.members().iter().filter_map(|entry| Process::new(entry.pid).ok()).collect();
        let foreign = listeners.iter().find(|inode| !process::holds_socket(&ours, **inode));
        match foreign {
            None if !listeners.is_empty() => Ok(()),
            None => Err(format!("port {} answers, but no process of this host listens on it", self.port)),
            Some(inode) => {
                let owner = ResourceHolder::of_socket(&[*inode])
                    .map_or_else(|| "a process that is not visible from here".to_owned(), |owner| owner.to_string());
                Err(format!(
                    "port {} answers, but its listener is {owner}, which does not belong to this launch",
                    self.port
                ))
            }
        }
    }
}

/// Passes the new lines of the log to the callback.
fn forward_lines(log: &mut LogTail, started: Instant, on_line: OnLine<'_>) {
    let new = log.read_new();
    let at = started.elapsed();
    new.lines().for_each(|line| on_line(line, at));
}

fn client(api_key: Option<&ServerKey>) -> reqwest::Result<reqwest::Client> {
    let mut headers = HeaderMap::new();
    // A key with a line end cannot be sent in a header, so no server can require it.
    if let Some(mut value) = api_key.and_then(|key| HeaderValue::try_from(format!("Bearer {}", key.0)).ok()) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    reqwest::Client::builder().no_proxy().timeout(PROBE_LIMIT).default_headers(headers).build()
}

/// Returns whether the health page succeeds; without a page, whether the port accepts connections.
async fn is_healthy(client: &reqwest::Client, base_url: &str, page: Option<&str>) -> bool {
    let Some(page) = page else {
        let address = base_url.trim_start_matches("http://");
        return tokio::net::TcpStream::connect(address).await.is_ok();
    };
    let answer = client.get(format!("{base_url}{page}")).send().await;
    answer.is_ok_and(|response| response.status().is_success())
}

/// Returns the first of these names under which the server serves the model. If the engine does not require this check
/// and the names are unknown to the server, returns the only name that it lists. Without a list, returns the first of
/// `names`.
async fn check_model(
    client: &reqwest::Client,
    base_url: &str,
    names: &[String],
    engine: &dyn Engine,
) -> Result<String, StartError> {
    let is_required = engine.readiness().model_name == ModelNameCheck::Required;
    let unchecked = || Ok(names.first().cloned().unwrap_or_default());
    let url = format!("{base_url}/v1/models");
    let response = match client.get(&url).send().await {
        Ok(response) => response,
        Err(_) if !is_required => return unchecked(),
        Err(_) => return Err(StartError::WrongServer(format!("{url} does not answer"))),
    };
    if matches!(response.status().as_u16(), 401 | 403) {
        return Err(StartError::RequestRefused(format!(
            "/v1/models answers with status {}: the server requires another API key; {}",
            response.status(),
            match engine.api_key_variable() {
                Some(variable) => format!("set {variable} in [engine.env] or in the environment"),
                None => "set engine.api_key_variable to the name of the variable that contains it".to_owned(),
            }
        )));
    }
    if !is_required && !response.status().is_success() {
        return unchecked();
    }
    let models = json_of(response).await.map_err(StartError::WrongServer)?.unwrap_or_default();
    let ids: Vec<_> =
        models["data"].as_array().into_iter().flatten().filter_map(|entry| entry["id"].as_str()).collect();
    if let Some(name) = names.iter().find(|name| ids.contains(&name.as_str())) {
        return Ok(name.clone());
    }
    if let (false, [] | [_]) = (is_required, ids.as_slice()) {
        return ids.first().map_or_else(unchecked, |id| Ok((*id).to_owned()));
    }
    Err(StartError::WrongServer(format!("the server serves {ids:?}, not {:?}", names.join(" or "))))
}

/// Requests one token. The first step may compile kernels, so that only the time limit of the start applies.
async fn first_token(
    client: &reqwest::Client,
    base_url: &str,
    first: FirstRequest,
    model: &str,
    deadline: Instant,
) -> Result<(), StartError> {
    let request = first.body(model);
    let asked = Instant::now();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let post = client.post(format!("{base_url}{}", first.path())).json(&request).timeout(left + POLL);
        let answer = async {
            let response = post.send().await.map_err(BodyError::ConnectionLost)?;
            Ok::<_, BodyError>((response.status(), text_of(response).await?))
        };
        match answer.await {
            Ok((status, fill_text)) if status.is_success() => return check_choice(&fill_text),
            Ok((status, fill_text)) => {
                return Err(StartError::RequestRefused(format!("status {status}: {}", first_words(&fill_text))));
            }
            Err(BodyError::TooLarge) => {
                return Err(StartError::RequestRefused(format!("its answer {BODY_LIMIT_TEXT}")));
            }
            // A request whose connection closes is repeated. If the request has killed the engine, the caller notices
            // its end.
            Err(_) if Instant::now() < deadline => tokio::time::sleep(POLL).await,
            Err(_) => return Err(StartError::Unresponsive(mute(asked.elapsed()))),
        }
    }
}

fn check_choice(text: &str) -> Result<(), StartError> {
    let answer: Json = serde_json::from_str(text).unwrap_or_default();
    if answer["choices"].as_array().is_some_and(|choices| !choices.is_empty()) {
        return Ok(());
    }
    Err(StartError::RequestRefused(format!("no choices in {}", first_words(text))))
}

fn mute(waited: Duration) -> String {
    format!("the health check passes, but no token came within {:.1} s", waited.as_secs_f64())
}

fn first_words(text: &str) -> String {
    let message = serde_json::from_str::<Json>(text).ok().and_then(|json| {
        // vLLM has the message within `error` since 0.10, and at the top level before.
        [&json["error"]["message"], &json["message"]].into_iter().find_map(Json::as_str).map(str::to_owned)
    });
    let text = message.unwrap_or_else(|| text.trim().to_owned());
    if text.is_empty() { "an empty answer".to_owned() } else { text.chars().take(MAX_ERROR_CHARS).collect() }
}

/// Fetches the JSON document at an address. Returns `None` if there is none.
///
/// # Errors
/// If the document is larger than `LARGEST_BODY`.
async fn get_json(client: &reqwest::Client, url: &str) -> Result<Option<Json>, String> {
    let Ok(response) = client.get(url).send().await else { return Ok(None) };
    json_of(response).await
}

/// Parses the body of a response as JSON. Returns `None` if that fails.
///
/// # Errors
/// If the body is larger than `LARGEST_BODY`.
pub(super) async fn json_of(response: reqwest::Response) -> Result<Option<Json>, String> {
    let url = response.url().clone();
    match text_of(response).await {
        Ok(text) => Ok(serde_json::from_str(&text).ok()),
        Err(BodyError::ConnectionLost(_)) => Ok(None),
        Err(BodyError::TooLarge) => Err(format!("the answer of {url} {BODY_LIMIT_TEXT}")),
    }
}

/// Cleans and shortens a release for storage and display, since a server may report any text.
fn release_text(text: &str) -> String {
    without_controls(text).chars().take(MAX_VERSION_CHARS).collect()
}

/// The reason for a missing body.
enum BodyError {
    ConnectionLost(#[expect(dead_code, reason = "callers only need to know that it is gone")] reqwest::Error),
    TooLarge,
}

/// Reads the body of a response up to `LARGEST_BODY`.
async fn text_of(mut response: reqwest::Response) -> Result<String, BodyError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(BodyError::ConnectionLost)? {
        if body.len() + chunk.len() > MAX_BODY_BYTES {
            return Err(BodyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{HOST, SpawnParameters};
    use std::path::Path;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Serves `/health` and the list of models, and answers each completion with `answer` or never. Returns its port.
    async fn serve(answer: Option<(u16, &'static str)>) -> u16 {
        let listener = TcpListener::bind((HOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut head = vec![0; 4096];
                    let read = stream.read(&mut head).await.unwrap_or(0);
                    let head = String::from_utf8_lossy(&head[..read]).into_owned();
                    let (status, body) = match (head.contains("/v1/completions"), answer) {
                        (true, Some(answer)) => answer,
                        (true, None) => std::future::pending().await,
                        (false, _) => (200, r#"{"data": [{"id": "m"}], "version": "1"}"#),
                    };
                    let length = body.len();
                    let reply =
                        format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
                    let _ = stream.write_all(reply.as_bytes()).await;
                });
            }
        });
        port
    }

    async fn token(answer: Option<(u16, &'static str)>, limit: Duration) -> Result<(), StartError> {
        let base_url = format!("http://{HOST}:{}", serve(answer).await);
        first_token(&client(None).unwrap(), &base_url, FirstRequest::Tokens, "m", Instant::now() + limit).await
    }

    fn check(names: &[String]) -> ReadyCheck<'_> {
        ReadyCheck { names, first: FirstRequest::Tokens }
    }

    fn launch(directory: &Path, script: &str, port: u16) -> Server {
        let spawn = SpawnParameters::of_script(directory, "sh", script, "ready", u32::from(port));
        Server::spawn(&SpawnParameters { port, ..spawn }).unwrap()
    }

    #[tokio::test]
    async fn a_token_is_a_choice_whatever_its_text() {
        let long = Duration::from_secs(20);
        assert!(token(Some((200, r#"{"choices": [{"text": ""}]}"#)), long).await.is_ok());
        let refusals = [
            ((200, r#"{"choices": []}"#), r#"no choices in {"choices": []}"#),
            ((500, ""), "status 500 Internal Server Error: an empty answer"),
            ((400, r#"{"error": {"message": "too long"}}"#), "status 400 Bad Request: too long"),
            ((404, r#"{"object": "error", "message": "no such model"}"#), "status 404 Not Found: no such model"),
        ];
        for (answer, expected) in refusals {
            let Err(StartError::RequestRefused(told)) = token(Some(answer), long).await else {
                panic!("{answer:?} is taken")
            };
            assert_eq!(told, expected);
        }
    }

    #[tokio::test]
    async fn a_server_that_never_answers_a_request_is_mute() {
        let Err(StartError::Unresponsive(told)) = token(None, Duration::from_millis(100)).await else {
            panic!("it answered")
        };
        assert!(told.starts_with("the health check passes, but no token came within 0."), "{told}");
    }

    #[tokio::test]
    async fn a_healthy_foreign_listener_on_the_port_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut server = launch(directory.path(), "exec sleep 600", serve(None).await);
        let error = server
            .wait_until_ready(&check(&["m".to_owned()]), Duration::from_secs(20), &mut |_, _| {})
            .await
            .unwrap_err();
        let StartError::WrongServer(told) = error else { panic!("{error:?}") };
        assert!(told.contains(&format!("its listener is process {} (", std::process::id())), "{told}");
        server.stop(Duration::ZERO).await.unwrap();
    }

    #[tokio::test]
    async fn every_log_line_of_an_ending_engine_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let script = "echo one; sleep 0.1; echo two; exit 3";
        let mut server = launch(directory.path(), script, crate::server::free_port().unwrap());
        let mut told: Vec<(String, Duration)> = Vec::new();
        let ready = server
            .wait_until_ready(&check(&["m".to_owned()]), Duration::from_secs(20), &mut |line, at| {
                told.push((line.to_owned(), at));
            })
            .await;
        assert!(matches!(ready, Err(StartError::Exited(status)) if status.code() == Some(3)), "{ready:?}");
        let lines: Vec<_> = told.iter().map(|(line, _)| line.as_str()).collect();
        assert_eq!(lines, ["one", "two"]);
        assert!(told[0].1 <= told[1].1, "{told:?}");
    }

    #[tokio::test]
    async fn bodies_are_bounded_and_a_release_is_one_line() {
        let large = Box::leak(format!("[{}]", " ".repeat(MAX_BODY_BYTES)).into_boxed_str());
        let url = format!("http://{HOST}:{}/v1/completions", serve(Some((200, large))).await);
        let error = get_json(&client(None).unwrap(), &url).await.unwrap_err();
        assert!(error.contains("/v1/completions exceeds the limit of 4194304 bytes"), "{error}");
        let url = format!("http://{HOST}:{}/version", serve(None).await);
        assert_eq!(get_json(&client(None).unwrap(), &url).await.unwrap().unwrap()["version"], "1");
        let release = release_text(&format!("0.32.0\ntouch /x\u{1b}[2J{}", "x".repeat(1000)));
        assert!(release.starts_with("0.32.0 touch /x") && release.len() == MAX_VERSION_CHARS, "{release:?}");
    }
}
