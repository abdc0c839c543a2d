//! Tests of command lines and scripts, in the forms that documents of users have.

use proptest::prelude::*;

use super::*;
use crate::engine::Engine;
use crate::trial::REDACTED;

pub(super) fn engine() -> std::sync::Arc<dyn Engine> {
    engines::built_in("vllm").unwrap()
}

fn line(text: &str) -> Result<Deployment, DeploymentError> {
    read_deployment(text)
}

fn script(text: &str) -> Result<Deployment, DeploymentError> {
    read_deployment_text("run.sh", text)
}

/// Returns the model and the flags as one text.
pub(super) fn shown(deployment: &Deployment) -> String {
    let words = deployment.model.iter().chain(&deployment.args);
    words.map(String::as_str).collect::<Vec<_>>().join(" ")
}

pub(super) fn env(deployment: &Deployment) -> String {
    deployment.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn command_lines_of_documents_are_read() {
    for (text, wrapper, program, expected) in [
        ("vllm serve org/m --max-num-seqs 64 --port 8000", "", "vllm serve", "org/m --max-num-seqs 64"),
        ("vllm serve --max-num-seqs 64 org/m", "", "vllm serve", "org/m --max-num-seqs 64"),
        ("vllm serve --enforce-eager org/m --seed=1", "", "vllm serve", "org/m --enforce-eager --seed=1"),
        ("vllm serve --model org/m -tp 2", "", "vllm serve", "org/m -tp 2"),
        ("vllm serve org/m -O3 --host 0.0.0.0", "", "vllm serve", "org/m -O3"),
        ("$ vllm serve org/m", "", "vllm serve", "org/m"),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve org/m --dtype auto", "", "vllm serve", "org/m --dtype auto"),
        (
            "python -m vllm.entrypoints.openai.api_server --model org/m --use-v2-block-manager --seed 1",
            "",
            "python -m vllm.entrypoints.openai.api_server",
            "org/m --use-v2-block-manager --seed 1",
        ),
        (
            "python3 -u -m vllm.entrypoints.cli.main serve org/m",
            "",
            "python3 -u -m vllm.entrypoints.cli.main serve",
            "org/m",
        ),
        ("numactl -N 0 -m 0 /opt/bin/vllm serve org/m", "numactl -N 0 -m 0", "/opt/bin/vllm serve", "org/m"),
        ("taskset -c 0-7 vllm serve org/m", "taskset -c 0-7", "vllm serve", "org/m"),
        ("srun --gres=gpu:1 --ntasks 1 vllm serve org/m", "srun --gres=gpu:1 --ntasks 1", "vllm serve", "org/m"),
        ("nohup env VLLM_USE_V1=1 vllm serve org/m > log 2>&1 &", "", "vllm serve", "org/m"),
        ("exec uv run vllm serve org/m 2>&1 | tee -a log", "uv run", "vllm serve", "org/m"),
        ("cd /srv && vllm serve org/m >/dev/null", "", "vllm serve", "org/m"),
        ("bash -lc 'source /venv/bin/activate && vllm serve org/m --seed 1'", "", "vllm serve", "org/m --seed 1"),
        ("tmux new-session -d -s llm \"vllm serve org/m --seed 1\"", "", "vllm serve", "org/m --seed 1"),
        ("vllm serve org/m --port 8000 >> >(tee log) 2> >(cat)", "", "vllm serve", "org/m"),
        (
            r#"vllm serve org/m --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'"#,
            "",
            "vllm serve",
            r#"org/m --speculative-config {"method": "ngram", "num_speculative_tokens": 3}"#,
        ),
        (
            r#"vllm serve org/m --hf-overrides "{\"a\": \"\$b\"}" --compilation-config.level 3"#,
            "",
            "vllm serve",
            r#"org/m --hf-overrides {"a": "$b"} --compilation-config.level 3"#,
        ),
        (
            "docker run --runtime nvidia --gpus all -v ./models:/models \\\n  --env \
             HF_HUB_OFFLINE=1 -p 8000:8000 --ipc=host vllm/vllm-openai:v0.11.0 --model org/m --seed 1",
            "",
            "vllm serve",
            "org/m --seed 1",
        ),
        ("docker run $OPTS vllm/vllm-openai org/m --seed 1", "", "vllm serve", "org/m --seed 1"),
        ("docker run -it --entrypoint vllm img:1 serve org/m", "", "vllm serve", "org/m"),
        ("docker run --rm rocm/vllm-dev:nightly bash -c 'vllm serve org/m'", "", "vllm serve", "org/m"),
        ("apptainer exec --nv v.sif vllm serve org/m", "apptainer exec --nv v.sif", "vllm serve", "org/m"),
    ] {
        let deployment = line(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let found = (deployment.wrapper.join(" "), deployment.program.join(" "), shown(&deployment));
        assert_eq!(found, (wrapper.to_owned(), program.to_owned(), expected.to_owned()), "{text}");
        assert_eq!(deployment.source.kind, DeploymentKind::CommandLine);
    }
}

#[test]
fn an_image_gives_the_release_and_its_variables() {
    let deployment = line("docker run -e VLLM_USE_V1=1 vllm/vllm-openai:v0.10.2-x86_64 --model org/m").unwrap();
    assert_eq!(deployment.image.as_deref(), Some("vllm/vllm-openai:v0.10.2-x86_64"));
    assert_eq!(deployment.release, Some(EngineVersion::new(0, 10, 2)));
    assert_eq!(env(&deployment), "VLLM_USE_V1=1");
    let latest = line("docker run vllm/vllm-openai:latest --model org/m").unwrap();
    assert_eq!(latest.release, None);
    assert_eq!(latest.notes, ["the tag of the image vllm/vllm-openai:latest does not name a release of vLLM"]);
}

#[test]
fn scripts_with_variables_and_continuations_are_read() {
    let deployment = script(
        r#"#!/usr/bin/env bash
set -euo pipefail
# don't edit: it's generated
MODEL="org/m"           # the model
export VLLM_USE_V1=1 HF_HOME=/data/hf
TP=${TP:-2}
ARGS=(--max-num-seqs 64
      --enable-prefix-caching)   # more
ARGS+=(--seed 1)
EXTRA="--dtype auto"
EXTRA="$EXTRA --enforce-eager"
EXTRA+=" --block-size 16"
cat <<EOF
vllm serve wrong/model
EOF
if [ -n "${DEBUG:-}" ]; then
    set -x
fi
echo "starting vllm serve $MODEL"
exec vllm serve "$MODEL" \
    --tensor-parallel-size $TP \
    "${ARGS[@]}" \
    $EXTRA \
    --port "${PORT:-8000}" --host $(hostname -i) "$@" 2>&1 | tee "log-$(date +%s).txt"
"#,
    )
    .unwrap();
    let expected = "org/m --tensor-parallel-size 2 --max-num-seqs 64 --enable-prefix-caching --seed 1 --dtype auto \
                    --enforce-eager --block-size 16";
    let variables = "HF_HOME=/data/hf VLLM_USE_V1=1".to_owned();
    assert_eq!((shown(&deployment), env(&deployment)), (expected.to_owned(), variables));
    assert_eq!(deployment.source.to_string(), "run.sh:20");
    let notes = deployment.notes.join("\n");
    for part in ["`TP` is assumed to be unset", "further arguments of the script", "--host $(hostname -i) is left out"]
    {
        assert!(notes.contains(part), "{notes}");
    }
}

#[test]
fn scripts_of_other_forms_are_read() {
    for (text, expected) in [
        ("sbatch --wrap=x\nfunction serve() {\n  vllm serve org/m --seed 1 &\n}\nserve\n", "org/m --seed 1"),
        ("#!/bin/sh\r\nM=org/m\r\nvllm serve $M \\\r\n  --seed 1\r\n", "org/m --seed 1"),
        ("ssh gpu1 bash <<'EOF'\nM=org/m\nvllm serve $M\nEOF\n", "org/m"),
        ("set -a\nM=org/m\nset +a\nvllm serve $M &> log", "org/m"),
        ("[ -d /x ] && echo yes\nvllm serve org/m", "org/m"),
        ("A=--seed\nvllm serve org/m $A 1 ${B:+--dtype $B}", "org/m --seed 1"),
        ("D=/models\nvllm serve ${D}/a-\"b c\"'$D'", "/models/a-b c$D"),
        ("if true; then\n  M=org/m\n  vllm serve $M\nfi", "org/m"),
        ("M=org/m; for i in 0; do vllm serve $M --seed 1; done", "org/m --seed 1"),
        ("vllm serve org/m --chat-template ''", "org/m --chat-template "),
        ("pkill -f 'vllm serve' || true\nvllm serve org/m", "org/m"),
        ("until curl -s localhost; do sleep 1; done & vllm serve org/m", "org/m"),
    ] {
        let deployment = script(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(shown(&deployment), expected, "{text}");
    }
}

#[test]
fn words_are_divided_as_a_shell_divides_them() {
    for (word, expected) in [
        ("${L[@]}", vec!["p", "q", "r"]),
        ("\"${L[@]}\"", vec!["p", "q r"]),
        ("a$S\"$S\"", vec!["ax", "y", "x  y "]),
        ("${B:-u v} ${B:-'u v'}", vec!["u", "v", "u v"]),
        ("a\\ b'c'\"d\\\"\\x\"", vec!["a bcd\"\\x"]),
        ("$E \"$E\" ''", vec!["", ""]),
        ("a#b #c", vec!["a#b"]),
    ] {
        let text = format!("E=\nS='x  y '\nL=(p 'q r')\nvllm serve m --x {word}\n");
        assert_eq!(script(&text).unwrap().args[1..], expected, "{word}");
    }
}

#[test]
fn an_argument_that_only_an_execution_would_know_is_named_with_its_line() {
    for (text, line, problem) in [
        (
            "\nvllm serve org/m -tp $(nvidia-smi -L | wc -l)",
            2,
            "--tp: `$(nvidia-smi -L | wc -l)` would have to be executed",
        ),
        ("vllm serve org/m --seed `date +%s`", 1, "--seed: ``date +%s`` would have to be executed"),
        ("vllm serve org/m --seed $((1 + 2))", 1, "--seed: `$((1 + 2))` would have to be executed"),
        ("vllm serve $MODEL", 1, "the model: the value of the variable `MODEL` is not in the text"),
        ("vllm serve $1", 1, "the model: the argument `$1` of the script is not known"),
        (
            "source env.sh\nvllm serve $M",
            2,
            "the model: the value of the variable `M` is not in the text (line 1 reads another file)",
        ),
        (
            "if [ x ]; then\nM=a\nelse\nM=b\nfi\nvllm serve $M",
            6,
            "the model: the variable `M` depends on the condition on line 3",
        ),
        ("[ -z x ] && M=a\nvllm serve $M", 2, "the model: the variable `M` depends on the condition on line 1"),
        ("for s in 1 2; do vllm serve m --seed $s; done", 1, "--seed: the variable `s` changes in the loop on line 1"),
        ("vllm serve org/m --dtype 'auto\n--seed 1", 1, "--dtype: the quote ' that opens on line 1 is never closed"),
        ("vllm serve ${M%/}", 1, "the model: `${M%/}` would have to be executed"),
        ("read M\nvllm serve $M", 2, "the model: the variable `M` is read from the input on line 1"),
        ("vllm serve org/m other/m", 1, "`other/m` is neither a flag nor the value of one; the model is `org/m`"),
    ] {
        let error = script(text).unwrap_err();
        assert_eq!((error.line, error.problem.as_str()), (Some(line), problem), "{text}");
        assert!(error.hint.is_some());
    }
}

#[test]
fn texts_without_exactly_one_server_are_refused_with_the_choice() {
    for (text, problem) in [
        ("echo vllm serve m", "nothing here starts vLLM"),
        ("vllm bench serve --model m", "nothing here starts vLLM"),
        ("# vllm serve m", "nothing here starts vLLM"),
        ("grep vllm serve", "nothing here starts vLLM"),
    ] {
        assert_eq!(line(text).unwrap_err().to_string(), format!("command line: {problem}"), "{text}");
    }
    let text = "vllm serve a &\n\nvllm serve b &\nwait";
    let error = script(text).unwrap_err();
    assert_eq!(error.to_string(), "run.sh: 2 servers are started here; their lines are 1, 3");
    assert_eq!(error.hint.as_deref(), Some("choose one, for instance run.sh#1"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.sh");
    std::fs::write(&file, text).unwrap();
    let path = file.to_string_lossy();
    assert_eq!(read_deployment(&format!("{path}#3")).unwrap().model.as_deref(), Some("b"));
    let error = read_deployment(&format!("{path}#2")).unwrap_err();
    assert_eq!((error.problem.as_str(), error.hint.as_deref()), ("no server is named `2`", Some("choose one of 1, 3")));
}

#[test]
fn files_that_cannot_be_read_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("binary.sh"), b"vllm serve m\n\xff\xfe").unwrap();
    std::fs::write(path("large.sh"), vec![b'#'; 2 << 20]).unwrap();
    for (source, problem) in [
        (path("missing.sh"), "there is no such file, and it is no command that starts vLLM"),
        (path(""), "is a directory"),
        (path("binary.sh"), "is not a text in UTF-8"),
        (path("large.sh"), "has 2097152 bytes, and at most 1048576 are read"),
        (String::new(), "there is no such file, and it is no command that starts vLLM"),
    ] {
        let error = read_deployment(&source).unwrap_err();
        assert_eq!(error.problem, problem, "{source}");
        assert!(error.hint.is_some());
    }
}

#[test]
fn the_lines_of_a_random_search_are_read_with_the_flags_of_their_release() {
    let text = include_str!("../../tests/fixtures/commands_of_the_v0_era.txt");
    let flags = engine().flags().unwrap();
    let mut count = 0;
    for text in text.lines().filter(|text| text.starts_with("vllm serve")) {
        let deployment = line(text).unwrap();
        deployment.configuration(flags.for_version(EngineVersion::new(0, 6, 3))).unwrap();
        let error = deployment.configuration(flags.for_version(EngineVersion::new(0, 33, 0)));
        let is_named = |error: DeploymentError| error.problem.contains("--scheduler-delay-factor (last seen in");
        count += usize::from(error.is_err_and(is_named));
    }
    assert!(count > 0);
}

#[test]
fn flags_that_the_release_lacks_are_named_with_the_nearest_one() {
    let deployment = line("vllm serve org/m --max-num-seq 8 --max-num-sequences 8").unwrap();
    let table = engine().flag_table(EngineVersion::new(0, 33, 0)).unwrap();
    let error = deployment.configuration(table).unwrap_err();
    assert_eq!(
        error.to_string(),
        "command line:1: release 0.33.0 does not accept the flags: unrecognized arguments: --max-num-sequences (did \
         you mean --max-num-seqs?)"
    );
    let text =
        r#"vllm serve org/m --served-model-name a b --enable-lora --lora-modules sql=/a '{"name":"b","path":"/b"}'"#;
    let flags = line(text).unwrap().configuration(table).unwrap();
    assert_eq!(flags.adapters, ["sql", "b"]);
    assert_eq!(flags.served_names, ["a", "b"]);
    assert_eq!(flags.config.get_bool("enable-lora"), Some(true));
}

#[test]
fn secrets_are_left_out_wherever_they_stand() {
    let secret = "0123secret4567";
    let text = format!(
        "export HF_TOKEN={secret}\nKEY={secret}\nvllm serve org/m --api-key {secret} --hf-token={secret} \
         --served-model-name x-{secret} --long-prefill-token-threshold 8 --middleware http://u:{secret}@h\n"
    );
    let deployment = script(&text).unwrap();
    assert!(!format!("{deployment:?}").contains(secret), "{deployment:?}");
    let expected = "org/m --served-model-name x-(redacted) --long-prefill-token-threshold 8 --middleware \
                    http://u:(redacted)@h";
    assert_eq!(shown(&deployment), expected);
    assert_eq!(deployment.env["HF_TOKEN"], REDACTED);
    let error = script(&format!("vllm serve org/m --api-key {secret} --seed 1 {secret}")).unwrap_err();
    assert!(!format!("{error:?} {error}").contains(secret), "{error:?}");
    let error = line("hf_abcdefghijklmnopqrstuvwxyz").unwrap_err();
    assert!(!format!("{error:?}").contains("abcdef"), "{error:?}");
}

#[test]
fn a_file_of_flags_within_a_line_is_read_beside_the_script() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("serve.yaml"), "model: org/m\nmax-num-seqs: 8\nport: 9000\napi-key: abcdefgh\n").unwrap();
    std::fs::write(path("run.sh"), "vllm serve --config serve.yaml --max-num-seqs 16\n").unwrap();
    let deployment = read_deployment(&path("run.sh")).unwrap();
    assert_eq!(shown(&deployment), "org/m --max-num-seqs 8 --max-num-seqs 16");
    std::fs::write(path("run.sh"), "vllm serve other/m --config=serve.yaml").unwrap();
    assert_eq!(shown(&read_deployment(&path("run.sh")).unwrap()), "other/m --max-num-seqs 8");
    std::fs::write(path("run.sh"), "vllm serve --config missing.yaml").unwrap();
    let error = read_deployment(&path("run.sh")).unwrap_err();
    assert_eq!((error.line, error.problem.as_str()), (Some(1), "--config missing.yaml: the file does not exist"));
    let own = read_deployment(&path("serve.yaml")).unwrap();
    assert_eq!((shown(&own), own.source.kind), ("org/m --max-num-seqs 8".to_owned(), DeploymentKind::ConfigFile));
}

#[test]
fn texts_that_grow_when_they_are_read_are_limited() {
    let repeated = |line: &str| format!("A=aaaaaaaa\nL=(a a)\n{}vllm serve $A ${{L[@]}}\n", line.repeat(60));
    for text in [
        repeated("A+=$A\n"),
        repeated("A=$A$A\n"),
        repeated("L+=(\"${L[@]}\")\n"),
        repeated("A=\"${B:-${A:+$A$A}}\"\n"),
        "bash -c \"".repeat(300),
        "$(".repeat(20_000),
        "'\"`${".repeat(20_000),
        "A=(".repeat(20_000),
        "x='a b'\n\\'".repeat(20_000),
    ] {
        assert!(script(&text).is_err(), "{}", &text[..30]);
    }
}

/// Parts of texts that lead a parser into its corners.
const PARTS: [&str; 44] = [
    "vllm serve m",
    " --api-key s3cr3t-v4lue",
    "\n",
    "'",
    "\"",
    "`",
    "$(",
    ")",
    "${A",
    "}",
    "\\",
    "<<E\n",
    "E\n",
    "A=(",
    "A+=b ",
    "if ",
    "fi;",
    "for x in",
    "done;",
    "case ",
    "esac;",
    "&&",
    "||",
    "bash -c '",
    "docker run -e ",
    "services:\n",
    "  a:\n",
    "    image: vllm/vllm-openai:v0.11.0\n",
    "    command: ",
    "kind: Pod\n",
    "- ",
    "{{",
    "apiVersion: v1\n",
    "containers:\n",
    "*a",
    "&a ",
    "<<: ",
    "--config x.yaml",
    "${A:-${A}}",
    "$$",
    "é",
    "\0",
    "${",
    " ",
];

fn part() -> impl Strategy<Value = String> {
    prop_oneof![4 => prop::sample::select(&PARTS[..]).prop_map(str::to_owned), 1 => any::<String>()]
}

proptest! {
    #[test]
    fn no_text_causes_a_panic_or_shows_a_key(parts in prop::collection::vec(part(), 0..40)) {
        let text = parts.concat();
        let table = engine().flag_table(EngineVersion::new(0, 33, 0)).unwrap();
        for name in ["run.sh", "compose.yaml", "values.json"] {
            if let Ok(deployment) = read_deployment_text(name, &text) {
                let _ = deployment.configuration(table);
                let words = [deployment.wrapper, deployment.program, deployment.args].concat();
                prop_assert!(!words.iter().any(|word| word == "s3cr3t-v4lue"), "{:?}", text);
            }
        }
    }

    #[test]
    fn the_value_of_a_secret_never_remains(
        value in "[A-Za-z0-9]{12,30}",
        name in prop::sample::select(vec!["HF_TOKEN", "OPENAI_API_KEY", "MY_SECRET", "DB_PASSWORD"]),
        flag in prop::sample::select(vec!["--api-key ", "--api-key=", "--hf-token "]),
        other in prop::sample::select(vec!["", " --seed $X", " --seed 1 extra", " --seed 'a"]),
    ) {
        let text =
            format!("export {name}={value}\nB=${name}\nvllm serve m {flag}{value} --served-model-name $B{other}\n");
        let shown = match read_deployment_text("run.sh", &text) {
            Ok(deployment) => format!("{deployment:?} {}", deployment.source),
            Err(error) => format!("{error:?} {error}"),
        };
        prop_assert!(!shown.contains(&value), "{}", shown);
    }
}
