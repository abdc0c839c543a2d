//! Tests of the formats of containers: the written server is read back.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::ContainerError;
use super::server::ExportedServer;
use crate::config::Config;
use crate::deployment::{Deployment, read_deployment_text};
use crate::export::tests::{example, scored};
use crate::export::{ExportError, ExportedTrial, find};
use crate::facts::{TrialContext, TrialDevices};
use crate::store::ScoredTrial;
use crate::trial::{CommandLine, LaunchCommand, REDACTED};

/// Arguments with characters of every format.
const DIFFICULT: [&str; 12] = [
    "--speculative-config",
    r#"{"method": "ngram", "num_speculative_tokens": 3, "a": "it's $HOME $(PATH) ${X:-y} $$"}"#,
    "--served-model-name",
    "my model",
    "no",
    "1e3",
    "- a: #b",
    "--tensor-parallel-size",
    "4",
    "--pipeline-parallel-size",
    "2",
    "--enforce-eager",
];

/// Returns a trial that was launched with a configuration and further arguments.
fn launched(model: &str, config: &Config, arguments: &[&str]) -> ScoredTrial {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let table = crate::engines::default_engine().flag_table("0.32.0".parse().unwrap()).unwrap();
    let address = words(&["--host", "127.0.0.1", "--port", "23456"]);
    let flags = table.render(config).unwrap();
    let line = CommandLine::from_parts(words(&["vllm", "serve"]), model, flags, words(arguments), address);
    let env = [("HF_TOKEN", "hf_x"), ("GREETING", "it's $5 {{ now }}"), ("CUDA_VISIBLE_DEVICES", "3")];
    let env: BTreeMap<_, _> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut scored = scored();
    scored.trial.proposal.config = config.clone();
    scored.trial.launch = LaunchCommand::redacted(&line, env);
    scored
}

fn export(format: &str, scored: &ScoredTrial) -> String {
    let report = example("chat");
    find(format).unwrap().export(&ExportedTrial::without_results(&report, scored)).unwrap()
}

/// Returns the documents of a YAML text.
fn documents(yaml: &str) -> Vec<Json> {
    let documents = <saphyr::Yaml<'_> as saphyr::LoadableYamlNode<'_>>::load_from_str(yaml).unwrap();
    documents.iter().map(json).collect()
}

fn json(yaml: &saphyr::Yaml<'_>) -> Json {
    if let Some(list) = yaml.as_vec() {
        return list.iter().map(json).collect();
    }
    if let Some(map) = yaml.as_mapping() {
        return map.iter().map(|(key, value)| (key.as_str().unwrap().to_owned(), json(value))).collect();
    }
    let number = yaml.as_integer().map(Json::from).or_else(|| yaml.as_floating_point().map(Json::from));
    yaml.as_bool().map(Json::from).or(number).or_else(|| yaml.as_str().map(Json::from)).unwrap_or(Json::Null)
}

