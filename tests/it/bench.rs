//! `setpoint bench` against small servers and the simulated engine.

mod server;

use nix::sys::signal::Signal;
use serde_json::Value as Json;

use crate::support::{Ended, Workplace, root, signal};
use server::{Server, Way};

/// Runs a benchmark of a fraction of a second, with further arguments.
fn bench(workplace: &Workplace, server: &Server, arguments: &[&str]) -> Ended {
    workplace.run(&[&small(&server.url())[..], arguments].concat())
}

fn small(url: &str) -> Vec<&str> {
    vec!["bench", "--url", url, "--input-len", "16", "--output-len", "8", "--vocab-size", "1000"]
}

/// Returns whether the run is complete. On a machine that is busy with other tests, the client may be the bottleneck.
/// The program reports this with exit code 6, which these tests accept.
fn is_done(ended: &Ended) -> bool {
    let busy = ["failed", "completed", "too short"].iter().all(|other| !ended.stderr.contains(other));
    ended.code == Some(0) || (ended.code == Some(6) && busy)
}

fn json(workplace: &Workplace, arguments: &[&str]) -> Json {
    let ended = workplace.run(arguments);
    assert!(is_done(&ended), "{}", ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn read_json(workplace: &Workplace, name: &str) -> Json {
    serde_json::from_str(&std::fs::read_to_string(workplace.path(name)).unwrap()).unwrap()
}

/// Field names that other programs rely on.
const CONTRACT: [&str; 31] = [
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "completed",
    "failed",
    "duration",
    "total_input_tokens",
    "total_output_tokens",
    "request_goodput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
    "errors",
    "client",
    "valid",
];

#[test]
fn the_json_has_every_field_of_the_contract_and_nothing_else_is_on_standard_output() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Slow));
    let ended = bench(&workplace, &server, &["--num-requests", "20", "--concurrency", "4", "--format", "json"]);
    assert!(is_done(&ended), "{}", ended.stderr);
    let json: Json = serde_json::from_str(&ended.stdout).unwrap();
    for name in CONTRACT {
        assert!(json.get(name).is_some(), "{name} is missing: {json:#}");
    }
    assert_eq!((json["completed"].as_u64(), json["failed"].as_u64()), (Some(20), Some(0)));
    assert_eq!((json["total_input_tokens"].as_u64(), json["total_output_tokens"].as_u64()), (Some(320), Some(160)));
    assert_eq!((&json["model_id"], &json["request_rate"]), (&"made-up".into(), &"inf".into()));
    assert_eq!(json["max_concurrency"], 4);
    assert_eq!(json["valid"], ended.code == Some(0));
    assert!(json["client"]["cpu_s"].as_f64().is_some_and(|cpu| cpu >= 0.0), "{json:#}");
    assert!(json["mean_tpot_ms"].as_f64().unwrap() >= 1.0, "{json:#}");
}

#[test]
fn every_format_is_printed_without_colour_into_a_pipe() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    for (format, begin) in [
        (
            "text",
            "============ Serving Benchmark Result ============\nSuccessful requests:                     5         \n",
        ),
        ("json", "{\n"),
        ("markdown", "| Test name "),
        ("columns", r#"{"latency":{},"throughput":{},"serving":{"Test name":{"0":"#),
    ] {
        let ended = bench(&workplace, &server, &["--num-requests", "5", "--concurrency", "2", "--format", format]);
        assert!(is_done(&ended), "{}", ended.stderr);
        assert!(ended.stdout.starts_with(begin), "{format}: {}", ended.stdout);
        assert!(!(ended.stdout + &ended.stderr).contains('\x1b'), "{format}");
    }
}

#[test]
fn files_of_results_and_records_are_whole_and_quiet_is_quiet() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    let arguments = ["--num-requests", "6", "--concurrency", "2", "--warmup", "2", "--quiet"];
    let files = ["--output", "result.json", "--records", "records.jsonl"];
    let ended = bench(&workplace, &server, &[&arguments[..], &files[..]].concat());
    assert!(is_done(&ended) && !ended.stderr.contains("measuring"), "{}", ended.stderr);
    assert_eq!(read_json(&workplace, "result.json")["completed"], 6);
    let records = std::fs::read_to_string(workplace.path("records.jsonl")).unwrap();
    let records: Vec<Json> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 6, "the warm-up has no records");
    for record in records {
        assert_eq!((&record["prompt_tokens"], &record["output_tokens"]), (&16.into(), &8.into()));
        assert_eq!(record["chunks_ms"].as_array().unwrap().len(), 8);
        assert_eq!(record["error"], Json::Null);
    }
    assert_eq!(server.asked().len(), 8);
}

