//! Exports a Deployment and a Service of Kubernetes.

use serde_json::json;

use super::{ExportedServer, HUB_CACHE, PORT, pod};
use crate::export::{ExportError, ExportedTrial, Exporter, yaml::write_yaml};

/// The name of the container in its pod.
const CONTAINER: &str = "server";

pub(in crate::export) struct KubernetesExporter;

impl Exporter for KubernetesExporter {
    fn name(&self) -> &'static str {
        "k8s"
    }

    fn summary(&self) -> &'static str {
        "a Deployment and a Service of Kubernetes, with probes that allow for the measured start-up"
    }

    fn has_image(&self) -> bool {
        true
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let server = ExportedServer::of(winner)?;
        let labels = json!({"app.kubernetes.io/name": server.name});
        let metadata = json!({"name": server.name, "labels": labels});
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                // A rolling update would need a second set of GPUs.
                "strategy": {"type": "Recreate"},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "containers": [pod::container(&server, CONTAINER, PORT)],
                        // Variables of services can have the names of the engine's own ones, such as its port.
                        "enableServiceLinks": false,
                        "volumes": pod::volumes(&server),
                    },
                },
            },
        });
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
        });
        let mut comments = server.comments.clone();
        let volume = format!("mount a persistent volume at {HUB_CACHE}");
        comments.extend([server.startup_comment(), server.model_comment(&volume)]);
        comments.extend(server.secret_comment());
        write_yaml(&comments, &[deployment, service])
    }
}