fn texts(list: &Json) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn read_back(format: &str, file: &str, scored: &ScoredTrial) -> Deployment {
    let text = export(format, scored);
    read_deployment_text(file, &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn an_exported_server_is_read_back_with_its_model_flags_and_variables() {
    let config = Config::new().with("max-num-seqs", 64_i64).with("enable-prefix-caching", false).with("dtype", "auto");
    for model in ["org/model", "/models/my $model"] {
        let trial = launched(model, &config, &DIFFICULT);
        let expected = trial.trial.launch.words().map(|words| [words.flags, words.arguments].concat()).unwrap();
        for (format, file) in [("compose", "compose.yaml"), ("k8s", "k8s.yaml"), ("docker", "run.sh")] {
            let read = read_back(format, file, &trial);
            assert_eq!(read.model.as_deref(), Some(model), "{format}");
            assert_eq!(read.args, expected, "{format}");
            assert_eq!(read.image.as_deref(), Some("vllm/vllm-openai:v0.32.0"), "{format}");
            assert_eq!(read.release, "0.32.0".parse().ok(), "{format}");
            assert_eq!(read.env["GREETING"], "it's $5 {{ now }}", "{format}");
            assert!(!read.env.contains_key("CUDA_VISIBLE_DEVICES"), "{format}");
        }
    }
}

#[test]
fn secrets_are_references_and_no_text() {
    let trial = launched("org/model", &Config::new(), &["--api-key", "sesame"]);
    for (format, argument) in [
        ("docker", "--api-key \"$API_KEY\""),
        ("compose", "${API_KEY:?"),
        ("k8s", "$(API_KEY)"),
        ("production-stack", "$(API_KEY)"),
        ("llm-d", "$(API_KEY)"),
        ("kserve", "--api-key \"$${API_KEY}\""),
    ] {
        let text = export(format, &trial);
        assert!(text.contains(argument), "{format}: {text}");
        assert!(!text.contains(REDACTED) && !text.contains("hf_x") && !text.contains("sesame"), "{format}: {text}");
        assert!(text.contains("HF_TOKEN"), "{format}: {text}");
    }
    let compose = &documents(&export("compose", &trial))[0];
    assert_eq!(compose["services"]["chat"]["environment"]["HF_TOKEN"], Json::Null);
    let deployment = &documents(&export("k8s", &trial))[0];
    let env = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    let secret = serde_json::json!({"name": "chat-secrets", "key": "API_KEY"});
    assert_eq!(env[0], serde_json::json!({"name": "API_KEY", "valueFrom": {"secretKeyRef": secret}}));
}

#[test]
fn gpus_follow_from_the_flags_and_processors_need_none() {
    let config = Config::new().with("tensor-parallel-size", 2_i64).with("data-parallel-size", 2_i64);
    let trial = launched("org/model", &config, &["--pipeline-parallel-size", "2"]);
    let report = example("chat");
    let exported = ExportedTrial::without_results(&report, &trial);
    let server = ExportedServer::of(&exported).unwrap();
    assert_eq!((server.gpus, server.shared_memory_gib), (8, 16));
    assert!(export("docker", &trial).contains("--gpus 8"));
    let device = TrialDevices { name: Some("cpu".to_owned()), ..TrialDevices::default() };
    let context = TrialContext { device, ..TrialContext::default() };
    let exported = ExportedTrial { context: Some(&context), ..exported };
    for format in ["docker", "compose", "k8s", "production-stack", "llm-d", "kserve"] {
        let text = find(format).unwrap().export(&exported).unwrap();
        assert!(!text.contains("nvidia") && !text.contains("--gpus"), "{format}: {text}");
    }
    let mut on_processors = launched("org/model", &Config::new(), &[]);
    on_processors.trial.engine_version = Some("0.32.0+cpu".to_owned());
    let text = export("compose", &on_processors);
    assert!(text.contains("vllm/vllm-openai-cpu:v0.32.0") && !text.contains("nvidia"), "{text}");
}

#[test]
fn a_chart_gets_the_flags_that_it_knows_as_values_and_all_others_as_words() {
    let config = Config::new()
        .with("max-num-seqs", 64_i64)
        .with("gpu-memory-utilization", 0.85)
        .with("enable-prefix-caching", false)
        .with("block-size", 32_i64);
    let chart = |config: &Config, arguments: &[&str]| {
        let values = documents(&export("production-stack", &launched("org/model", config, arguments))).remove(0);
        values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"].clone()
    };
    let expected = serde_json::json!({
        "enablePrefixCaching": false,
        "extraArgs": ["--block-size", "32", "--seed", "1"],
        "gpuMemoryUtilization": 0.85,
        "maxNumSeqs": 64,
        "tensorParallelSize": 1,
    });
    assert_eq!(chart(&config, &["--seed", "1"]), expected);
    // The chart switches prefix caching off without its key.
    assert_eq!(chart(&Config::new(), &[])["enablePrefixCaching"], true);
    assert_eq!(chart(&Config::new(), &["--no-enable-prefix-caching"])["enablePrefixCaching"], false);
    assert_eq!(chart(&Config::new(), &["--tensor-parallel-size", "4"])["tensorParallelSize"], 4);
}

#[test]
fn arguments_of_the_serving_template_are_words_of_a_shell() {
    let trial = launched("org/model", &Config::new(), &DIFFICULT);
    let service = &documents(&export("kserve", &trial))[1];
    let container = &service["spec"]["template"]["containers"][0];
    let variables = container["env"].as_array().unwrap();
    let value = variables.iter().find(|variable| variable["name"] == "VLLM_ADDITIONAL_ARGS").unwrap();
    // Kubernetes reads two dollar signs as one.
    let text = value["value"].as_str().unwrap().replace("$$", "$");
    assert_eq!(shlex::split(&text).unwrap(), DIFFICULT);
    assert_eq!(service["spec"]["model"]["name"], "my");
}

#[test]
fn a_model_that_is_a_directory_is_mounted() {
    let trial = launched("/models/qwen,3", &Config::new(), &["--lora-modules", "sql=/adapters/sql"]);
    let text = export("docker", &trial);
    assert!(text.contains("'type=bind,\"source=/models/qwen,3\",\"target=/models/qwen,3\",readonly'"), "{text}");
    assert!(text.contains("must be mounted or replaced: /adapters/sql\n"), "{text}");
    let documents = documents(&export("kserve", &trial));
    let volumes = &documents[0]["spec"]["predictor"]["volumes"];
    assert_eq!(volumes[1]["hostPath"]["path"], "/models/qwen,3");
    assert!(documents[1]["spec"]["model"]["uri"].as_str().unwrap().starts_with("pvc://REPLACE-"));
}

#[test]
fn a_launch_through_docker_keeps_its_image_and_names_its_wrapper() {
    let mut trial = launched("org/model", &Config::new(), &["--host", "0.0.0.0", "--port", "9000"]);
    let program = ["docker", "run", "registry/vllm-openai:mine"];
    trial.trial.launch.command.splice(0..2, program.map(str::to_owned));
    let parts = trial.trial.launch.parts.unwrap();
    trial.trial.launch.parts = Some(crate::trial::CommandParts { program: program.len(), ..parts });
    let text = export("k8s", &trial);
    assert!(text.contains("image: registry/vllm-openai:mine"), "{text}");
    assert!(text.contains("wrapper, which is not part of this file: docker run registry/vllm-openai:mine"), "{text}");
    assert!(!text.contains("9000"), "{text}");
}

#[test]
fn a_launch_that_is_no_container_is_refused_with_the_next_step() {
    let report = example("chat");
    let refused = |scored: &ScoredTrial, kind: &str| {
        let mut report = report.clone();
        report.study.definition["engine"]["kind"] = kind.into();
        let exported = ExportedTrial::without_results(&report, scored);
        match find("k8s").unwrap().export(&exported) {
            Err(ExportError::Container(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let known = launched("org/model", &Config::new(), &[]);
    let mut without_parts = known.clone();
    without_parts.trial.launch.parts = None;
    assert!(matches!(refused(&without_parts, "vllm"), ContainerError::NoParts(7)));
    assert!(matches!(refused(&known, "command"), ContainerError::NoParts(7)));
    let error = refused(&known, "sim");
    assert_eq!(error.to_string(), "the engine \"sim\", version 0.32.0, has no known container image");
    assert!(error.hint().contains("--image"));
    let mut built = known;
    built.trial.engine_version = Some("0.1.dev5+g0123abc".to_owned());
    assert!(matches!(refused(&built, "vllm"), ContainerError::NoImage { .. }));
}

#[test]
fn a_simulated_launch_with_an_image_has_no_arguments_of_the_simulation() {
    let trial = launched("org/model", &Config::new(), &["--sim-seed", "1", "--seed", "2", "--sim-device=l4"]);
    let mut report = example("chat");
    report.study.definition["engine"]["kind"] = "sim".into();
    let exported = ExportedTrial { image: Some("x/y:1"), ..ExportedTrial::without_results(&report, &trial) };
    let text = find("compose").unwrap().export(&exported).unwrap();
    assert_eq!(
        read_deployment_text("a.yaml", &text.replace("x/y:1", "vllm/vllm-openai:v1")).unwrap().args,
        ["--seed", "2"]
    );
}

#[test]
fn keys_of_an_import_are_no_flags() {
    let mut trial = launched("org/model", &Config::new().with("max-num-seqs", 8_i64), &[]);
    trial.trial.proposal.config.set("import.device", "h100");
    let values = documents(&export("production-stack", &trial)).remove(0);
    assert_eq!(values["servingEngineSpec"]["modelSpec"][0]["vllmConfig"]["maxNumSeqs"], 8);
    assert!(
        !texts(&documents(&export("k8s", &trial))[0]["spec"]["template"]["spec"]["containers"][0]["args"])
            .iter()
            .any(|word| word.contains("import"))
    );
}
