//! The preflight: the engine's own answer, from a small engine in Python and from the real vLLM.
//!
//! Tests on the real vLLM need an installation, which `SETPOINT_VLLM_CPU` names.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::real_vllm::installation;
use crate::support::{Workplace, recorded_cases, root, say_skipped, study_with, wait_until};

/// A package that looks like vLLM 0.32. It refuses four sequences and checks no other limit.
const PACKAGE: [(&str, &str); 7] = [
    ("__init__.py", "__version__ = '0.32.0'\n"),
    ("logger.py", ""),
    ("usage/usage_lib.py", "class UsageContext:\n    OPENAI_API_SERVER = 1\n"),
    ("platforms/__init__.py", "class current_platform:\n    device_type = 'cuda'\n"),
    ("utils/argparse_utils.py", "import argparse\nclass FlexibleArgumentParser(argparse.ArgumentParser):\n    pass\n"),
    (
        "entrypoints/openai/cli_args.py",
        "def make_arg_parser(parser):
    for name in ['max-num-seqs', 'max-num-batched-tokens', 'max-model-len']:
        parser.add_argument('--' + name, type=int)
    parser.add_argument('--kv-cache-dtype', choices=['auto', 'fp8'])
    for name in ['time-scale', 'startup-s', 'noise']:
        parser.add_argument('--sim-' + name)
    return parser
",
    ),
    (
        "engine/arg_utils.py",
        "import os, time
time.sleep(float(os.environ.get('IMPORT_S', '0')))
class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, arguments):
        made = cls()
        made.arguments = arguments
        return made
    def create_engine_config(self, usage_context=None):
        if 'REFUSE_ALL' in os.environ:
            raise ValueError('no such device')
        if self.arguments.max_num_seqs == 4:
            raise ValueError('four is refused')
        return object()
",
    ),
];

/// Writes the package and a command that serves with the simulated engine. Returns `None`, after a notice, if there is
/// no Python.
fn fake_engine(workplace: &Workplace) -> Option<String> {
    let Some(python) = setpoint::engine::resolve_program("python3") else {
        say_skipped("the preflight of a study: there is no python3 on the PATH");
        return None;
    };
    for (path, text) in PACKAGE {
        let path = workplace.path("packages/vllm").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let program = env!("CARGO_BIN_EXE_setpoint");
    let script = format!(
        "#!{}\nimport os, sys\nos.execv({program:?}, [{program:?}, 'sim'] + sys.argv[1:] + ['--sim-vllm-version', '0.32.0'])\n",
        python.display()
    );
    workplace.write("vllm", &script);
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(workplace.path("vllm"), executable).unwrap();
    Some(python.to_string_lossy().into_owned())
}

/// Returns the fast study on that engine.
fn study(workplace: &Workplace) -> String {
    let packages = workplace.path("packages").display().to_string();
    let engine = format!(
        "kind = \"vllm\"\ncommand = [\"{}\", \"serve\"]\nversion = \"0.32.0\"\n\
         env = {{ PYTHONPATH = \"{packages}\", PYTHONDONTWRITEBYTECODE = \"1\" }}",
        workplace.path("vllm").display()
    );
    study_with("", "trials = 100\nconfirm = 0").replace("kind = \"sim\"", &engine)
}

#[test]
fn what_the_engine_refuses_is_never_launched_and_what_it_accepts_is() {
    let workplace = Workplace::new();
    let Some(_) = fake_engine(&workplace) else { return };
    workplace.write("study.toml", &study(&workplace));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    let trials = workplace.trials();
    let rejected: Vec<_> = trials.iter().filter(|trial| trial["state"] == "rejected").collect();
    assert_eq!(rejected.len(), 3, "four sequences with each number of tokens");
    for trial in rejected {
        assert_eq!(trial["reason_code"], "ENGINE");
        assert!(trial.to_string().contains("four is refused"), "{trial}");
    }
    assert!(tuned.stdout.contains("rules and engine disagree on 3 trials, first "), "{}", tuned.stdout);
}

/// Returns whether a trial has 16 sequences and a budget of 8 tokens. Rule R2 rejects that, and this engine accepts it.
fn is_doubted(trial: &Json) -> bool {
    trial["config"]["max-num-batched-tokens"] == 8 && trial["config"]["max-num-seqs"] == 16
}

#[test]
fn a_rule_that_the_engine_contradicts_is_set_aside() {
    let workplace = Workplace::new();
    let Some(_) = fake_engine(&workplace) else { return };
    let text = study(&workplace);
    workplace.write("study.toml", &text);
    let aside = "rule R2 is set aside: the installed engine accepts max-num-batched-tokens=8 max-num-seqs=16, which";
    let tuned = workplace.run(&["tune", "study.toml", "--trials", "1"]);
    assert!(!tuned.stderr.contains("set aside"), "the first launch does not wait for the engine: {}", tuned.stderr);
    let tuned = workplace.run(&["tune", "study.toml", "--trials", "2"]);
    assert_eq!(tuned.stderr.matches(aside).count(), 1, "{}", tuned.stderr);
    // A resumed run finds the contradiction again.
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.stderr.matches(aside).count(), 1, "{}", tuned.stderr);
    let told =
        "rule R2 rejects a configuration that release 0.32.0 accepts, and was set aside: max_num_batched_tokens (8)";
    assert_eq!(tuned.stdout.matches(told).count(), 1, "{}", tuned.stdout);
    let trials = workplace.trials();
    let launched: Vec<_> = trials.iter().filter(|trial| is_doubted(trial)).collect();
    assert_eq!(launched.len(), 1);
    assert_ne!(launched[0]["state"], "rejected", "{}", launched[0]);

    let by_the_rules = text.replace("env = {", "preflight = false\nenv = {").replace("\"fast\"", "\"rules\"");
    workplace.write("rules.toml", &by_the_rules);
    assert_eq!(workplace.run(&["tune", "rules.toml"]).code, Some(0));
    assert_eq!(
        workplace
            .json(&["trials", "--study", "rules", "--format", "json"])
            .as_array()
            .unwrap()
            .iter()
            .find(|trial| is_doubted(trial)),
        None
    );
}

