//! Readiness: the health check answers, the listener is ours, and the model is the one asked for.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::{Server, port, process};

/// A server that can be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// From spawn to readiness.
    pub startup: Duration,
    /// The model's name in requests.
    pub model: String,
    /// The release that the server reports, where it does.
    pub version: Option<String>,
}

#[derive(Debug)]
pub enum StartError {
    /// The leader ended before the server was ready; exit code 0 is a failure as well.
    Exited(ExitStatus),
    /// Not ready within this time.
    Timeout(Duration),
    /// The readiness check itself cannot be made.
    Client(reqwest::Error),
    /// Something answers that is not the engine that was started.
    WrongServer(String),
}

const POLL: Duration = Duration::from_millis(50);

/// One probe's limit: a stuck listener must not hide the engine's death.
const PROBE_LIMIT: Duration = Duration::from_secs(5);

impl Server {
    /// Waits until the server is ready. Safe to cancel: the caller then stops the server.
    ///
    /// # Errors
    /// When the engine ends, is too slow, or is not what answers.
    pub async fn ready(&mut self, model: &str, timeout: Duration) -> Result<Ready, StartError> {
        let deadline = self.started + timeout;
        let base_url = self.base_url();
        let client = client().map_err(StartError::Client)?;
        loop {
            tokio::select! {
                biased;
                status = self.exited() => return Err(StartError::Exited(status)),
                healthy = is_healthy(&client, &base_url) => {
                    if healthy {
                        break;
                    }
                }
            }
            if Instant::now() >= deadline {
                return Err(StartError::Timeout(timeout));
            }
            tokio::select! {
                biased;
                status = self.exited() => return Err(StartError::Exited(status)),
                () = tokio::time::sleep(POLL) => {}
            }
        }
        self.check_listener().map_err(StartError::WrongServer)?;
        check_model(&client, &base_url, model).await.map_err(StartError::WrongServer)?;
        let version = get_json(&client, &format!("{base_url}/version")).await;
        let version = version.and_then(|json| json.get("version")?.as_str().map(str::to_owned));
        Ok(Ready { startup: self.started.elapsed(), model: model.to_owned(), version })
    }

    /// Whether the health check answers now.
    pub async fn is_healthy(&self) -> bool {
        match client() {
            Ok(client) => is_healthy(&client, &self.base_url()).await,
            Err(_) => false,
        }
    }

    /// A healthy answer proves nothing while a stale server may hold the port.
    ///
    /// Where the port is forwarded its listener is another program. Then it counts that nothing could be bound to the port
    /// just before the start, and that nothing may answer on it after the end.
    fn check_listener(&self) -> Result<(), String> {
        if self.forwarded {
            return Ok(());
        }
        let ours = process::members(&[self.session], |marker| marker == self.marker.value().as_bytes());
        let inodes = port::listeners(self.port);
        if inodes.iter().any(|inode| process::holds_socket(&ours, *inode)) {
            return Ok(());
        }
        Err(format!("port {} answers, but its listener is not a process of this launch", self.port))
    }
}

fn client() -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder().no_proxy().timeout(PROBE_LIMIT).build()
}

async fn is_healthy(client: &reqwest::Client, base_url: &str) -> bool {
    let answer = client.get(format!("{base_url}/health")).send().await;
    answer.is_ok_and(|response| response.status().is_success())
}

async fn check_model(client: &reqwest::Client, base_url: &str, model: &str) -> Result<(), String> {
    let models = get_json(client, &format!("{base_url}/v1/models")).await.unwrap_or_default();
    let ids: Vec<_> =
        models["data"].as_array().into_iter().flatten().filter_map(|entry| entry["id"].as_str()).collect();
    if ids.contains(&model) { Ok(()) } else { Err(format!("the server serves {ids:?} and not {model:?}")) }
}

async fn get_json(client: &reqwest::Client, url: &str) -> Option<Json> {
    client.get(url).send().await.ok()?.json().await.ok()
}
