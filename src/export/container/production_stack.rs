//! Exports Helm values of vLLM's production stack.

use serde_json::{Map, Value as Json, json};

use super::word::{ServerWord, doubled_dollars};
use super::{ContainerError, ExportedServer, PORT, pod};
use crate::config::{Config, Value};
use crate::engine::ChartKey;
use crate::export::{ExportError, ExportedTrial, Exporter, yaml::write_yaml};
use crate::flag::FlagKind;

/// The flag whose key makes the chart mount shared memory.
const TENSOR_PARALLEL: &str = "tensor-parallel-size";

pub(in crate::export) struct ProductionStackExporter;

impl Exporter for ProductionStackExporter {
    fn name(&self) -> &'static str {
        "production-stack"
    }

    fn summary(&self) -> &'static str {
        "Helm values of vLLM's production stack, with the server as its one model"
    }

    fn has_image(&self) -> bool {
        true
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let server = ExportedServer::of(winner)?;
        let kind = server.engine().kind().to_owned();
        let projects = server.engine().serving_projects();
        let projects = projects.ok_or(ContainerError::NotServed { project: "the production stack", kind })?;
        let (repository, tag) = divide_image(&server.image);
        let mut model = json!({
            "name": server.name,
            "repository": repository,
            "tag": tag,
            "modelURL": doubled_dollars(server.model_word()),
            "replicaCount": 1,
            "shmSize": format!("{}Gi", server.shared_memory_gib),
            // Without this the chart requires requests of processors and memory.
            "resources": pod::resources(&server).unwrap_or_else(|| json!({"limits": {}, "requests": {}})),
        });
        model[projects.chart_group] = arguments(&server, projects.chart_keys);
        pod::insert_list(&mut model, "env", pod::variables(&server));
        pod::insert_list(&mut model, "extraVolumes", pod::model_volume(&server).into_iter().collect());
        pod::insert_list(&mut model, "extraVolumeMounts", pod::model_mount(&server).into_iter().collect());
        if server.gpus == 0 {
            // The chart's default is the class of NVIDIA's container runtime.
            model["runtimeClassName"] = "".into();
        }
        let mut engine = json!({"containerPort": PORT, "modelSpec": [model]});
        for (name, failures) in pod::probes(&server) {
            engine[name] = pod::probe(&server, failures, PORT);
        }
        let mut comments = server.comments.clone();
        comments
            .push("Values of the chart `vllm-stack` of https://vllm-project.github.io/production-stack:".to_owned());
        comments.push("helm install NAME vllm/vllm-stack -f THIS-FILE".to_owned());
        comments.extend([server.startup_comment(), server.model_comment("set pvcStorage, such as 50Gi, in modelSpec")]);
        comments.extend(server.secret_comment());
        write_yaml(&comments, &[json!({"servingEngineSpec": engine})])
    }
}

/// Returns the flags that have a key in the chart, and all other arguments in `extraArgs`.
fn arguments(server: &ExportedServer, keys: &[ChartKey]) -> Json {
    let (mut values, words) = values(server, keys);
    for ChartKey { flag, key, stated_default } in keys {
        if let Some(default) = stated_default.filter(|_| !values.contains_key(*key)) {
            let value = server.effective.get_bool(flag).unwrap_or_else(|| default(server.version()));
            values.insert((*key).to_owned(), value.into());
        }
        if *flag == TENSOR_PARALLEL {
            values.entry(*key).or_insert_with(|| server.size(TENSOR_PARALLEL).into());
        }
    }
    let extra: Vec<_> = words.iter().chain(&server.arguments).map(|word| Json::String(word.in_pod())).collect();
    let mut group = Json::Object(values);
    pod::insert_list(&mut group, "extraArgs", extra);
    group
}

/// Returns the values of flags with a key, and the words of the other flags. If the release does not render the
/// configuration as it was launched, no flag gets a key.
fn values(server: &ExportedServer, keys: &[ChartKey]) -> (Map<String, Json>, Vec<ServerWord>) {
    let table = server.engine().flag_table(server.version());
    let (mut values, mut rest) = (Map::new(), Config::new());
    for (name, value) in server.config.iter() {
        let key = keys.iter().find(|key| key.flag == name);
        let kind = table.and_then(|table| table.find(name)).map(|flag| flag.kind());
        match key.and_then(|key| Some((key.key, chart_value(kind?, value)?))) {
            Some((key, value)) => drop(values.insert(key.to_owned(), value)),
            None => rest.set(name, value.clone()),
        }
    }
    let render = |config: &Config| {
        let words = table?.render(config).ok()?;
        Some(ServerWord::read_all(&words).0)
    };
    match (render(&server.config), render(&rest)) {
        (Some(all), Some(rest)) if all == server.flags => (values, rest),
        _ => (Map::new(), server.flags.clone()),
    }
}

/// Returns a value as the chart's schema has it. Other forms of a number, such as `auto`, and words with characters of
/// Kubernetes have none.
fn chart_value(kind: FlagKind, value: &Value) -> Option<Json> {
    match (kind, value) {
        (FlagKind::Bool, Value::Bool(on)) => Some((*on).into()),
        (FlagKind::Int | FlagKind::Float, Value::Int(number)) => Some((*number).into()),
        (FlagKind::Float, Value::Float(number)) => Some((*number).into()),
        (FlagKind::Enum | FlagKind::String, Value::Text(text)) => {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| text.as_str().into())
        }
        _ => None,
    }
}

/// Divides an image into its repository and its tag, which the chart joins with a colon.
fn divide_image(image: &str) -> (&str, &str) {
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, tag),
        _ => (image, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_form_has_no_key_in_the_chart() {
        let value = |kind, value: Value| chart_value(kind, &value);
        assert_eq!(value(FlagKind::Int, 8_i64.into()), Some(8.into()));
        assert_eq!(value(FlagKind::Int, "auto".into()), None);
        assert_eq!(value(FlagKind::Float, 1_i64.into()), Some(1.into()));
        assert_eq!(value(FlagKind::Enum, "auto".into()), Some("auto".into()));
        assert_eq!(value(FlagKind::Enum, "$(X)".into()), None);
        assert_eq!(value(FlagKind::Bool, false.into()), Some(false.into()));
    }

    #[test]
    fn an_image_is_divided_at_its_tag() {
        for (image, expected) in [
            ("vllm/vllm-openai:v0.32.0", ("vllm/vllm-openai", "v0.32.0")),
            ("registry:5000/x/engine", ("registry:5000/x/engine", "latest")),
            ("x/engine@sha256:00ff", ("x/engine@sha256", "00ff")),
        ] {
            assert_eq!(divide_image(image), expected);
        }
    }
}
