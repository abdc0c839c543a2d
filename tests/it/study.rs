//! A study from its file to an exported script.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Workplace, fast_study, signal, study_with, wait_until};

#[test]
fn a_study_runs_to_its_budget_and_answers_questions() {
    let workplace = Workplace::with_study(&fast_study());
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(tuned.stdout.contains("gain over the engine's defaults: "), "{}", tuned.stdout);
    assert!(tuned.stdout.contains("setpoint export --format sh --study fast -o serve.sh"), "{}", tuned.stdout);

    let trials = workplace.trials();
    let launched: Vec<_> = trials.iter().filter(|trial| trial["state"] == "measured").collect();
    assert_eq!(launched.len(), 4);
    assert_eq!(trials[0]["proposed_by"], "baseline");
    assert_eq!(trials[0]["config"], serde_json::json!({"max-model-len": 2048}));
    for (index, trial) in trials.iter().enumerate() {
        assert_eq!(trial["trial"], index);
        assert!(trial["command"].as_array().is_some_and(|command| command.len() > 3), "{trial}");
    }
    for trial in &launched {
        assert_eq!(trial["metrics"]["completed"], 16);
        assert_eq!(trial["metrics"]["total_output_tokens"], 16 * 8);
        assert_eq!(trial["metrics"]["total_input_tokens"], 16 * 32);
        assert!(trial["startup_s"].as_f64().is_some_and(|startup| startup > 0.0));
        assert!(trial["engine_version"].is_string());
        let log = std::fs::read_to_string(workplace.path(trial["log"].as_str().unwrap())).unwrap();
        assert!(log.contains("Application startup complete."), "{log}");
    }

    let best = workplace.json(&["best", "--format", "json"]);
    let value = |trial: &serde_json::Value| trial["metrics"]["output_throughput"].as_f64().unwrap();
    let most = launched.iter().map(|trial| value(trial)).fold(0.0, f64::max);
    assert!((value(&best) - most).abs() < 1e-9);
    assert!((best["gain"].as_f64().unwrap() - most / value(&trials[0])).abs() < 1e-9);
    assert_eq!(workplace.json(&["studies", "--format", "json"])[0]["measured"], 4);
    assert_eq!(workplace.json(&["show", "0", "--format", "json"])["trial"], 0);
    for table in [&["studies"][..], &["trials"], &["best"], &["show", "0"], &["trials", "--format", "csv"]] {
        assert!(workplace.run(table).stdout.lines().count() >= 2, "{table:?}");
    }
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn the_random_speed_of_a_launch_stays_out_of_the_evidence_and_the_exports() {
    let noisy = study_with("", "trials = 4\nconfirm = 0")
        .replace("\"--sim-noise\"", "\"--sim-launch-noise\", \"0.5\", \"--sim-noise\"");
    let workplace = Workplace::with_study(&noisy);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let exported = workplace.run(&["export", "--format", "sh"]).stdout;
    assert!(exported.contains("--sim-launch-noise 0.5"), "{exported}");
    let shown = workplace.run(&["show", "0", "--format", "json"]).stdout;
    let variable = "SETPOINT_SIM_LAUNCH";
    assert!(!exported.contains(variable) && !shown.contains(variable), "{exported}\n{shown}");
    let mut files = vec![workplace.path("setpoint.db")];
    files.extend(["setpoint.db-wal"].map(|name| workplace.path(name)).into_iter().filter(|path| path.exists()));
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        let holds = bytes.windows(variable.len()).any(|part| part == variable.as_bytes());
        assert!(!holds, "{}", file.display());
    }
}