#[test]
fn the_same_seed_asks_the_same() {
    let prompts = |seed: &str| {
        let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
        let ended = bench(&workplace, &server, &["--num-requests", "9", "--concurrency", "3", "--seed", seed]);
        assert!(is_done(&ended), "{}", ended.stderr);
        let mut prompts: Vec<_> = server.asked().iter().map(|(_, body)| body["prompt"].to_string()).collect();
        prompts.sort();
        prompts
    };
    let first = prompts("7");
    assert_eq!(first, prompts("7"));
    assert_ne!(first, prompts("8"));
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "each prompt differs from the others");
}

#[test]
fn too_many_failures_make_the_sample_void_and_the_numbers_are_written() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::HalfFail));
    let arguments = ["--num-requests", "20", "--concurrency", "1", "--output", "result.json"];
    let ended = bench(&workplace, &server, &arguments);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("the sample is void: "), "{}", ended.stderr);
    assert!(ended.stderr.contains("requests have failed"), "{}", ended.stderr);
    assert!(ended.stderr.contains("; the first: http status 500"), "{}", ended.stderr);
    assert!(ended.stdout.contains("errors:"), "{}", ended.stdout);
    let json = read_json(&workplace, "result.json");
    assert_eq!(json["valid"], false);
    assert!(json["errors"]["http_500"].as_u64() >= Some(2), "{json:#}");
    // A limit above the share of failures accepts the sample.
    let patient =
        bench(&workplace, &server, &["--num-requests", "20", "--concurrency", "1", "--max-error-rate", "60%"]);
    assert!(is_done(&patient), "{}", patient.stderr);
}

#[test]
fn a_server_that_refuses_everything_is_given_up_after_the_first_requests() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Status(400)));
    let ended = bench(&workplace, &server, &["--num-requests", "5000", "--concurrency", "2"]);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("; the first: http status 400: made up"), "{}", ended.stderr);
    assert!(server.asked().len() < 100, "{} requests", server.asked().len());
}

#[test]
fn without_a_server_nothing_is_measured() {
    let workplace = Workplace::new();
    let port = setpoint::server::free_port().unwrap();
    let ended = workplace.run(&["bench", "--url", &format!("http://127.0.0.1:{port}"), "--output", "result.json"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""));
    assert!(ended.stderr.contains("hint: start the server first"), "{}", ended.stderr);
    assert!(!workplace.path("result.json").exists());
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_sent() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    let cases: &[(&[&str], &str)] = &[
        (&["--rate", "5"], "a rate alone does not say when to stop"),
        (&["--rate", "0"], "give a number above 0"),
        (&["--ramp", "1:2"], "is not FROM:TO:OVER"),
        (&["--duration", "soon"], "is not a time above 0"),
        (&["--duration", "5m"], "all requests at once, and not how many"),
        (&["--trace-factor", "2"], "has none"),
        (&["--model", "another"], "it serves made-up"),
        (&["--header", "colonless"], "NAME: VALUE"),
        (&["--extra-body", "[]"], "no JSON object"),
        (&["--api-key-env", "NO_SUCH_VARIABLE"], "the environment has no NO_SUCH_VARIABLE"),
        (&["--output", "missing/result.json"], "--output missing/result.json"),
        (&["--until-metric", "mean_ttft_ms"], "--until"),
        (&["--goodput", "itl:50"], "itl"),
        (&["--format", "yaml"], "possible values"),
        (&["--input-len", "16..x"], "16..x"),
    ];
    let url = server.url();
    for (arguments, problem) in cases {
        let arguments = [&["bench", "--url", &url, "--vocab-size", "1000"][..], arguments].concat();
        let ended = workplace.run(&arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(problem), "{arguments:?}: {}", ended.stderr);
    }
    assert!(server.asked().is_empty());
}

