//! Tests of Compose files, Kubernetes manifests and configuration files, in the forms that documents of users have.

use super::tests::{env, shown};
use super::*;

fn read(text: &str) -> Result<Deployment, DeploymentError> {
    read_deployment_text("deploy.yaml", text)
}

const COMPOSE: &str = r#"
x-common: &common
  image: vllm/vllm-openai:${TAG:-v0.11.0}
  environment: &env
    - HF_TOKEN=hf-secret-value-1234
    - VLLM_USE_V1=1
  ipc: host
services:
  chat:
    <<: *common
    command: >
      --model ${MODEL:-org/m} --max-num-seqs 64
      --hf-overrides '{"a": "$$b"}'
      --port 8000
    deploy:
      resources:
        reservations:
          devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]
  router:
    image: nginx
    command: ["--port", "80"]
"#;

#[test]
fn a_compose_file_with_defaults_anchors_and_escapes_is_read() {
    let deployment = read(COMPOSE).unwrap();
    assert_eq!(shown(&deployment), r#"org/m --max-num-seqs 64 --hf-overrides {"a": "$b"}"#);
    assert_eq!(env(&deployment), "HF_TOKEN=(redacted) VLLM_USE_V1=1");
    assert_eq!(deployment.source.to_string(), "deploy.yaml:12 (chat)");
    assert_eq!(deployment.source.kind, DeploymentKind::Compose);
    assert_eq!(deployment.release, Some(EngineVersion::new(0, 11, 0)));
    let notes = deployment.notes.join("\n");
    assert!(notes.contains("`MODEL` is assumed to be unset"), "{notes}");
    assert!(!format!("{deployment:?}").contains("hf-secret-value"));
}

#[test]
fn compose_services_of_other_forms_are_read() {
    for (service, expected, variables) in [
        ("image: img\n    entrypoint: [vllm, serve]\n    command: [org/m, --seed, 1]", "org/m --seed 1", ""),
        ("image: img\n    command: vllm serve org/m --seed 1", "org/m --seed 1", ""),
        (
            "build: .\n    command: bash -c \"vllm serve $$MODEL\"\n    environment: {MODEL: org/m}",
            "org/m",
            "MODEL=org/m",
        ),
        (
            "image: img\n    entrypoint: [\"/bin/sh\", \"-c\"]\n    command:\n    - |\n      export A=1\n      vllm \
             serve org/m \\\n        --seed 1",
            "org/m --seed 1",
            "A=1",
        ),
        (
            "image: ghcr.io/acme/my-vllm:1\n    command: [--model, org/m, --max-model-len, '4096']\n    environment: \
             {N: 1}",
            "org/m --max-model-len 4096",
            "N=1",
        ),
        (
            "image: vllm/vllm-openai\n    command:\n    - org/m\n    - --enable-prefix-caching",
            "org/m --enable-prefix-caching",
            "",
        ),
        ("image: vllm/vllm-openai\n    command: --model org/m\n    environment: [A]\n    env_file: .env", "org/m", ""),
    ] {
        let deployment = read(&format!("services:\n  a:\n    {service}\n"));
        let deployment = deployment.unwrap_or_else(|error| panic!("{service}: {error}"));
        assert_eq!((shown(&deployment).as_str(), env(&deployment).as_str()), (expected, variables), "{service}");
    }
}

#[test]
fn a_compose_file_uses_the_variables_in_the_file_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path(".env"), "MODEL=org/m\nHF_TOKEN=abcdefghijkl\n").unwrap();
    let text = "services:\n  a:\n    image: vllm/vllm-openai\n    command: --model ${MODEL} --hf-token ${HF_TOKEN}\n    \
                environment: [HF_TOKEN]\n";
    std::fs::write(path("compose.yaml"), text).unwrap();
    let deployment = read_deployment(&path("compose.yaml")).unwrap();
    assert_eq!((shown(&deployment).as_str(), env(&deployment).as_str()), ("org/m", "HF_TOKEN=(redacted)"));
    std::fs::remove_file(path(".env")).unwrap();
    let error = read_deployment(&path("compose.yaml")).unwrap_err();
    let expected = "--model: the value of the variable `MODEL` is neither in the file nor in `.env` beside it";
    assert_eq!((error.line, error.problem.as_str()), (Some(4), expected));
}

const DEPLOYMENT: &str = r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: cache}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {LEN: "4096"}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: mistral
spec:
  template:
    spec:
      initContainers:
      - {name: load, image: busybox, command: [sh, -c, "echo vllm serve x"]}
      containers:
      - name: server
        image: vllm/vllm-openai:v0.10.2
        command: ["/bin/sh", "-c"]
        args: [
          "vllm serve $(MODEL) --trust-remote-code --max-model-len $LEN --port 8000"
        ]
        env:
        - name: HUGGING_FACE_HUB_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
        - {name: MODEL, value: org/m}
        - name: LEN
          valueFrom: {configMapKeyRef: {name: settings, key: LEN}}
        envFrom:
        - secretRef: {name: more}
---
apiVersion: v1
kind: Service
metadata: {name: mistral}
spec: {ports: [{port: 80}]}
"#;

