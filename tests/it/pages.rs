//! Reports and live pages: equal numbers in every format, hostile texts, access, events, and metrics.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, ChildStdout};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value as Json;
use setpoint::config::Config;
use setpoint::facts::Host;
use setpoint::objective::Score;
use setpoint::store::{Store, StoredJudgement, Study, TrialBegin};
use setpoint::trial::{Failure, FailureKind, LaunchCommand, Measurement, Origin, Outcome, Proposal, Rejection, Trial};

use crate::support::{Workplace, root, signal, wait_until};

const STUDY: &str = "serving <b>&\"quotes\"";

/// Returns a trial whose value is `tokens_per_s`.
fn measured(number: u32, origin: &'static str, seqs: i64, tokens_per_s: u64) -> Trial {
    let measurement = Measurement {
        completed: 100,
        duration_s: 10.0,
        total_output_tokens: 10 * tokens_per_s,
        ..Measurement::default()
    };
    trial(number, origin, seqs, Outcome::Measured(measurement))
}

fn trial(number: u32, origin: &'static str, seqs: i64, outcome: Outcome) -> Trial {
    let words = ["vllm", "serve", "org/model", "--max-num-seqs", &seqs.to_string()].map(str::to_owned);
    Trial {
        proposal: Proposal {
            number,
            origin: Origin::from_name(origin),
            why: Some("<i>why</i>".to_owned()),
            expected_gain: None,
            expected: None,
            config: Config::new().with("max-num-seqs", seqs),
            server_of: None,
        },
        launch: LaunchCommand { command: words.to_vec(), ..LaunchCommand::default() },
        started_at: format!("2030-01-02T03:{:02}:00.000Z", number % 60),
        startup_s: Some(12.5),
        elapsed_s: 40.0,
        engine_version: Some("0.32.0".to_owned()),
        log: Some("logs/\u{1b}[31mred</script>.log".into()),
        outcome,
        probe: None,
    }
}

async fn add(store: &Store, study: &Study, trial: &Trial) {
    let score = match trial.outcome.measurement().and_then(|measurement| measurement.metric("output_throughput")) {
        Some(value) => Score::Feasible { value },
        None => Score::Failed,
    };
    store.append(study.id, trial, score).await.unwrap();
}

/// Creates a database with a study whose names and messages are hostile.
async fn database(workplace: &Workplace) -> (Store, Study) {
    let store = Store::open(&workplace.path("setpoint.db").to_string_lossy(), true).await.unwrap();
    let definition = serde_json::json!({
        "engine": {"kind": "vllm"}, "model": "</script><script>alert(1)</script>",
        "objective": {"metric": "output_throughput", "goal": "maximize", "constraints": []},
        "space": {"fixed": {}, "parameters": {"max-num-seqs": {"domain": "1 to 1024, powers of two", "when": []}}},
    });
    let study = store.create_study(STUDY, &definition, &Host::detect()).await.unwrap();
    let message = "torch.OutOfMemoryError: </script><img src=x onerror=alert(1)> \u{1b}[2J `|x".to_owned();
    let failure = Outcome::Failed(Failure { kind: FailureKind::OutOfMemory, message });
    let rejection = Outcome::Rejected(Rejection { rule: "R1".to_owned(), message: "<b>8 < 9</b>".to_owned() });
    for trial in [
        measured(0, "baseline", 256, 1000),
        measured(1, "auto", 64, 1237),
        trial(2, "auto", 512, failure),
        trial(3, "auto", 1024, rejection),
        measured(4, "baseline_repeat", 256, 1010),
        measured(5, "confirmation", 64, 1241),
    ] {
        add(&store, &study, &trial).await;
    }
    (store, study)
}

/// The numbers of the study above in every format: the values of winner and defaults, and the gain.
const NUMBERS: [&str; 3] = ["1239", "1005", "1.23x"];