#[test]
fn a_used_up_space_ends_the_study_and_nothing_is_launched_twice() {
    let workplace = Workplace::with_study(&study_with("", "trials = 100\nconfirm = 0"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(tuned.stderr.contains("every configuration of the space has been tried"), "{}", tuned.stderr);
    let trials = workplace.trials();
    let mut configs: Vec<_> = trials.iter().map(|trial| trial["config"].to_string()).collect();
    configs.sort();
    configs.dedup();
    // Of 5 x 3 configurations, only 16 sequences with 8 tokens is invalid and never proposed. The defaults come first.
    assert_eq!((configs.len(), trials.len()), (15, 15));
    assert!(trials.iter().all(|trial| trial["state"] == "measured"));
    assert!(tuned.stderr.contains("the rules remove 6.7 % of the space: R2 6.7 %\n"), "{}", tuned.stderr);
}

#[test]
fn defaults_that_a_rule_rejects_are_stored_with_the_reason_and_cost_no_budget() {
    let text = study_with("", "trials = 2\nconfirm = 0")
        .replace("max-model-len = 2048", "max-model-len = 2048, max-num-seqs = 20000")
        .replace("[8, 256, 2048]", "[32768, 65536]");
    let workplace = Workplace::with_study(&text);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let trials = workplace.trials();
    let states: Vec<_> = trials.iter().map(|trial| &trial["state"]).collect();
    assert_eq!(states, ["rejected", "measured", "measured"]);
    assert_eq!(trials[0]["reason_code"], "R2");
    let reason = "max_num_batched_tokens (8192) must be greater than or equal to max_num_seqs (20000).";
    assert_eq!(trials[0]["reason"], reason);
    assert!(trials[0]["command"].to_string().contains("\"--max-num-seqs\",\"20000\""), "{}", trials[0]);
    assert!(trials[0]["log"].is_null());
    assert!(tuned.stderr.contains("\n    0   engine's defaults: rejected before launch, R2: "), "{}", tuned.stderr);
    assert!(tuned.stderr.contains(&format!("\ntrial 0: rejected before launch, R2: {reason}\n")), "{}", tuned.stderr);
}

#[test]
fn the_winner_and_the_defaults_are_launched_again_in_rounds_and_judged_by_these_launches() {
    let workplace =
        Workplace::with_study(&study_with("", "trials = 10\nconfirm = 2").replace("repeat_baseline = 0\n", ""));
    let tuned = workplace.run(&["tune", "study.toml", "--verbose"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    assert!(tuned.stderr.contains("launching again, to confirm,"), "{}", tuned.stderr);
    let plan = "plan: 10 launches in all; 1 launch repeats the defaults; up to 4 launches at the end measure the best";
    assert!(tuned.stderr.split_whitespace().collect::<Vec<_>>().join(" ").contains(plan), "{}", tuned.stderr);
    let trials: Vec<_> = workplace.trials().into_iter().filter(|trial| trial["state"] == "measured").collect();
    assert_eq!(trials[1]["proposed_by"], "baseline_repeat");
    let again: Vec<_> = trials.iter().filter(|trial| trial["proposed_by"] == "confirmation").collect();
    let defaults = again.iter().filter(|trial| trial["config"] == trials[0]["config"]).count();
    assert!(again.len() >= 2 && again.len() == 2 * defaults, "in rounds of two: {again:?}");

    let best = workplace.json(&["best", "--format", "json"]);
    let mean = |config: &serde_json::Value| {
        let of = again.iter().filter(|trial| trial["config"] == *config);
        let logarithms: Vec<_> = of.map(|trial| trial["value"].as_f64().unwrap().ln()).collect();
        (logarithms.iter().sum::<f64>() / f64::from(u32::try_from(logarithms.len()).unwrap())).exp()
    };
    let close = |json: &serde_json::Value, value: f64| (json.as_f64().unwrap() / value - 1.0).abs() < 1e-9;
    assert!(close(&best["mean_value"], mean(&best["config"])), "the value of the confirmation: {best}");
    let verdict = &best["verdict"];
    assert!(["better", "equal_within_noise", "no_clear_winner"].contains(&verdict["kind"].as_str().unwrap()));
    assert!(close(&verdict["confidence"], 0.98) && verdict["over_today"].is_null());
    if best["trial"] != 0 {
        let gain = mean(&best["config"]) / mean(&trials[0]["config"]) - 1.0;
        assert!((verdict["gain"].as_f64().unwrap() - gain).abs() < 1e-9, "{verdict} {gain}");
        assert!(
            verdict["low"].as_f64() <= verdict["gain"].as_f64() && verdict["gain"].as_f64() <= verdict["high"].as_f64()
        );
    }
    assert!(best["noise"]["between_launches"].as_f64().unwrap() >= 0.0);
    assert!(best["judgement"].is_null() && best["expected"].is_null(), "sobol judges nothing: {best}");
    assert_eq!(trials[2]["why"], "next point of the Sobol sequence");
    let challenger = again.iter().find(|trial| trial["config"] != trials[0]["config"]).unwrap();
    let shown = workplace.run(&["show", &challenger["trial"].to_string()]).stdout;
    assert!(shown.contains("why                     measured again: the best of many noisy measurements"), "{shown}");
}

#[test]
fn the_studys_own_arguments_are_checked_with_every_configuration() {
    let text =
        study_with("", "trials = 9\nconfirm = 0").replace(r#""--sim-noise", "0""#, r#""--no-enable-chunked-prefill""#);
    let workplace = Workplace::with_study(&text);
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let trials = workplace.trials();
    let small =
        |trial: &serde_json::Value| trial["config"]["max-num-batched-tokens"].as_i64().is_some_and(|n| n < 2048);
    assert!(trials.len() > 1 && trials.iter().all(|trial| trial["state"] == "measured" && !small(trial)));
}

#[test]
fn a_space_without_valid_configurations_ends_with_exit_code_4_and_names_the_rule() {
    let workplace = Workplace::with_study(&fast_study().replace("max-model-len = 2048", "max-model-len = 99999"));
    let tuned = workplace.run(&["tune", "study.toml", "--verbose"]);
    assert_eq!(tuned.code, Some(4), "{}", tuned.stderr);
    let (_, checked) = tuned.stderr.rsplit_once("\ntrial 0: checking\n").unwrap();
    let lines: Vec<_> = checked.lines().collect();
    // The first row is below the explanation of the rows and their header. The whole cause follows.
    let row =
        "    0   engine's defaults: rejected before launch, R11: User-specified max_model_len (99999) is greater than";
    assert!(lines.len() > 3 && lines[2].starts_with(row), "{}", tuned.stderr);
    let cause = "trial 0: rejected before launch, R11: User-specified max_model_len (99999) is greater than";
    assert!(lines[3].starts_with(cause), "{}", tuned.stderr);
    let error = "error: no configuration of the space passes the rules: R11 100.0 %, R2 6.7 %; for instance User";
    assert!(tuned.stderr.contains(error), "{}", tuned.stderr);
    let trials = workplace.trials();
    assert_eq!((trials.len(), &trials[0]["state"]), (1, &"rejected".into()));
}

#[test]
fn nothing_is_launched_where_only_the_defaults_would_work() {
    let workplace = Workplace::with_study(&fast_study().replace("choices = [8, 256, 2048]", "choices = [0, -1]"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(4), "{}", tuned.stderr);
    assert!(
        tuned.stderr.contains("no configuration of the space passes the rules: R4a 100.0 %, R4d 100.0 %"),
        "{}",
        tuned.stderr
    );
    assert_eq!(workplace.trials(), Vec::<serde_json::Value>::new());
}

#[test]
fn an_engine_that_never_starts_ends_the_study_with_exit_code_5() {
    let engine = r#"command = ["sh", "-c", "echo 'KeyError: no such thing' >&2; exit 3"]"#;
    let workplace = Workplace::with_study(&study_with(engine, "trials = 50"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(5), "{}", tuned.stderr);
    let told = "most recently trial 2 with startup_exit: exit code 3; KeyError: no such thing; no configuration has worked yet";
    assert!(tuned.stderr.contains(told), "{}", tuned.stderr);
    let studies = workplace.json(&["studies", "--format", "json"]);
    assert_eq!((&studies[0]["running"], &studies[0]["failed"]), (&3.into(), &0.into()), "no configuration is to blame");
}

#[test]
fn a_study_whose_every_load_fails_ends_with_exit_code_6() {
    let text = study_with("", "trials = 2").replace("request_timeout = \"10s\"", "request_timeout = \"1us\"");
    let workplace = Workplace::with_study(&text);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(6), "{}", tuned.stderr);
    assert!(workplace.trials().iter().all(|trial| trial["reason_code"] == "request_errors"));
}

#[test]
fn a_load_generator_that_is_held_up_is_never_taken_for_the_engine() {
    let text = study_with("", "trials = 1").replace("\"200\"", "\"20\"").replace("requests = 16", "requests = 160");
    let workplace = Workplace::with_study(&text);
    let mut tuner = workplace.start(&["tune", "study.toml"]);
    // The tuner is stopped most of the time while the engine runs. It is therefore late to read and to send, in both
    // samples.
    let code = loop {
        signal(&tuner, Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(160));
        signal(&tuner, Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(10));
        if let Some(status) = tuner.try_wait().unwrap() {
            break status.code();
        }
    };
    let stderr = std::fs::read_to_string(workplace.path("stderr.txt")).unwrap();
    assert_eq!(code, Some(6), "{stderr}");
    let again = "trial 0: measuring again, the load generator was the bottleneck: ";
    assert_eq!(stderr.matches(again).count(), 1, "{stderr}");
    let trials = workplace.trials();
    assert_eq!((trials.len(), &trials[0]["reason_code"]), (1, &"client_bound".into()));
    assert!(trials[0]["reason"].as_str().unwrap().contains("for the load generator"), "{}", trials[0]);
    assert_eq!(workplace.processes_left(), [] as [i32; 0]);
}

#[test]
fn a_study_of_an_open_loop_counts_good_requests_and_ends_when_they_are_known() {
    let load = "rate = 200\nrequests = 4000\nuntil = '25%'\nwindow = 'steady'\ngoodput = ['ttft:500', 'e2el:1000']\n";
    let (begin, rest) = study_with("", "trials = 1")
        .split_once("concurrency = 8")
        .map(|(begin, rest)| {
            (begin.to_owned(), rest.split_once("warmup = 4").unwrap().1.replace("output_throughput", "request_goodput"))
        })
        .unwrap();
    let workplace = Workplace::with_study(&format!("{begin}{load}{rest}"));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let trials = workplace.trials();
    assert_eq!(trials.iter().filter(|trial| trial["state"] == "measured").count(), 1, "{}", tuned.stderr);
    for trial in &trials {
        let (metrics, goodput) = (&trial["metrics"], trial["metrics"]["request_goodput"].as_f64().unwrap());
        assert_eq!(trial["value"], metrics["request_goodput"]);
        assert!(goodput > 100.0 && goodput <= metrics["request_throughput"].as_f64().unwrap(), "{metrics}");
        assert!(metrics["completed"].as_u64().unwrap() < 4000, "it ended early: {metrics}");
        assert!(metrics["window"]["reason"].as_str().unwrap().starts_with("ended early: "), "{metrics}");
        assert_eq!(metrics["client"]["valid"], true, "{metrics}");
        assert!((metrics["client"]["offered_rate"].as_f64().unwrap() - 200.0).abs() < 40.0, "{metrics}");
        let [low, high] = [0, 1].map(|end| metrics["confidence"]["request_goodput"][end].as_f64().unwrap());
        assert!(low <= goodput && goodput <= high && high - low <= 0.7 * goodput, "{metrics}");
    }
}

#[test]
fn an_engine_that_refuses_every_start_with_the_same_words_ends_the_study() {
    let text = study_with("", "time = \"1h\"").replace(r#""--sim-noise", "0""#, r#""--no-such-flag""#);
    let workplace = Workplace::with_study(&text);
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(5), "{}", tuned.stderr);
    assert_eq!(workplace.trials(), [] as [serde_json::Value; 0]);
    assert!(tuned.stderr.contains("3 launches in a row failed"), "{}", tuned.stderr);
    assert!(tuned.stderr.contains("unrecognized arguments: --no-such-flag"), "{}", tuned.stderr);
}

#[test]
fn what_is_not_the_engine_that_was_asked_for_is_not_measured() {
    let program = env!("CARGO_BIN_EXE_setpoint");
    let script = format!(r#"exec {program} sim serve "$@" --served-model-name other"#);
    let other = study_with(&format!("command = [\"sh\", \"-c\", '{script}', \"sh\"]"), "trials = 1");
    let slow = study_with("", "trials = 1").replace("\"0.02\"", "\"30\"").replace("\"20s\"", "\"300ms\"");
    for (text, code) in [(other, "wrong_server"), (slow, "startup_timeout")] {
        let workplace = Workplace::with_study(&text);
        assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(5));
        assert_eq!(workplace.trials()[0]["reason_code"], code);
        assert_eq!(workplace.processes_left(), [] as [i32; 0]);
    }
}

#[test]
fn an_engine_that_dies_under_load_is_a_failed_trial_and_the_study_goes_on() {
    let program = env!("CARGO_BIN_EXE_setpoint");
    // Only the defaults have no --max-num-seqs. They are served so slowly that the load is still in progress when the
    // server is killed. Its launcher ends later, when every request has long failed.
    let script = format!(
        r#"case "$*" in *max-num-seqs*) exec {program} sim serve "$@" --sim-time-scale 200;; esac; {program} sim serve "$@" & while ! grep -q complete /proc/$$/fd/1; do sleep 0.02; done; sleep 1; kill -9 $!; sleep 1; exit 1"#
    );
    let engine = format!("command = [\"sh\", \"-c\", '''{script}''', \"sh\"]");
    let workplace = Workplace::with_study(&study_with(&engine, "trials = 3").replace("\"200\"", "\"0.05\""));
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let trials = workplace.trials();
    assert_eq!(trials[0]["reason_code"], "crash", "{}", trials[0]);
    let seen = workplace.json(&["show", "0", "--format", "json"])["telemetry"].clone();
    assert!(seen["summary"]["server_rss_gib_max"].as_f64() > Some(0.0), "what led to it is kept: {seen}");
    assert_eq!(trials.iter().filter(|trial| trial["state"] == "measured").count(), 2);
    let gain = workplace.json(&["best", "--format", "json"])["gain"].clone();
    assert!(gain.is_null(), "there is no gain over defaults that were not measured: {gain}");
}

#[test]
fn secrets_are_nowhere_in_the_database_or_the_export() {
    let engine = "env = { HF_TOKEN = \"hf_verysecret\", PLAIN = \"visible value\" }";
    let workplace = Workplace::with_study(&study_with(engine, "trials = 1"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let script = workplace.run(&["export", "--format", "sh"]).stdout;
    assert!(script.contains("export PLAIN='visible value'"), "{script}");
    assert!(script.contains("HF_TOKEN:?"), "{script}");
    for file in ["setpoint.db", "setpoint.db-wal"] {
        let bytes = std::fs::read(workplace.path(file)).unwrap_or_default();
        assert!(!bytes.windows(13).any(|window| window == b"hf_verysecret"), "{file}");
    }
    assert!(!script.contains("hf_verysecret"));
}

#[test]
fn the_exported_script_says_where_it_comes_from_and_starts_a_server_that_answers() {
    let workplace = Workplace::with_study(&study_with("", "trials = 2"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    assert_eq!(workplace.run(&["export", "--format", "sh", "-o", "serve.sh"]).code, Some(0));
    let script = std::fs::read_to_string(workplace.path("serve.sh")).unwrap();
    let head: Vec<_> = script.lines().take(4).collect();
    assert_eq!(head[0], "#!/bin/sh");
    assert!(head[1].starts_with("# setpoint study fast, trial "), "{script}");
    assert!(head[2].contains("output_throughput ") && head[2].contains("p99_ttft_ms "), "{script}");
    assert!(head[3].starts_with("# engine version 0."), "{script}");

    let port = setpoint::server::free_port().unwrap();
    let mut server = start_script(&workplace, port);
    wait_until(Duration::from_secs(20), "the exported server's health", || health(port));
    signal(&server, Signal::SIGTERM);
    assert!(server.wait().unwrap().success());
}

#[expect(clippy::disallowed_methods, reason = "the exported script under test")]
pub(crate) fn start_script(workplace: &Workplace, port: u16) -> std::process::Child {
    let mut command = std::process::Command::new(workplace.path("serve.sh"));
    command.current_dir(workplace.path(""));
    command.args(["--port", &port.to_string()]).stdout(std::process::Stdio::null());
    command.spawn().unwrap()
}

/// Returns whether `GET /health` answers with 200.
pub(crate) fn health(port: u16) -> bool {
    use std::io::{Read, Write};
    let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else { return false };
    let request = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

#[test]
fn a_dry_run_prints_launch_commands_and_leaves_nothing() {
    let workplace = Workplace::with_study(&fast_study());
    let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
    assert_eq!(dry.code, Some(0), "{}", dry.stderr);
    assert_eq!(dry.stdout.lines().count(), 5);
    assert!(dry.stdout.lines().all(|line| line.contains(" sim serve ")), "{}", dry.stdout);
    assert!(!workplace.path("setpoint.db").exists());
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the printed command under test")]
fn what_a_dry_run_prints_can_be_pasted_into_a_shell() {
    let engine = r#"command = ["sh", "-c", 'printf %s "$PLAIN"', "sh"]
env = { PLAIN = "two words" }"#;
    let workplace = Workplace::with_study(&study_with(engine, "trials = 1"));
    let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
    let line = dry.stdout.lines().next().unwrap();
    let output = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "two words", "{line}");
}

#[test]
fn progress_can_be_read_by_programs() {
    let workplace = Workplace::with_study(&study_with("", "trials = 1"));
    let tuned = workplace.run(&["tune", "study.toml", "--log-format", "json"]);
    let events: Vec<serde_json::Value> = tuned.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> =
        events.iter().filter_map(|event| event["event"].as_str()).filter(|kind| *kind != "phase").collect();
    assert_eq!(kinds, ["begin", "space", "plan", "launch", "trial", "end"]);
    assert!((events[1]["remaining_share"].as_f64().unwrap() - 14.0 / 15.0).abs() < 1e-9, "{}", events[1]);
    let phases: Vec<_> = events.iter().filter_map(|event| event["phase"].as_str()).collect();
    assert_eq!(phases, ["checking", "starting", "warming up", "measuring", "stopping"]);

    workplace.write("study.toml", &study_with("", "trials = 1").replace("requests = 16", "requests = 17"));
    let refused = workplace.run(&["tune", "study.toml", "--log-format", "json"]);
    let error: serde_json::Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!((&error["event"], &error["exit_code"]), (&"error".into(), &3.into()));
    assert!(error["message"].as_str().unwrap().contains("load.requests (now 17, stored 16)"), "{error}");
}

#[test]
fn the_v0_era_is_spelt_and_scheduled_as_it_was() {
    let model = crate::support::root().join("tests/fixtures/models/qwen2-0.5b-instruct");
    let text = study_with("version = \"0.6.3\"", "trials = 3");
    let (head, tail) = text.split_once("[space]").unwrap();
    let (_, tail) = tail.split_once("[workload]").unwrap();
    let head = head.replace(
        &crate::support::root().join("examples/models/qwen3-8b").display().to_string(),
        &model.display().to_string(),
    );
    let space = "[space]\nfile = \"search_spaces/vllm/v0.toml\"\n";
    let workplace = Workplace::with_study(&format!("{head}{space}[workload]{tail}"));
    let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
    assert!(dry.stdout.lines().skip(1).all(|line| line.contains("--scheduler-delay-factor ")), "{}", dry.stdout);
    assert!(dry.stdout.contains("--use-v2-block-manager"), "{}", dry.stdout);
    assert!(!dry.stdout.contains("--no-"), "this release cannot negate a flag: {}", dry.stdout);

    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    let trials = workplace.trials();
    assert_eq!(trials.iter().filter(|trial| trial["state"] == "measured").count(), 3);
    assert_eq!(trials[0]["engine_version"], "0.6.3");
}

#[test]
fn a_port_that_was_taken_says_nothing_about_the_configuration_and_is_tried_again() {
    let program = env!("CARGO_BIN_EXE_setpoint");
    let script = format!(
        r#"[ -e taken ] || {{ touch taken; echo "OSError: [Errno 98] Address already in use" >&2; exit 1; }}; exec {program} sim serve "$@""#
    );
    let engine = format!("command = [\"sh\", \"-c\", '''{script}''', \"sh\"]");
    let workplace = Workplace::with_study(&study_with(&engine, "trials = 1"));
    assert_eq!(workplace.run(&["tune", "study.toml"]).code, Some(0));
    assert!(workplace.path("taken").exists());
    let trials = workplace.trials();
    assert_eq!((trials.len(), &trials[0]["state"]), (1, &"measured".into()));
}

#[test]
fn a_dry_run_without_valid_configurations_says_so() {
    let workplace = Workplace::with_study(&fast_study().replace("max-model-len = 2048", "max-model-len = 99999"));
    let dry = workplace.run(&["tune", "study.toml", "--dry-run"]);
    assert_eq!((dry.code, dry.stdout.as_str()), (Some(4), ""));
    assert!(dry.stderr.contains("no configuration of the space passes the rules: R11 100.0 %"), "{}", dry.stderr);
}
