//! `setpoint optimize` over pipes, as other programs drive it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value as Json, json};

use crate::support::Workplace;

/// The program, driven line by line. It ends with the test.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl Program {
    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_setpoint"));
        command.arg("optimize").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        Self { child, input, output }
    }

    fn send(&mut self, message: &Json) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn answer(&mut self) -> Json {
        let mut line = String::new();
        self.output.as_mut().unwrap().read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, id: usize) -> Json {
        self.send(&json!({"type": "ask", "id": id}));
        let answer = self.answer();
        assert_eq!((&answer["type"], &answer["id"]), (&json!("config"), &json!(id)), "{answer}");
        assert!(answer["why"].as_str().is_some_and(|why| !why.is_empty() && !why.contains('\n')), "{answer}");
        answer["config"].clone()
    }

    /// Closes the program's input. Returns the exit status and the rest of standard output and standard error.
    fn end(mut self) -> (ExitStatus, String, String) {
        drop(self.input.take());
        let (mut rest, mut stderr) = (String::new(), String::new());
        self.output.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap(), rest, stderr)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn space(seed: u64) -> Json {
    json!({
        "type": "space", "protocol": 1, "problem": "test", "budget": 60, "parallel": 1, "seed": seed,
        "params": [
            {"name": "method", "type": "categorical", "choices": ["none", "ngram", "draft"]},
            {"name": "tokens", "type": "int", "low": 1, "high": 8, "log": false,
             "when": {"param": "method", "in": ["ngram", "draft"]}},
            {"name": "seqs", "type": "int", "low": 8, "high": 1024, "log": true},
            {"name": "batched", "type": "int", "low": 512, "high": 32768, "log": true, "grid": "pow2"},
            {"name": "chunked", "type": "bool"},
            {"name": "share", "type": "float", "low": 0.5, "high": 0.98, "log": false},
            {"name": "delay", "type": "float", "low": 0.0, "high": 2.0, "log": false},
        ],
        "objectives": [{"name": "throughput", "direction": "maximize"}],
        "constraints": [{"name": "ttft_p99", "feasible": "<=0", "scale": "ln(measured/limit)"}],
        "known_constraints": [
            {"expr": "batched >= 4 * seqs"},
            {"when": {"param": "chunked", "in": [false]}, "expr": "batched >= 4096"},
        ],
    })
}

/// Checks that the configuration is in the space, with strict types, and that it keeps the known constraints.
fn check(config: &Json) {
    let config = config.as_object().unwrap();
    let method = config["method"].as_str().unwrap();
    assert!(["none", "ngram", "draft"].contains(&method), "{config:?}");
    assert_eq!(config.contains_key("tokens"), method != "none", "{config:?}");
    assert_eq!(config.len(), 6 + usize::from(method != "none"), "{config:?}");
    if let Some(tokens) = config.get("tokens") {
        assert!(tokens.as_i64().is_some_and(|tokens| (1..=8).contains(&tokens)), "{config:?}");
    }
    let (seqs, batched) = (config["seqs"].as_i64().unwrap(), config["batched"].as_i64().unwrap());
    assert!((8..=1024).contains(&seqs) && (512..=32768).contains(&batched) && batched.count_ones() == 1, "{config:?}");
    assert!(batched >= 4 * seqs && (config["chunked"].as_bool().unwrap() || batched >= 4096), "{config:?}");
    for (name, low, high) in [("share", 0.5, 0.98), ("delay", 0.0, 2.0)] {
        assert!(config[name].is_f64() && (low..=high).contains(&config[name].as_f64().unwrap()), "{config:?}");
    }
}

/// Returns a message with the outcome of a configuration. A third of them fails, and some of the others are too late.
fn outcome(id: usize, config: &Json) -> Json {
    let seqs = config["seqs"].as_f64().unwrap();
    let late = (seqs / 300.0).ln();
    match id % 3 {
        0 => {
            json!({"type": "tell", "id": id, "config": config, "status": "failed", "values": null, "constraints": null})
        }
        _ => json!({
            "type": "tell", "id": id, "config": config, "status": if late <= 0.0 { "ok" } else { "infeasible" },
            "values": {"throughput": 100.0 * seqs.sqrt()}, "constraints": {"ttft_p99": late},
        }),
    }
}