#[test]
fn keys_headers_and_further_fields_reach_the_server_and_the_key_is_shown_nowhere() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    let url = server.url();
    let further = ["--header", "X-Team: a", "--extra-body", r#"{"top_p": 0.5}"#, "--num-requests", "2"];
    let named = ["--api-key-env", "MADE_UP_KEY", "--format", "json", "--log-format", "json"];
    let arguments: Vec<&str> = [&small(&url)[..], &further[..], &named[..]].concat();
    let ended = workplace.run_with(&[("MADE_UP_KEY", "very-secret")], "", &arguments);
    assert!(is_done(&ended), "{}", ended.stderr);
    assert!(!(ended.stdout + &ended.stderr).contains("very-secret"));
    for (head, body) in server.asked() {
        assert!(head.to_lowercase().contains("authorization: bearer very-secret"), "{head}");
        assert!(head.to_lowercase().contains("x-team: a"), "{head}");
        assert_eq!((&body["top_p"], &body["model"]), (&0.5.into(), &"made-up".into()));
    }
}

#[test]
fn an_interrupted_run_writes_what_has_ended() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Slow));
    let url = server.url();
    let long = ["--num-requests", "100000", "--concurrency", "2", "--output", "result.json"];
    let mut child = workplace.start(&[&small(&url)[..], &long[..]].concat());
    crate::support::wait_until(std::time::Duration::from_secs(30), "twenty requests", || server.asked().len() > 20);
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let json = read_json(&workplace, "result.json");
    assert_eq!(json["end"], "interrupted");
    assert!(json["completed"].as_u64() >= Some(10), "{json:#}");
    assert_eq!(workplace.path("result.json").parent().unwrap().read_dir().unwrap().count(), 2, "no partial file");
}

#[test]
fn progress_is_one_json_object_a_line_where_that_is_asked_for() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Slow));
    let ended = bench(&workplace, &server, &["--num-requests", "60", "--concurrency", "2", "--log-format", "json"]);
    assert!(is_done(&ended), "{}", ended.stderr);
    let lines: Vec<Json> = ended.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().any(|line| line["event"] == "progress" && line["phase"] == "measuring"), "{lines:?}");
}

#[test]
fn the_simulated_engine_is_measured_like_any_other() {
    let workplace = Workplace::new();
    let port = setpoint::server::free_port().unwrap();
    let (model, number) = (root().join("examples/models/qwen3-8b"), port.to_string());
    // Slow enough for the server's page to be read at both ends of a window.
    let fast = ["--sim-time-scale", "20", "--sim-startup-s", "0.02", "--max-model-len", "2048"];
    let serve = ["sim", "serve", &model.to_string_lossy(), "--port", &number];
    let engine = End(workplace.start(&[&serve[..], &fast[..]].concat()));
    crate::support::wait_until(std::time::Duration::from_secs(30), "the engine", || crate::study::health(port));
    let url = format!("http://127.0.0.1:{port}");
    let load = ["--num-requests", "40", "--concurrency", "8", "--format", "json"];
    let json = json(&workplace, &[&small(&url)[..], &load[..]].concat());
    assert_eq!((json["completed"].as_u64(), json["total_output_tokens"].as_u64()), (Some(40), Some(320)));
    assert_eq!(json["model_id"], model.to_string_lossy().as_ref());
    let foreign = ["bench", "--url", &url, "--input-len", "16", "--output-len", "8", "--vocab-size", "900000"];
    let foreign = workplace.run(&[&foreign[..], &["--num-requests", "20"]].concat());
    assert_eq!(foreign.code, Some(6), "{}", foreign.stderr);
    assert!(foreign.stderr.contains("give --vocab-size N"), "{}", foreign.stderr);
    // Requests that exceed the server's context length are refused before any of them is sent.
    let long = workplace.run(&["bench", "--url", &url, "--input-len", "2048", "--vocab-size", "1000"]);
    assert_eq!(long.code, Some(2), "{}", long.stderr);
    assert!(long.stderr.contains("2048"), "{}", long.stderr);
    // Hits in the prefix cache can only come from earlier, equal requests. The program warns about them.
    assert!(!long.stderr.contains("prefix cache"), "{}", long.stderr);
    let again =
        workplace.run(&["bench", "--url", &url, "--input-len", "200", "--num-requests", "20", "--concurrency", "2"]);
    assert!(!again.stderr.contains("prefix cache"), "{}", again.stderr);
    let again =
        workplace.run(&["bench", "--url", &url, "--input-len", "200", "--num-requests", "20", "--concurrency", "2"]);
    assert!(again.stderr.contains("of the prompts in its prefix cache"), "{}", again.stderr);
    drop(engine);
}

