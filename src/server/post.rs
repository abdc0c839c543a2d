//! Single requests to a running server, beside its load.

use std::time::Duration;

use serde_json::Value as Json;

use super::Server;
use super::ready::json_of;

impl Server {
    /// Sends a JSON document to a path of the server and returns the JSON of the response. `None` if the server does not
    /// succeed within `limit`.
    pub async fn post(&self, path: &str, body: &Json, limit: Duration) -> Option<Json> {
        let url = format!("{}{path}", self.plain_url());
        let response = self.client().ok()?.post(url).json(body).timeout(limit).send().await.ok()?;
        json_of(response.error_for_status().ok()?).await.ok()?
    }
}