#[test]
fn the_first_launch_of_a_resumed_study_does_not_wait_for_the_import_of_the_engine() {
    let workplace = Workplace::new();
    let Some(_) = fake_engine(&workplace) else { return };
    let import_s = 5.0;
    workplace.write("study.toml", &study(&workplace));
    let tuned = workplace.run(&["tune", "study.toml", "--trials", "2"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let proposed = workplace.trials().len();
    let begin = jiff::Timestamp::now();
    let import = [("IMPORT_S", import_s.to_string())];
    let import = import.each_ref().map(|(name, value)| (*name, value.as_str()));
    let tuned = workplace.run_with(&import, "", &["tune", "study.toml", "--trials", "3"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let next = &workplace.trials()[proposed];
    let started: jiff::Timestamp = next["started_at"].as_str().unwrap().parse().unwrap();
    let waited = started.duration_since(begin).as_secs_f64();
    assert!(waited < 0.6 * import_s, "launched {waited} s after the begin of the run");
    assert_ne!(next["state"], "rejected", "the engine was not asked yet: {next}");
    // The load does not run while the engine is imported.
    assert!(next["elapsed_s"].as_f64().unwrap() > 0.3 * import_s, "{next}");
}

#[test]
fn a_study_without_a_preflight_says_why_and_goes_by_the_rules() {
    let workplace = Workplace::new();
    let Some(_) = fake_engine(&workplace) else { return };
    let text = study(&workplace);
    for (name, from, to, reason) in [
        ("off", "env = {", "preflight = false\nenv = {", "no preflight: engine.preflight is false"),
        ("absent", "/packages\"", "/nowhere\"", "No module named 'vllm'; from now on only the rules decide"),
        (
            "wrong",
            "env = {",
            "env = { REFUSE_ALL = \"1\",",
            "no preflight: it refuses the defaults, although the engine has served them: no such device",
        ),
    ] {
        let text = text.replace(from, to).replace("\"fast\"", &format!("{name:?}"));
        workplace.write("study.toml", &text);
        let tuned = workplace.run(&["tune", "study.toml", "--trials", "2"]);
        assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
        assert!(tuned.stderr.contains(reason), "{}", tuned.stderr);
    }
}

#[test]
fn a_killed_tuner_takes_its_preflight_with_it() {
    let workplace = Workplace::new();
    let Some(_) = fake_engine(&workplace) else { return };
    workplace.write("study.toml", &study(&workplace));
    let mut tuner = workplace.start(&["tune", "study.toml", "--verbose"]);
    workplace.wait_for("trial 1: launching");
    tuner.kill().unwrap();
    tuner.wait().unwrap();
    let helpers = || {
        let left = workplace.processes_left();
        let words = |pid: &i32| procfs::process::Process::new(*pid).and_then(|process| process.cmdline());
        left.iter().filter(|pid| words(pid).is_ok_and(|words| words.get(1).is_some_and(|word| word == "-c"))).count()
    };
    wait_until(Duration::from_secs(20), "the end of the preflight", || helpers() == 0);
    let again = workplace.run(&["tune", "study.toml", "--trials", "3"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn a_study_is_checked_against_what_is_installed() {
    let workplace = Workplace::new();
    let Some(_) = fake_engine(&workplace) else { return };
    let text = study(&workplace);
    workplace.write("study.toml", &text);
    let checked = workplace.run(&["check", "study.toml"]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    let said = "preflight     accepted (vLLM 0.32.0, as installed); it contradicts 1 of 1 rules\n              \
                rule R2 rejects max-num-batched-tokens=8 max-num-seqs=16, but the\n              \
                installed engine accepts it: max_num_batched_tokens";
    assert!(checked.stdout.contains(said), "{}", checked.stdout);
    let json = workplace.json(&["check", "study.toml", "--format", "json"]);
    let config = json!({"max-model-len": 2048, "max-num-batched-tokens": 8, "max-num-seqs": 16});
    assert_eq!((&json["wrong_rules"][0]["rule"], &json["wrong_rules"][0]["config"]), (&json!("R2"), &config));
    for (fixed, message) in [
        ("enforce-eager = true", "space.fixed.enforce-eager: unrecognized arguments: --enforce-eager (vLLM 0.32.0, as"),
        ("kv-cache-dtype = \"fp8_e5m2\"", "invalid choice: 'fp8_e5m2' (choose from auto, fp8) (vLLM 0.32.0, as inst"),
    ] {
        workplace.write("study.toml", &text.replace("max-model-len = 2048", &format!("max-model-len = 2048, {fixed}")));
        let checked = workplace.run(&["check", "study.toml"]);
        assert_eq!(checked.code, Some(3), "{}", checked.stdout);
        assert!(checked.stderr.contains(message), "{}", checked.stderr);
    }
}

#[test]
fn lines_of_arguments_get_both_verdicts_and_the_engine_decides() {
    let workplace = Workplace::new();
    let Some(python) = fake_engine(&workplace) else { return };
    // The interpreter finds the package, as in a virtual environment.
    workplace.write(
        "python",
        &format!("#!/bin/sh\nPYTHONPATH={} exec {python} \"$@\"\n", workplace.path("packages").display()),
    );
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(workplace.path("python"), executable).unwrap();
    let lines = [
        r#"{"args": ["--max-num-seqs", "8"]}"#,
        r#"{"args": ["another-model", "--max-num-seqs", "4"]}"#,
        r#"{"args": ["--max-num-seqs", "16", "--max-num-batched-tokens", "8"]}"#,
        "",
        r#"{"args": ["--max-num-seqs", "many"]}"#,
        r#"{"args": "#,
        r#"{"args": ["--max-num-seqs", "2"]}"#,
    ];
    workplace.write("lines.jsonl", &lines.join("\n"));
    let model = root().join("examples/models/qwen3-8b").display().to_string();
    let check = |file: &str, python: &str| {
        workplace.run(&["check", "--args-file", file, "--model", &model, "--preflight", python])
    };
    let checked = check("lines.jsonl", "./python");
    assert_eq!(checked.code, Some(3));
    assert!(checked.stderr.contains("lines.jsonl:6: "), "{}", checked.stderr);
    let answers: Vec<Json> = checked.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| answers.iter().map(|answer| answer[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("verdict"), ["accept", "reject", "accept", "reject"]);
    assert_eq!(of("rule"), [json!(null), json!("ENGINE"), json!(null), json!("A1")]);
    assert_eq!(of("disagreement"), [json!(null), json!(true), json!(true), json!(null)]);
    assert_eq!(answers[1]["engine"]["message"], "four is refused");
    assert_eq!(answers[3]["severity"], "arguments");

    // The helper inherits our environment, so the rules must use it as well.
    let long = "{\"args\": [\"--max-model-len\", \"999999\"]}";
    let arguments = ["check", "--args-file", "-", "--model", &model, "--preflight", "./python"];
    let inherited = workplace.run_with(&[("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")], long, &arguments);
    assert!(inherited.stderr.starts_with("1 lines: rules and engine agree on 1"), "{}", inherited.stderr);
    let refusing = workplace.run_with(&[], long, &[&arguments[..], &["--env", "REFUSE_ALL=1"]].concat());
    assert!(refusing.stdout.contains("no such device"), "{}", refusing.stdout);

    workplace.write("whole.jsonl", &lines[..3].join("\n"));
    let checked = check("whole.jsonl", "./python");
    assert_eq!(checked.code, Some(0));
    let summary =
        "3 lines: rules and engine agree on 1; the rules reject 1 that the engine accepts and accept 1 that it";
    assert!(checked.stderr.starts_with(summary), "{}", checked.stderr);

    for wrong in ["no-such-python", python.as_str()] {
        let checked = check("whole.jsonl", wrong);
        assert_eq!((checked.code, checked.stdout.as_str()), (Some(3), ""));
        assert!(
            checked.stderr.contains("hint: name the Python of a working installation of the engine"),
            "{}",
            checked.stderr
        );
    }
}

/// Sends lines of arguments for the small model to the real engine. Returns its answers.
fn ask_real(directory: &Path, lines: &[Json]) -> Vec<Json> {
    let workplace = Workplace::new();
    let text: Vec<_> = lines.iter().map(|args| json!({"args": args}).to_string()).collect();
    workplace.write("lines.jsonl", &text.join("\n"));
    let (python, model) = (directory.join("bin/python"), directory.join("model"));
    let (python, model) = (python.display().to_string(), model.display().to_string());
    let checked = workplace.run(&["check", "--args-file", "lines.jsonl", "--model", &model, "--preflight", &python]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    println!("{}", checked.stderr);
    checked.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn the_real_engine_answers_recorded_cases_as_recorded_in_any_order() {
    let directory = installation();
    let cases: Json = serde_json::from_str(&recorded_cases()).unwrap();
    let cases = cases["cases"].as_array().unwrap();
    // Each case is checked twice, after another case each time. 37 and 80 have no common divisor, so the second order
    // contains every case.
    let order: Vec<_> = (0..cases.len()).chain((0..cases.len()).map(|index| (index * 37 + 5) % cases.len())).collect();
    let lines: Vec<_> = order.iter().map(|index| cases[*index]["args"].clone()).collect();
    let answers = ask_real(&directory, &lines);
    assert_eq!(answers.len(), 2 * cases.len());
    let mut first = vec![Json::Null; cases.len()];
    for (index, answer) in order.into_iter().zip(&answers) {
        let (case, engine) = (&cases[index], &answer["engine"]);
        let (verdict, stage) = match case["outcome"].as_str().unwrap() {
            "accepted" => ("accept", json!(null)),
            "argparse_exit_2" => ("reject", json!("arguments")),
            _ => ("reject", json!("configuration")),
        };
        assert_eq!((engine["verdict"].as_str(), &engine["stage"]), (Some(verdict), &stage), "{case} {answer}");
        let seen = &mut first[index];
        if seen.is_null() {
            *seen = engine.clone();
        }
        assert_eq!(seen, engine, "{case} gets another answer behind other cases");
    }
}

#[test]
#[ignore = "needs the real vLLM, which SETPOINT_VLLM_CPU names"]
fn the_real_engine_says_what_it_has_and_a_study_with_a_flag_that_is_gone_is_refused() {
    let directory = installation();
    let workplace = Workplace::new();
    let fixed = "fixed = { swap-space = 4 }";
    let text = study_with("", "trials = 2")
        .replace(
            "kind = \"sim\"",
            &format!(
                "kind = \"vllm\"\nversion = \"0.8.5\"\ncommand = [\"{}/bin/vllm\", \"serve\"]",
                directory.display()
            ),
        )
        .replace("args = [", "env = { HF_HUB_OFFLINE = \"1\" }\nargs = [] # [")
        .replace("fixed = { max-model-len = 2048 }", fixed);
    assert!(text.contains(fixed));
    workplace.write("study.toml", &text);
    let checked = workplace.run(&["check", "study.toml"]);
    assert_eq!(checked.code, Some(3), "{}", checked.stdout);
    let message = "space.fixed.swap-space: unrecognized arguments: --swap-space (last seen in vLLM ";
    assert!(checked.stderr.contains(message), "{}", checked.stderr);

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let preflight = setpoint::preflight::Preflight::start(setpoint::preflight::PreflightSetup {
            program: setpoint::engines::default_engine().preflight().unwrap(),
            executable: directory.join("bin/python").to_string_lossy().into_owned(),
            env: [("HF_HUB_OFFLINE".to_owned(), "1".to_owned())].into(),
            marker: setpoint::server::Marker::helper(&workplace.path("a.db"), "real", "preflight"),
            warm_up: vec![directory.join("model").to_string_lossy().into_owned()],
            limits: setpoint::preflight::PreflightLimits::default(),
        });
        let installed = preflight.wait_until_ready().await.unwrap();
        assert_eq!((installed.version.as_str(), installed.device.as_str()), ("0.32.0", "cpu"));
        assert_eq!(installed.find("max-num-seqs").unwrap().kind.as_deref(), Some("int"));
        assert!(installed.find("kv-cache-dtype").unwrap().choices.as_ref().unwrap().contains(&"fp8".to_owned()));
        assert_eq!(installed.warm_up.rejection(), None);
        preflight.stop().await;
    });
}