/// A process that ends with the test, even if the test fails.
struct End(std::process::Child);

impl Drop for End {
    fn drop(&mut self) {
        signal(&self.0, Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

#[test]
fn a_profile_is_several_runs_in_one_document() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    let run = |name: &str, load: &str| {
        let workload = r#"{ kind = "random", input_len = 16, output_len = 4 }"#;
        format!("[[run]]\nname = \"{name}\"\nworkload = {workload}\nload = {load}\n")
    };
    let closed = run("closed", "{ concurrency = 2, requests = 4 }");
    let once = run("once", r#"{ rate = "inf", requests = 6, max_error_rate = 0.5 }"#);
    workplace.write("two.toml", &format!("{closed}{once}"));
    let url = server.url();
    let arguments = ["bench", "--url", &url, "--profile", "two.toml", "--vocab-size", "1000"];
    let ended = workplace.run(&[&arguments[..], &["--format", "columns", "--output", "result.json"]].concat());
    let columns: Json = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(columns["serving"]["Test name"], serde_json::json!({"0": "two_closed", "1": "two_once"}));
    assert_eq!(columns["serving"]["# of req."], serde_json::json!({"0": 4, "1": 6}));
    let all = read_json(&workplace, "result.json");
    assert_eq!((&all[0]["max_concurrency"], &all[1]["max_concurrency"]), (&2.into(), &Json::Null));
    assert_eq!(all.as_array().unwrap().len(), 2);
    // A profile defines its requests, so `--input-len` conflicts with it. An unknown profile is invalid data.
    let both = workplace.run(&[&arguments[..], &["--input-len", "5"]].concat());
    assert_eq!(both.code, Some(2), "{}", both.stderr);
    let none = workplace.run(&["bench", "--url", &url, "--profile", "loww"]);
    assert_eq!(none.code, Some(3), "{}", none.stderr);
    assert!(none.stderr.contains("did you mean low?"), "{}", none.stderr);
}

#[test]
fn no_run_of_a_profile_asks_what_another_has_asked() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    let run = |name: &str, len: u32| {
        let workload = format!("{{ kind = \"random\", input_len = {len}, output_len = 4 }}");
        format!(
            "[[run]]\nname = \"{name}\"\nworkload = {workload}\nload = {{ concurrency = 2, requests = 4, warmup = 2 }}\n"
        )
    };
    workplace.write("three.toml", &[run("long", 40), run("short", 20), run("again", 20)].concat());
    let url = server.url();
    let ended = workplace.run(&["bench", "--url", &url, "--profile", "three.toml", "--vocab-size", "1000"]);
    assert!(is_done(&ended) && !ended.stderr.contains("some repeat"), "{}", ended.stderr);
    let begin = |body: &Json| body["prompt"].as_array().unwrap()[..20].to_vec();
    let begins: Vec<_> = server.asked().iter().map(|(_, body)| begin(body)).collect();
    assert_eq!(begins.len(), 18);
    for (at, prompt) in begins.iter().enumerate() {
        assert!(!begins[..at].contains(prompt), "the prefix cache would have it: {prompt:?}");
    }
}

#[test]
fn a_file_with_fewer_prompts_than_are_asked_for_is_told_of() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    let fixtures = root().join("tests/fixtures");
    let (file, tokenizer) = (fixtures.join("sharegpt.json"), fixtures.join("tokenizer"));
    let (file, tokenizer, url) = (file.to_string_lossy(), tokenizer.to_string_lossy(), server.url());
    let bench = ["bench", "--url", &url, "--dataset", &file, "--tokenizer", &tokenizer, "--concurrency", "2"];
    let asked = |requests: &str, warmup: &str| {
        let before = server.asked().len();
        let ended = workplace.run(&[&bench[..], &["--num-requests", requests, "--warmup", warmup]].concat());
        let prompts: Vec<_> = server.asked()[before..].iter().map(|(_, body)| body["prompt"].to_string()).collect();
        (prompts, ended.stderr.contains("there are only 8 prompts, and 9 requests are measured: some repeat"))
    };
    let (mut prompts, told) = asked("5", "3");
    prompts.sort();
    prompts.dedup();
    assert_eq!((prompts.len(), told), (8, false), "the warm-up has prompts of its own");
    assert!(asked("9", "0").1);
}

#[test]
fn a_profile_says_itself_what_is_good_and_when_it_is_enough() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    let load = "concurrency = 2, requests = 4, goodput = [\"ttft:0.000001\"], window = \"steady\", until = \"1%\"";
    let workload = "{ kind = \"random\", input_len = 16, output_len = 4 }";
    workplace.write("own.toml", &format!("[[run]]\nname = \"a\"\nworkload = {workload}\nload = {{ {load} }}\n"));
    let url = server.url();
    let bench = ["bench", "--url", &url, "--profile", "own.toml", "--vocab-size", "1000", "--output", "result.json"];
    let ended = workplace.run(&bench);
    assert_eq!(ended.code, Some(6), "{}", ended.stderr);
    assert!(ended.stderr.contains("the run was too short to know output_throughput to 1 %"), "{}", ended.stderr);
    assert!(ended.stderr.contains("no steady state was found"), "{}", ended.stderr);
    assert_eq!(read_json(&workplace, "result.json")[0]["good"], 0);
    let over = workplace.run(&[&bench[..], &["--window", "whole", "--goodput", "ttft:60000"]].concat());
    assert!(!over.stderr.contains("no steady state"), "{}", over.stderr);
    assert_eq!(read_json(&workplace, "result.json")[0]["good"], 4);
}

