//! Studies of a server that only the study file describes.

use crate::support::{Workplace, root};

/// Creates a study of the stub server. `engine` contains further keys of `[engine]`, `flags` the words of its command.
fn study(flags: &str, engine: &str, space: &str, trials: u32) -> Workplace {
    let script = root().join("tests/it/stub_server.py");
    Workplace::with_study(&format!(
        "study = {{ name = \"stub\", sampler = \"grid\" }}\n\
         budget = {{ trials = {trials}, confirm = 0 }}\n\
         model = {{ path = \"some-model\" }}\n\
         workload = {{ kind = \"random\", input_len = 4, output_len = 4 }}\n\
         load = {{ concurrency = 2, requests = 4, warmup = 0 }}\n\
         objective = {{ maximize = \"output_throughput\" }}\n\
         [engine]\nkind = \"command\"\nhealth = \"/up\"\ndevice = \"cpu\"\nstop_timeout = \"1s\"\n\
         command = [\"python3\", \"{}\", \"--port\", \"{{port}}\", {flags}]\n{engine}\n\
         [space.parameters]\n{space}\n",
        script.display(),
    ))
}

const WORKERS: &str = "workers = { kind = \"categorical\", choices = [1, 4] }";

fn tuned(workplace: &Workplace) -> Vec<serde_json::Value> {
    let ended = workplace.run(&["tune", "study.toml"]);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(workplace.processes_left().is_empty());
    workplace.trials()
}

fn command(workplace: &Workplace, trial: &str) -> String {
    workplace.run(&["show", trial]).stdout
}

#[test]
fn a_described_server_is_tuned_resumed_and_exported() {
    let engine = "metrics = \"/numbers\"\n[engine.metric_names]\nrequests_running = \"stub_active\"";
    let workplace = study("\"--models\"", engine, WORKERS, 2);
    assert_eq!(tuned(&workplace).len(), 2);
    let ended = workplace.run(&["tune", "study.toml", "--trials", "3"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let trials = workplace.trials();
    assert!(trials.len() == 3 && trials.iter().all(|trial| trial["state"] == "measured"), "{trials:?}");
    let best = workplace.run(&["best"]);
    assert!(best.stdout.contains("workers=4"), "{}", best.stdout);
    let exported = workplace.run(&["export", "--format", "sh"]);
    assert!(exported.code == Some(0) && exported.stdout.contains("--workers"), "{}", exported.stdout);
    let checked = workplace.json(&["check", "study.toml", "--format", "json"]);
    assert_eq!((&checked["engine"]["kind"], &checked["engine"]["version"]), (&"command".into(), &().into()));
    let predicted = workplace.run(&["predict", "study.toml"]);
    assert!(predicted.code != Some(0) && predicted.stderr.contains("setpoint tune study.toml"), "{}", predicted.stderr);
}

#[test]
fn every_style_of_flags_reaches_the_server() {
    for (style, spelling, shown) in [
        ("equals", "", "--workers=4"),
        ("short", "[engine.flags]\nworkers = \"-w\"", "-w 4"),
        ("environment", "", "WORKERS"),
        ("separate", "[engine.flags]\nworkers = \"env:WORKERS\"", "WORKERS"),
    ] {
        let workplace = study("\"{flags}\", \"--end\"", &format!("flag_style = \"{style}\"\n{spelling}"), WORKERS, 3);
        let trials = tuned(&workplace);
        let four = trials.iter().find(|trial| trial["config"]["workers"] == 4).unwrap();
        let log = std::fs::read_to_string(four["log"].as_str().unwrap()).unwrap();
        assert!(log.contains("with 4 workers"), "{style}: {log}");
        let text = command(&workplace, &four["trial"].to_string());
        assert!(text.contains(shown), "{style}: {text}");
    }
}

#[test]
fn a_failing_launch_is_what_the_studys_patterns_say() {
    let engine =
        "ready_log = \"stub is up\"\n[[engine.failures]]\npattern = \"cannot allocate\"\nkind = \"host_memory\"";
    let space = "workers = { kind = \"categorical\", choices = [7, 4] }";
    let trials = tuned(&study("\"--end\"", engine, space, 3));
    let failed = trials.iter().find(|trial| trial["config"]["workers"] == 7).unwrap();
    assert!(failed.to_string().contains("host_memory") && failed.to_string().contains("7 workers"), "{failed}");
}

#[test]
fn what_cannot_be_used_is_named_with_its_key() {
    for (engine, problem) in [
        ("flag_style = \"long\"", "engine.flag_style: \"long\" is not a style of flags; there are separate, equals"),
        ("ready_log = \"(\"", "engine.ready_log: is not a regular expression: unclosed group"),
        ("dialect = \"vlm\"", "engine.dialect: \"vlm\" is not a dialect"),
        ("metrics = \"numbers\"", "engine.metrics: \"numbers\" is not a path"),
        ("metrics = \"/n\"\n[engine.metric_names]\nrequest_running = \"x\"", "request_running: is not a quantity"),
        ("[[engine.failures]]\npattern = \"x\"\nkind = \"oom\"", "kind: \"oom\" is not a kind of failure"),
        ("[[engine.failures]]\npattern = \"[\"\nkind = \"crash\"", "pattern: is not a regular expression"),
        ("[engine.flags]\nworkers = { on = \"x\" }", "engine.flags.workers: expected a flag such as"),
    ] {
        let ended = study("\"--end\"", engine, WORKERS, 2).run(&["check", "study.toml"]);
        assert!(ended.code != Some(0) && ended.stderr.contains(problem), "{engine}: {}", ended.stderr);
    }
    let workplace = study("\"--end\"", "", WORKERS, 2);
    let text = std::fs::read_to_string(workplace.path("study.toml")).unwrap();
    workplace.write("study.toml", &text.replace("{port}", "8000"));
    let ended = workplace.run(&["check", "study.toml"]);
    assert!(ended.stderr.contains("engine.command: {port} is missing"), "{}", ended.stderr);
}
