//! Exports an `InferenceService` and an `LLMInferenceService` of KServe.

use serde_json::{Value as Json, json};

use super::word::{ServerWord, doubled_dollars};
use super::{ContainerError, ExportedServer, HUB_CACHE, ModelPlace, pod};
use crate::export::{ExportError, ExportedTrial, Exporter, quote, yaml::write_yaml};

/// The port of an `InferenceService` if it names none.
const PORT: u16 = 8080;

/// The name that KServe gives to the container of an `InferenceService`.
const CONTAINER: &str = "kserve-container";

/// The name of the container in KServe's template of an `LLMInferenceService`.
const TEMPLATE_CONTAINER: &str = "main";

/// The name of the volume with the shared memory in that template.
const TEMPLATE_SHARED_MEMORY: &str = "dshm";

/// The claim of a model that is a directory, which only the user can create.
const CLAIM: &str = "REPLACE-WITH-A-CLAIM";

pub(in crate::export) struct KserveExporter;

impl Exporter for KserveExporter {
    fn name(&self) -> &'static str {
        "kserve"
    }

    fn summary(&self) -> &'static str {
        "an InferenceService and an LLMInferenceService of KServe; apply one of the two"
    }

    fn has_image(&self) -> bool {
        true
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let server = ExportedServer::of(winner)?;
        let kind = server.engine().kind().to_owned();
        let projects = server.engine().serving_projects();
        let projects = projects.ok_or(ContainerError::NotServed { project: "KServe's LLMInferenceService", kind })?;
        let mut comments = server.comments.clone();
        comments.push("Two ways to deploy the same server. Apply one of the two documents.".to_owned());
        let volume = format!("mount a persistent volume at {HUB_CACHE} (InferenceService)");
        comments.extend([server.startup_comment(), server.model_comment(&volume)]);
        if let ModelPlace::Local(path) = &server.model {
            let text = format!("In the LLMInferenceService, replace {CLAIM} by a volume claim that contains {path}.");
            comments.push(text);
        }
        comments.extend(server.secret_comment());
        write_yaml(&comments, &[inference_service(&server), llm_service(&server, projects.arguments_variable)])
    }
}

/// Returns the service with the container as it was measured.
fn inference_service(server: &ExportedServer) -> Json {
    json!({
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": server.name,
            // Knative refuses volumes of the node, and ends a start that takes more than ten minutes.
            "annotations": {"serving.kserve.io/deploymentMode": "RawDeployment"},
        },
        "spec": {
            "predictor": {
                "minReplicas": 1,
                "maxReplicas": 1,
                "enableServiceLinks": false,
                "containers": [pod::container(server, CONTAINER, PORT)],
                "volumes": pod::volumes(server),
            },
        },
    })
}

/// Returns the service that KServe's template starts. The template has the address, and a place for further arguments
/// in the command of a shell.
fn llm_service(server: &ExportedServer, arguments_variable: &str) -> Json {
    let mut env = pod::variables(server);
    env.push(json!({"name": arguments_variable, "value": doubled_dollars(&shell_arguments(server))}));
    let mut container = json!({
        "name": TEMPLATE_CONTAINER,
        "image": server.image,
        "env": env,
        // The template requires another user than root, which is the user of the engine's image.
        "securityContext": {"runAsNonRoot": false},
        "startupProbe": pod::startup_override(pod::startup_failures(server)),
    });
    if let Some(resources) = pod::resources(server) {
        container["resources"] = resources;
    }
    json!({
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": server.name},
        "spec": {
            "model": {"uri": model_uri(server), "name": server.served_name()},
            "replicas": 1,
            "router": {"route": {}},
            "template": {
                "containers": [container],
                "enableServiceLinks": false,
                "volumes": [pod::shared_memory(server, TEMPLATE_SHARED_MEMORY)],
            },
        },
    })
}

/// Returns the arguments as a part of a shell command, without model and address.
fn shell_arguments(server: &ExportedServer) -> String {
    let words = server.flags.iter().chain(&server.arguments);
    let word = |word: &ServerWord| word.render(quote, |name| format!("\"${{{name}}}\""));
    words.map(word).collect::<Vec<_>>().join(" ")
}

fn model_uri(server: &ExportedServer) -> String {
    match &server.model {
        ModelPlace::Hub(name) => format!("hf://{name}"),
        ModelPlace::Local(path) => format!("pvc://{CLAIM}/{}", path.trim_start_matches('/')),
    }
}
