//! Parts of pods of Kubernetes, which several formats share.

use serde_json::{Map, Value as Json, json};

use super::word::{ServerWord, doubled_dollars};
use super::{ExportedServer, ModelPlace};

/// Seconds between two requests of a probe.
const PERIOD_S: u64 = 10;

/// A server that is busy answers the health page late.
const TIMEOUT_S: u64 = 10;

/// The name of the volume with the shared memory.
const SHARED_MEMORY: &str = "shm";

/// The name of the volume with the model.
const MODEL: &str = "model";

/// Returns the container of the server. `port` is the port that it listens on.
pub(super) fn container(server: &ExportedServer, name: &str, port: u16) -> Json {
    let args: Vec<_> = server.words_at(port).iter().map(ServerWord::in_pod).collect();
    let mut container = json!({
        "name": name,
        "image": server.image,
        "command": server.starts.in_image,
        "args": args,
        "ports": [{"name": "http", "containerPort": port}],
        "volumeMounts": volume_mounts(server),
    });
    insert_list(&mut container, "env", variables(server));
    if let Some(resources) = resources(server) {
        container["resources"] = resources;
    }
    for (name, failures) in probes(server) {
        container[name] = probe(server, failures, port);
    }
    container
}

/// Returns the names of the probes, and the number of failures until each has an effect.
pub(super) fn probes(server: &ExportedServer) -> [(&'static str, u64); 3] {
    [("startupProbe", startup_failures(server)), ("readinessProbe", 3), ("livenessProbe", 6)]
}

/// Returns the number of failures of the startup probe within the allowed start-up.
pub(super) fn startup_failures(server: &ExportedServer) -> u64 {
    server.startup_budget_s.div_ceil(PERIOD_S)
}

/// Returns a probe of the health page, or of the port without one.
pub(super) fn probe(server: &ExportedServer, failures: u64, port: u16) -> Json {
    let mut probe = startup_override(failures);
    probe["timeoutSeconds"] = TIMEOUT_S.into();
    match &server.health {
        Some(path) => probe["httpGet"] = json!({"path": path, "port": port}),
        None => probe["tcpSocket"] = json!({"port": port}),
    }
    probe
}

/// Returns the part of a probe that replaces the allowed time in a template.
pub(super) fn startup_override(failures: u64) -> Json {
    json!({"periodSeconds": PERIOD_S, "failureThreshold": failures})
}

/// Returns the limits of a container, which are its requests as well. `None` without GPUs.
pub(super) fn resources(server: &ExportedServer) -> Option<Json> {
    (server.gpus > 0).then(|| json!({"limits": {"nvidia.com/gpu": server.gpus}}))
}

/// Returns the environment variables. Secrets come first, because later variables and arguments may refer to them.
pub(super) fn variables(server: &ExportedServer) -> Vec<Json> {
    let secret = server.secret_name();
    let secrets = server
        .secrets
        .iter()
        .map(|name| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}));
    let plain = server.env.iter().map(|(name, value)| json!({"name": name, "value": doubled_dollars(value)}));
    secrets.chain(plain).collect()
}

/// Returns the volume with the shared memory. Processes of tensor parallelism exchange data through it.
pub(super) fn shared_memory(server: &ExportedServer, name: &str) -> Json {
    json!({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": format!("{}Gi", server.shared_memory_gib)}})
}

/// Returns the volumes of the shared memory and of a model that is a directory.
pub(super) fn volumes(server: &ExportedServer) -> Vec<Json> {
    std::iter::once(shared_memory(server, SHARED_MEMORY)).chain(model_volume(server)).collect()
}

pub(super) fn volume_mounts(server: &ExportedServer) -> Vec<Json> {
    let shared = json!({"name": SHARED_MEMORY, "mountPath": "/dev/shm"});
    std::iter::once(shared).chain(model_mount(server)).collect()
}

pub(super) fn model_volume(server: &ExportedServer) -> Option<Json> {
    let ModelPlace::Local(path) = &server.model else { return None };
    Some(json!({"name": MODEL, "hostPath": {"path": path}}))
}

pub(super) fn model_mount(server: &ExportedServer) -> Option<Json> {
    let ModelPlace::Local(path) = &server.model else { return None };
    Some(json!({"name": MODEL, "mountPath": path, "readOnly": true}))
}

/// Sets a key to a list, unless the list is empty.
pub(super) fn insert_list(object: &mut Json, key: &str, list: Vec<Json>) {
    if !list.is_empty() {
        object.as_object_mut().map(|object: &mut Map<String, Json>| object.insert(key.to_owned(), Json::Array(list)));
    }
}