#[tokio::test(flavor = "multi_thread")]
async fn text_json_markdown_and_html_have_the_same_numbers() {
    let workplace = Workplace::new();
    drop(database(&workplace).await);
    let text = workplace.run(&["best"]).stdout;
    let best = workplace.json(&["best", "--format", "json"]);
    let markdown = workplace.run(&["report", "--format", "md"]).stdout;
    let html = workplace.run(&["report"]).stdout;
    for number in NUMBERS {
        assert!(text.contains(number), "{number} is not in the text: {text}");
        assert!(markdown.contains(number), "{number} is not in the Markdown: {markdown}");
        assert!(html.contains(number), "{number} is not in the page");
    }
    let document = document_of(&html);
    assert_eq!(document["winner"]["value"], best["mean_value"]);
    assert_eq!(document["winner"]["trial"], best["trial"]);
    assert_eq!(document["gains"][0]["factor"], best["gain"]);
    assert_eq!(document["gains"][0]["is_significant"], best["gain_significant"]);
    let trials = workplace.trials();
    for (stored, shown) in trials.iter().zip(document["trials"].as_array().unwrap()) {
        assert_eq!((&stored["value"], &stored["startup_s"]), (&shown["value"], &shown["startup_s"]));
    }
    let mut report = workplace.json(&["report", "--format", "json"]);
    let mut document = document;
    // Each was written at its own time.
    report["written_at"] = Json::Null;
    document["written_at"] = Json::Null;
    assert_eq!(report, document);
}

/// Returns the document that a page contains.
fn document_of(html: &str) -> Json {
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"document\">").expect("a document");
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_and_messages_stay_text_in_a_report() {
    let workplace = Workplace::new();
    drop(database(&workplace).await);
    let written = workplace.run(&["report", "-o", "report.html"]);
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let html = std::fs::read_to_string(workplace.path("report.html")).unwrap();
    for hostile in ["<script>alert", "<img src=x", "serving <b>", "<i>why", "\u{1b}"] {
        assert!(!html.contains(hostile), "{hostile:?} is in the page");
    }
    let markdown = workplace.run(&["report", "--format", "md"]).stdout;
    assert!(!markdown.contains("<img") && !markdown.contains('\u{1b}'), "{markdown}");
    let policy = html.split_once("Content-Security-Policy").unwrap().1;
    let nonce = policy.split_once("'nonce-").unwrap().1.split_once('\'').unwrap().0;
    assert_eq!(nonce.len(), 32, "{nonce}");
    let scripts = html.matches("<script").count();
    assert_eq!(scripts, html.matches(&format!("<script nonce=\"{nonce}\"")).count() + 1, "one script is data");
}

#[test]
fn a_wrong_use_of_report_and_serve_names_the_next_step() {
    let workplace = Workplace::new();
    let missing = workplace.run(&["report"]);
    assert_eq!(missing.code, Some(3), "{}", missing.stderr);
    let format = workplace.run(&["report", "--format", "pdf"]);
    assert_eq!(format.code, Some(2), "{}", format.stderr);
    let missing = workplace.run(&["serve"]);
    assert_eq!(missing.code, Some(3), "{}", missing.stderr);
    let token = workplace.run_with(&[("SETPOINT_TOKEN", "short")], "", &["serve", "--port", "0"]);
    assert_eq!(token.code, Some(2), "{}", token.stderr);
    assert!(token.stderr.contains("16") && token.stderr.contains("openssl"), "{}", token.stderr);
}

#[test]
fn the_licences_of_embedded_scripts_are_printed() {
    let printed = Workplace::new().run(&["--licenses"]);
    assert_eq!(printed.code, Some(0), "{}", printed.stderr);
    for text in ["Apache ECharts 6.1.0, Apache-2.0", "Apache License", "ZRender", "Baidu", "tslib"] {
        assert!(printed.stdout.contains(text), "{text} is missing");
    }
    let lock = std::fs::read_to_string(root().join("src/report/page/echarts/package-lock.json")).unwrap();
    let lock: Json = serde_json::from_str(&lock).unwrap();
    for (name, package) in [("Apache ECharts", "echarts"), ("ZRender", "zrender"), ("tslib", "tslib")] {
        let version = lock["packages"][format!("node_modules/{package}")]["version"].as_str().unwrap();
        assert!(printed.stdout.contains(&format!("{name} {version},")), "{name} is not {version}");
    }
}