/// Runs the program to its end. Returns every proposed configuration.
fn run(arguments: &[&str], seed: u64, trials: usize) -> Vec<Json> {
    let mut program = Program::start(arguments);
    program.send(&space(seed));
    let ready = program.answer();
    assert!(
        ready["type"] == "ready" && ready["name"].as_str().is_some_and(|name| name.starts_with("setpoint ")),
        "{ready}"
    );
    let mut configs = Vec::new();
    for id in 0..trials {
        let config = program.ask(id);
        check(&config);
        program.send(&outcome(id, &config));
        configs.push(config);
    }
    program.send(&json!({"type": "end"}));
    let (status, rest, stderr) = program.end();
    assert_eq!((status.code(), rest.as_str(), stderr.as_str()), (Some(0), "", ""));
    configs
}

#[test]
fn a_run_of_sixty_on_a_conditional_space_stays_in_it_and_never_repeats_itself() {
    for sampler in ["random", "sobol", "grid", "tpe"] {
        let configs = run(&["--sampler", sampler], 3, 60);
        let different: std::collections::HashSet<_> = configs.iter().map(ToString::to_string).collect();
        assert_eq!(different.len(), 60, "{sampler}");
        assert!(configs.iter().any(|config| config.get("tokens").is_some()), "{sampler}");
    }
}

#[test]
fn the_default_sampler_learns_from_what_it_is_told() {
    // This sampler takes longer for a suggestion than the others: most of a second in a build without optimization.
    let configs = run(&[], 3, 12);
    let different: std::collections::HashSet<_> = configs.iter().map(ToString::to_string).collect();
    assert_eq!(different.len(), 12);
    assert_eq!(run(&["--sampler", "auto"], 3, 12), configs);
    assert_ne!(run(&["--sampler", "sobol"], 3, 12)[6..], configs[6..], "an even sequence is no learning");
}

#[test]
fn the_same_seed_gives_the_same_answers_and_one_on_the_command_line_goes_first() {
    for sampler in ["random", "sobol", "grid", "tpe"] {
        let first = run(&["--sampler", sampler], 3, 8);
        assert_eq!(run(&["--sampler", sampler], 3, 8), first);
        assert_ne!(run(&["--sampler", sampler], 4, 8), first);
        assert_eq!(run(&["--sampler", sampler, "--seed", "3"], 4, 8), first);
    }
}

#[test]
fn several_may_be_asked_before_any_is_told() {
    let mut program = Program::start(&[]);
    program.send(&space(5));
    program.answer();
    let configs: Vec<_> = (0..4).map(|id| program.ask(id)).collect();
    for (id, config) in configs.iter().enumerate() {
        check(config);
        program.send(&outcome(id, config));
    }
    program.ask(4);
    // The end of the input also ends the program.
    let (status, rest, stderr) = program.end();
    assert_eq!((status.code(), rest.as_str(), stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn a_wrong_line_is_answered_with_an_error_and_ends_the_program() {
    let mut unknown = space(0);
    unknown["params"][2]["type"] = json!("integer");
    for (line, expected) in [
        ("what".to_owned(), "the line is not JSON"),
        (r#"{"type":"ask","id":1}"#.to_owned(), "the ask message came before the space message"),
        (unknown.to_string(), "parameter \"seqs\": type is \"integer\", expected one of int, float, bool, categorical"),
    ] {
        let mut program = Program::start(&[]);
        writeln!(program.input.as_mut().unwrap(), "{line}").unwrap();
        let answer = program.answer();
        let message = answer["message"].as_str().unwrap();
        assert!(answer["type"] == "error" && message.contains(expected), "{answer}");
        // The program ends by itself, although its input is still open.
        let status = program.child.wait().unwrap();
        let (_, rest, stderr) = program.end();
        assert_eq!((status.code(), rest.as_str()), (Some(2), ""));
        assert!(stderr.contains(message), "{stderr}");
    }
}

#[test]
fn a_sampler_that_does_not_exist_is_wrong_usage() {
    let ended = Workplace::new().run(&["optimize", "--sampler", "best"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    assert!(ended.stderr.contains("random"), "{}", ended.stderr);
}

#[test]
fn a_caller_that_no_longer_listens_is_no_failure() {
    let mut program = Program::start(&[]);
    program.send(&space(1));
    program.answer();
    program.output = None;
    program.send(&json!({"type": "ask", "id": 1}));
    let (status, mut stderr) = (program.child.wait().unwrap(), String::new());
    program.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
}