#[test]
fn a_kubernetes_manifest_of_several_documents_is_read() {
    let deployment = read(DEPLOYMENT).unwrap();
    assert_eq!(shown(&deployment), "org/m --trust-remote-code --max-model-len 4096");
    assert_eq!(env(&deployment), "HUGGING_FACE_HUB_TOKEN=(redacted) LEN=4096 MODEL=org/m");
    assert_eq!(deployment.source.name.as_deref(), Some("mistral/server"));
    assert_eq!(deployment.source.kind, DeploymentKind::Kubernetes);
    assert!(deployment.notes.contains(&"the variables of the secret `more` are not in the file".to_owned()));
}

const LIST: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: StatefulSet
  metadata: {name: a}
  spec:
    template:
      spec:
        containers: [{name: c, image: "vllm/vllm-openai:v0.9.0", args: [--model, org/m, --seed, 1]}]
"#;

/// As the chart of vLLM's production stack renders it.
const STACK: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm-opt125m-deployment-vllm}
spec:
  template:
    spec:
      containers:
        - name: "vllm"
          image: "lmcache/vllm-openai:2025-05-05-v1"
          command:
          - "vllm"
          - "serve"
          - "org/m"
          - "--host"
          - "0.0.0.0"
          - "--port"
          - "8000"
          - "--enable-chunked-prefill"
          - "--max-num-seqs"
          - "64"
          env:
          - {name: LMCACHE_USE_EXPERIMENTAL, value: "True"}
"#;

const POD: &str = r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"image": "x",
  "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"], "args": ["--model=$(M)"],
  "env": [{"name": "M", "value": "org/m"}]}]}}"#;

const INFERENCE_SERVICE: &str = r"
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: q}
spec:
  predictor:
    containers:
    - name: kserve-container
      image: vllm/vllm-openai:latest
      args: ['--model', org/m]
";

/// As the documents of vLLM start a server on several hosts.
const LEADER: &str = r"
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec:
  leaderWorkerTemplate:
    leaderTemplate:
      spec:
        containers:
        - image: vllm/vllm-openai
          command: [bash, -c]
          args:
          - |
            M=org/m
            bash leader.sh --ray_cluster_size=$(RAY_SIZE);
            python3 -m vllm.entrypoints.openai.api_server --port 8080 --model $M --seed 1
";

#[test]
fn manifests_of_other_kinds_are_read() {
    for (text, expected) in [
        (LIST, "org/m --seed 1"),
        (STACK, "org/m --enable-chunked-prefill --max-num-seqs 64"),
        (POD, "org/m"),
        (INFERENCE_SERVICE, "org/m"),
        (LEADER, "org/m --seed 1"),
    ] {
        let deployment = read(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(shown(&deployment), expected, "{text}");
    }
}

#[test]
fn one_of_several_servers_is_selected_by_name() {
    let service =
        |name: &str, model: &str| format!("  {name}: {{image: vllm/vllm-openai, command: --model {model}}}\n");
    let text = format!("services:\n{}{}", service("a", "x"), service("b", "y"));
    let error = read(&text).unwrap_err();
    assert_eq!(error.to_string(), "deploy.yaml: 2 servers are started here; their names are a, b");
    assert_eq!(error.hint.as_deref(), Some("choose one, for instance deploy.yaml#a"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("compose.yml");
    std::fs::write(&file, text).unwrap();
    let deployment = read_deployment(&format!("{}#b", file.display())).unwrap();
    assert_eq!(deployment.model.as_deref(), Some("y"));
}

#[test]
fn manifests_that_cannot_be_read_are_refused_with_the_line() {
    let pod = |args: &str| {
        let begin = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n";
        format!("{begin}    args: {args}\n")
    };
    let service = |body: &str| format!("services:\n  a:\n    image: x\n    {body}\n");
    for (text, line, problem) in [
        ("services:\n  a: [\n".to_owned(), None, "not valid YAML: "),
        ("{{- if .Values.x }}\nkind: Pod\n{{- end }}\n".to_owned(), None, "is a template with `{{ ... }}`"),
        (pod("['--model={{ .Values.model }}']"), Some(6), "is a template with `{{ ... }}`"),
        (pod("['--model=$(M)']"), Some(6), "--model: `$(M)` is not a variable of the container"),
        ("servingEngineSpec:\n  modelSpec: []\n".to_owned(), Some(1), "contains the values of a Helm chart"),
        (service(""), None, "nothing here starts vLLM"),
        ("color: red\n".to_owned(), None, "nothing here starts vLLM"),
        ("- a\n".to_owned(), None, "nothing here starts vLLM"),
        (String::new(), None, "nothing here starts vLLM"),
        ("seed: 1\nlora-modules: [{name: a}]\n".to_owned(), Some(2), "lora-modules: vLLM cannot read a list"),
        (service("command: \"a 'b\""), Some(4), "a quote of the command is never closed"),
        (service("command: {a: b}"), Some(4), "the command is a mapping"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.problem.starts_with(problem), "{text}: {error}");
        assert!(line.is_none() || error.line == line, "{text}: {error}");
    }
    let error = read("services:\n  a: [\n").unwrap_err();
    assert!(error.line.is_some(), "{error}");
}