#[test]
fn a_trace_is_replayed_at_its_own_time_stamps() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Good));
    workplace.write("trace.csv", "arrival_s,input_tokens,output_tokens\n10.0,5,2\n10.2,6,3\n10.6,7,4\n");
    let url = server.url();
    let arguments =
        ["bench", "--url", &url, "--trace", "trace.csv", "--vocab-size", "1000", "--records", "records.jsonl"];
    let ended = workplace.run(&[&arguments[..], &["--trace-factor", "0.5"]].concat());
    assert!(is_done(&ended), "{}", ended.stderr);
    let records = std::fs::read_to_string(workplace.path("records.jsonl")).unwrap();
    let mut records: Vec<Json> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.sort_by_key(|record| record["session"].as_u64());
    let due: Vec<_> = records.iter().map(|record| record["due_s"].as_f64().unwrap()).collect();
    assert!(due.iter().zip([0.0, 0.1, 0.3]).all(|(due, asked)| (due - asked).abs() < 1e-6), "{due:?}");
    let lengths: Vec<_> = records.iter().map(|record| record["prompt_tokens"].as_u64().unwrap()).collect();
    assert_eq!(lengths, [5, 6, 7]);
    workplace.write("trace.csv", "arrival_s,input_tokens,output_tokens\n10.0,five,2\n");
    let wrong = workplace.run(&arguments);
    assert_eq!(wrong.code, Some(3), "{}", wrong.stderr);
    assert!(wrong.stderr.contains("trace.csv:2"), "{}", wrong.stderr);
}

#[test]
fn whole_replies_have_no_time_to_the_first_token_and_good_requests_are_counted() {
    let (workplace, server) = (Workplace::new(), Server::start(Way::Slow));
    let load = ["--num-requests", "6", "--concurrency", "2", "--format", "json"];
    let url = server.url();
    let whole = json(&workplace, &[&small(&url)[..], &load[..], &["--no-stream"]].concat());
    assert_eq!((whole.get("mean_ttft_ms"), &whole["total_output_tokens"]), (None, &48.into()));
    assert!(whole["mean_e2el_ms"].as_f64().unwrap() > 0.0);
    let limits = ["--goodput", "ttft:60000", "--goodput", "e2el:1"];
    let judged = json(&workplace, &[&small(&url)[..], &load[..], &limits[..]].concat());
    assert_eq!(judged["request_goodput"], 0.0, "eight tokens take eight milliseconds");
    let series = json(&workplace, &[&small(&url)[..], &load[..], &["--series"]].concat());
    assert_eq!(series["series"][0]["sent"], 6);
}