/// A running `setpoint serve`, which ends with this value.
struct Server {
    process: Child,
    address: String,
    /// The query of the printed address.
    query: String,
}

impl Server {
    fn start(workplace: &Workplace, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let arguments = [&["serve", "--port", "0"], arguments].concat();
        let (process, stdout) = workplace.start_piped(&arguments, variables);
        let line = first_line(stdout);
        let rest = line.strip_prefix("http://").unwrap_or_else(|| panic!("no address: {line:?}"));
        let (address, query) = rest.split_once('/').unwrap();
        Self { process, address: address.replace("0.0.0.0", "127.0.0.1"), query: query.to_owned() }
    }

    /// Returns status, headers and body of an answer.
    fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
        let mut stream = self.open(path, headers);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_lowercase(), body.to_owned())
    }

    fn open(&self, path: &str, headers: &[(&str, &str)]) -> TcpStream {
        use std::io::Write;
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let has_host = headers.iter().any(|(name, _)| *name == "Host");
        let host = if has_host { String::new() } else { format!("Host: {}\r\n", self.address) };
        let headers: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let headers = headers.concat();
        write!(stream, "GET {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n").unwrap();
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn first_line(stdout: ChildStdout) -> String {
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn live_pages_show_each_trial_and_end_in_order() {
    let workplace = Workplace::new();
    let (store, study) = database(&workplace).await;
    let mut server = Server::start(&workplace, &[], &[]);
    let (status, headers, list) = server.get("/", &[]);
    assert_eq!(status, 200);
    let list = list.replace("&#x2f;", "/");
    for header in ["content-security-policy: default-src 'none'", "x-content-type-options: nosniff", "no-store"] {
        assert!(headers.contains(header), "{headers}");
    }
    let path = list.split_once("href=\"/studies/").unwrap().1.split_once('"').unwrap().0;
    let path = format!("/studies/{path}");
    let (status, _, page) = server.get(&path, &[]);
    assert_eq!((status, document_of(&page)["trials"].as_array().unwrap().len()), (200, 6), "{path}");
    assert!(!page.contains("<script>alert") && !page.contains(" nonce="), "scripts come from files");

    let mut events = BufReader::new(server.open(&format!("{path}/events"), &[]));
    let mut next_event = || {
        let mut line = String::new();
        while !line.starts_with("event: change") {
            line.clear();
            assert!(events.read_line(&mut line).unwrap() > 0, "the events have ended");
        }
    };
    next_event();
    for number in [6, 7] {
        add(&store, &study, &measured(number, "auto", 32, 900)).await;
        next_event();
        let (_, _, document) = server.get(&format!("{path}/document"), &[]);
        let document: Json = serde_json::from_str(document.trim()).unwrap();
        assert_eq!(document["trials"].as_array().unwrap().len(), number as usize + 1);
    }
    for missing in ["/studies/other", "/nothing", "/assets/other.js", &format!("{path}/timelines/1")] {
        assert_eq!(server.get(missing, &[]).0, 404, "{missing}");
    }
    for asset in ["echarts.js", "charts.js", "page.js", "live.js", "page.css"] {
        assert_eq!(server.get(&format!("/assets/{asset}"), &[]).0, 200, "{asset}");
    }
    // An open stream of events does not keep the server from its end.
    signal(&server.process, Signal::SIGTERM);
    let mut status = None;
    wait_until(Duration::from_secs(20), "the end of the server", || {
        status = server.process.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_names_and_callers_without_the_token_are_refused() {
    let workplace = Workplace::new();
    drop(database(&workplace).await);
    let local = Server::start(&workplace, &["--host-name", "tuner.example"], &[]);
    assert_eq!(local.query, "", "a loopback address needs no token");
    assert_eq!(local.get("/", &[("Host", "evil.example")]).0, 421);
    assert_eq!(local.get("/metrics", &[("Host", "127.0.0.1.evil.example:80")]).0, 421);
    assert_eq!(local.get("/", &[("Host", "tuner.example")]).0, 200);
    let open = Server::start(&workplace, &["--listen", "0.0.0.0"], &[]);
    assert!(open.query.starts_with("?token=") && open.query.len() > 30, "{}", open.query);
    assert_eq!(open.get("/", &[]).0, 401);
    let (status, headers, _) = open.get(&format!("/{}", open.query), &[]);
    assert_eq!(status, 303, "{headers}");
    assert!(headers.contains("httponly") && headers.contains("samesite=strict"), "{headers}");
    let token = open.query.trim_start_matches("?token=");
    assert_eq!(open.get("/", &[("Cookie", &format!("setpoint_token={token}"))]).0, 200);
    assert_eq!(open.get("/metrics", &[("Authorization", &format!("Bearer {token}"))]).0, 200);
    let named = Server::start(&workplace, &[], &[("SETPOINT_TOKEN", "a-token-of-my-own")]);
    assert_eq!(named.get("/", &[]).0, 401, "a given token is required everywhere");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_uses_metrics_that_exist() {
    let workplace = Workplace::new();
    let (store, study) = database(&workplace).await;
    let other = store.create_study("other", &study.definition, &Host::detect()).await.unwrap();
    add(&store, &other, &measured(0, "baseline", 8, 5)).await;
    let running = measured(6, "auto", 128, 1).proposal;
    let (launch, started_at) = (LaunchCommand::default(), "2030-01-02T03:04:05.000Z");
    let begin = TrialBegin { proposal: &running, launch: &launch, started_at, log: &workplace.path("log") };
    store.begin_trial(study.id, &begin).await.unwrap();
    let judgement = StoredJudgement { remaining: Some([0.0, 0.01, 0.02]), ..StoredJudgement::default() };
    store.store_judgement(study.id, &judgement).await.unwrap();
    let server = Server::start(&workplace, &[], &[]);
    let (status, headers, text) = server.get("/metrics", &[]);
    assert_eq!(status, 200);
    assert!(headers.contains("application/openmetrics-text"), "{headers}");
    assert!(text.trim_end().ends_with("# EOF"), "{text}");
    assert!(text.contains("configuration=\"winner\"} 1239.0"), "{text}");
    assert!(text.contains("study=\"serving <b>&\\\"quotes\\\"\""), "{text}");
    assert!(text.contains("setpoint_study_failures{study=\"serving <b>&\\\"quotes\\\"\",kind=\"out_of_memory\"} 1.0"));
    let dashboard = std::fs::read_to_string(root().join("examples/grafana/dashboard.json")).unwrap();
    let book = std::fs::read_to_string(root().join("docs/src/pages.md")).unwrap();
    let families: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let names = regex::Regex::new("setpoint_(?:study|build)_[a-z_]+").unwrap();
    for name in names.find_iter(&dashboard).map(|found| found.as_str()) {
        assert!(families.contains(&name), "the dashboard uses {name}, which is no metric");
    }
    for family in families {
        let sample = if family == "setpoint_build" { "setpoint_build_info" } else { family };
        assert!(book.contains(&format!("`{sample}`")), "the book does not describe {sample}");
    }
    let (_, _, page) = server.get("/compare?a=other&b=serving%20%3Cb%3E%26%22quotes%22", &[]);
    assert!(page.contains("1239") && !page.contains("serving <b>"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_study_of_a_thousand_trials_has_a_report() {
    let workplace = Workplace::new();
    let (store, study) = database(&workplace).await;
    for number in 6..1000 {
        add(&store, &study, &measured(number, "auto", i64::from(number), u64::from(number % 300))).await;
    }
    let written = workplace.run(&["report", "-o", "report.html"]);
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let html = std::fs::read_to_string(workplace.path("report.html")).unwrap();
    assert_eq!(document_of(&html)["trials"].as_array().unwrap().len(), 1000);
}
