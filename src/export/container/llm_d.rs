//! Exports Helm values of llm-d's chart `llm-d-modelservice`.

use serde_json::{Value as Json, json};

use super::{ContainerError, ExportedServer, ModelPlace, PORT, pod};
use crate::export::{ExportError, ExportedTrial, Exporter, yaml::write_yaml};

/// The variable with the token of the hub, and the key of its secret in the chart.
const HUB_TOKEN: &str = "HF_TOKEN";

pub(in crate::export) struct LlmDExporter;

impl Exporter for LlmDExporter {
    fn name(&self) -> &'static str {
        "llm-d"
    }

    fn summary(&self) -> &'static str {
        "Helm values of llm-d's chart llm-d-modelservice, without separate prefill"
    }

    fn has_image(&self) -> bool {
        true
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let server = ExportedServer::of(winner)?;
        let kind = server.engine().kind().to_owned();
        server.engine().serving_projects().ok_or(ContainerError::NotServed { project: "llm-d", kind })?;
        let mut values = json!({
            "modelArtifacts": artifacts(&server),
            // Requests reach the server without the sidecar, which divides prefill and decode.
            "routing": {"servicePort": PORT, "proxy": {"enabled": false}},
            "decode": {
                "create": true,
                "replicas": 1,
                "enableServiceLinks": false,
                "parallelism": {"tensor": server.size("tensor-parallel-size"), "data": server.size("data-parallel-size")},
                "containers": [container(&server)],
                "volumes": pod::volumes(&server),
            },
            "prefill": {"create": false},
        });
        if server.gpus == 0 {
            values["accelerator"] = json!({"type": "cpu"});
        }
        let mut comments = server.comments.clone();
        comments.push("Values of the chart of https://llm-d-incubation.github.io/llm-d-modelservice:".to_owned());
        comments.push("helm install NAME llm-d-modelservice/llm-d-modelservice -f THIS-FILE".to_owned());
        let volume = "name a persistent volume in modelArtifacts.uri (pvc+hf://CLAIM/PATH)";
        comments.extend([server.startup_comment(), server.model_comment(volume)]);
        comments.extend(server.secret_comment());
        write_yaml(&comments, &[values])
    }
}

/// Returns the model. The name is that of requests.
fn artifacts(server: &ExportedServer) -> Json {
    let uri = match &server.model {
        ModelPlace::Hub(name) => format!("hf://{name}"),
        ModelPlace::Local(path) => format!("file://{path}"),
    };
    let mut artifacts = json!({
        "name": literal(server.served_name()),
        "uri": literal(&uri),
        // No limit of the volume for the download.
        "size": "0",
        "labels": {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": server.name},
    });
    if server.secrets.iter().any(|name| name == HUB_TOKEN) {
        artifacts["authSecretName"] = server.secret_name().into();
    }
    artifacts
}

fn container(server: &ExportedServer) -> Json {
    let mut container = pod::container(server, "server", PORT);
    // The name that the chart's monitor of pods looks for.
    container["ports"][0]["name"] = "metrics".into();
    container["modelCommand"] = "custom".into();
    container["mountModelVolume"] = matches!(server.model, ModelPlace::Hub(_)).into();
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        if let Some(value) = variable.get_mut("value") {
            *value = value.as_str().map(literal).unwrap_or_default().into();
        }
    }
    if let Some(variables) = container["env"].as_array_mut() {
        // The chart itself adds this one.
        variables.retain(|variable| variable["name"] != HUB_TOKEN);
    }
    container
}

/// Escapes a text that the chart renders as a template.
fn literal(text: &str) -> String {
    text.replace("{{", "{{ \"{{\" }}")
}
