//! Exports a Docker Compose file.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::word::{ServerWord, doubled_dollars};
use super::{ExportedServer, HUB_CACHE, ModelPlace, PORT};
use crate::export::{ExportError, ExportedTrial, Exporter, yaml::write_yaml};

pub(in crate::export) struct ComposeExporter;

impl Exporter for ComposeExporter {
    fn name(&self) -> &'static str {
        "compose"
    }

    fn summary(&self) -> &'static str {
        "a Docker Compose file with the server as one service"
    }

    fn has_image(&self) -> bool {
        true
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let server = ExportedServer::of(winner)?;
        let words: Vec<_> = server.words().iter().map(word).collect();
        let mut service = json!({
            "image": doubled_dollars(&server.image),
            "entrypoint": server.starts.in_image,
            "command": words,
            "ports": [format!("${{PORT:-{PORT}}}:{PORT}")],
            "volumes": [volume(&server)],
            // Processes of tensor parallelism exchange data through the host's shared memory.
            "ipc": "host",
            "restart": "unless-stopped",
        });
        let environment = environment(&server);
        if !environment.is_empty() {
            service["environment"] = json!(environment);
        }
        if server.gpus > 0 {
            let devices = json!([{"driver": "nvidia", "count": server.gpus, "capabilities": ["gpu"]}]);
            service["deploy"] = json!({"resources": {"reservations": {"devices": devices}}});
        }
        if let Some(path) = &server.health {
            service["healthcheck"] = health_check(&server, path);
        }
        let mut comments = server.comments.clone();
        comments.push(format!("The port on this host is that of the variable PORT, {PORT} by default."));
        comments.push(server.startup_comment().replace("startup probe", "health check"));
        comments.extend(secret_comment(&server));
        let name = &server.name;
        write_yaml(&comments, &[json!({"name": name, "services": {name: service}})])
    }
}

/// Returns the comment on variables that are passed through.
fn secret_comment(server: &ExportedServer) -> Option<String> {
    let names = server.secrets.join(", ");
    (!names.is_empty()).then(|| format!("Secrets were not stored. Set them in the environment or in .env: {names}"))
}

/// Returns an argument. A secret is a required variable: Compose refuses to start without it.
fn word(word: &ServerWord) -> String {
    word.render(doubled_dollars, |name| format!("${{{name}:?is a secret and was not stored}}"))
}

/// Returns the variables. One without a value is passed through from the environment of Compose.
fn environment(server: &ExportedServer) -> BTreeMap<&str, Json> {
    let secrets = server.secrets.iter().map(|name| (name.as_str(), Json::Null));
    let plain = server.env.iter().map(|(name, value)| (name.as_str(), Json::String(doubled_dollars(value))));
    plain.chain(secrets).collect()
}

/// Returns the mount of the model, or of the cache of downloaded models.
fn volume(server: &ExportedServer) -> Json {
    match &server.model {
        ModelPlace::Hub(_) => {
            let source = "${HF_HOME:-~/.cache/huggingface}";
            json!({"type": "bind", "source": source, "target": HUB_CACHE, "bind": {"create_host_path": true}})
        }
        ModelPlace::Local(path) => {
            let path = doubled_dollars(path);
            json!({"type": "bind", "source": path, "target": path, "read_only": true})
        }
    }
}

/// Returns a check by a program of the image.
fn health_check(server: &ExportedServer, path: &str) -> Json {
    let url = format!("http://127.0.0.1:{PORT}{path}");
    let request = server.starts.request.iter().map(|word| doubled_dollars(&word.replace("{url}", &url)));
    let test: Vec<_> = std::iter::once("CMD".to_owned()).chain(request).collect();
    json!({
        "test": test,
        "interval": "10s",
        "timeout": "15s",
        "retries": 6,
        "start_period": format!("{}s", server.startup_budget_s),
    })
}
