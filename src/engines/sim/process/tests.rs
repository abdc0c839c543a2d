//! Tests of the server through a real socket, from the view of a load generator.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Refusal, ServeError, ServedLog, SimOptions, serve_on};

#[derive(Clone, Default)]
pub(super) struct Capture(Arc<Mutex<Vec<u8>>>);

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Capture {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

pub(super) struct TestServer {
    address: SocketAddr,
    client: reqwest::Client,
    stop: oneshot::Sender<u8>,
    pub(super) ended: JoinHandle<Result<(), ServeError>>,
    pub(super) log: Capture,
    _model: tempfile::TempDir,
}

/// Writes the configuration of a small model, so that steps are short.
pub(super) fn write_model(directory: &Path) {
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 1000,
        "max_position_embeddings": 2048, "tie_word_embeddings": true, "torch_dtype": "bfloat16"
    });
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
}

pub(super) fn launch(flags: &str) -> TestServer {
    launch_in(flags, &[])
}

fn launch_in(flags: &str, env: &[(&str, &str)]) -> TestServer {
    let model = tempfile::tempdir().unwrap();
    write_model(model.path());
    let mut arguments = vec![model.path().display().to_string()];
    arguments.extend("--served-model-name m --sim-startup-s 0.02 --sim-time-scale 20".split(' ').map(str::to_owned));
    arguments.extend(flags.split_whitespace().map(str::to_owned));
    let mut options = SimOptions::parse(&arguments).unwrap();
    options.env.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let log = Capture::default();
    let lines = ServedLog::new(options.version, Box::new(log.clone()), Box::new(log.clone()));
    let signal = async { stopped.await.unwrap_or(15) };
    let ended = tokio::spawn(serve_on(options, Some(socket), lines, signal));
    TestServer { address, client: reqwest::Client::new(), stop, ended, log, _model: model }
}

pub(super) async fn ready(flags: &str) -> TestServer {
    let server = launch(flags);
    server.wait().await;
    server
}

/// Starts a server that can be paused.
pub(super) async fn ready_in_dev_mode(flags: &str) -> TestServer {
    let server = launch_in(flags, &[("VLLM_SERVER_DEV_MODE", "1")]);
    server.wait().await;
    server
}

async fn refused(flags: &str) -> Refusal {
    match launch(flags).ended.await.unwrap() {
        Err(ServeError::Refused(refusal)) => refusal,
        other => panic!("{flags}: {other:?}"),
    }
}

impl TestServer {
    pub(super) async fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.get("/health").await.is_none() {
            assert!(Instant::now() < deadline, "not ready: {}", self.log.text());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) async fn get(&self, path: &str) -> Option<String> {
        self.client.get(self.url(path)).send().await.ok()?.text().await.ok()
    }

    /// Sends a request and returns after the head of the reply.
    pub(super) async fn begin(&self, path: &str, ask: Json) -> reqwest::Response {
        self.client.post(self.url(path)).json(&ask).send().await.unwrap()
    }

    /// Ends the server in order.
    pub(super) async fn end(self) {
        self.stop.send(15).unwrap();
        self.ended.await.unwrap().unwrap();
    }

    pub(super) async fn post(&self, path: &str, ask: Json) -> (u16, String) {
        let reply = self.begin(path, ask).await;
        (reply.status().as_u16(), reply.text().await.unwrap())
    }

    pub(super) async fn complete(&self, ask: Json) -> (u16, String) {
        self.post("/v1/completions", ask).await
    }

    pub(super) async fn chat(&self, ask: Json) -> (u16, String) {
        self.post("/v1/chat/completions", ask).await
    }

    /// Returns the data of the events, in order.
    pub(super) async fn stream(&self, ask: Json) -> Vec<String> {
        let (status, text) = self.complete(ask).await;
        assert_eq!(status, 200, "{text}");
        events(&text)
    }

    /// Returns the value of the only series of this name.
    pub(super) async fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").await.unwrap();
        let line = page.lines().find(|line| line.starts_with(&format!("vllm:{name}{{"))).unwrap_or_else(|| {
            panic!("{name} is not in {page}");
        });
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

pub(super) fn events(text: &str) -> Vec<String> {
    text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap().to_owned()).collect()
}

#[tokio::test]
async fn models_version_and_health_answer_once_the_start_is_over() {
    let server = launch("--sim-startup-s 0.1 --max-model-len 512");
    assert_eq!(server.get("/health").await, None, "connections are refused while starting");
    server.wait().await;
    let models: Json = serde_json::from_str(&server.get("/v1/models").await.unwrap()).unwrap();
    assert_eq!((models["data"][0]["id"].as_str(), models["data"][0]["max_model_len"].as_u64()), (Some("m"), Some(512)));
    assert_eq!(server.get("/version").await.as_deref(), Some(r#"{"version":"0.33.0"}"#));
}

#[tokio::test]
async fn a_stream_has_a_chunk_for_each_token_then_usage_then_done() {
    let server = ready("").await;
    let ask = json!({
        "model": "m", "prompt": [5, 6, 7], "max_tokens": 12, "ignore_eos": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let events = server.stream(ask).await;
    assert_eq!(events.len(), 14);
    assert_eq!(events[13], "[DONE]");
    let chunks: Vec<Json> = events[..13].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for (index, chunk) in chunks[..12].iter().enumerate() {
        assert_eq!((chunk["model"].as_str(), chunk["object"].as_str()), (Some("m"), Some("text_completion")));
        assert_eq!(chunk["choices"][0]["text"], " token");
        let finish = if index == 11 { json!("length") } else { Json::Null };
        assert_eq!(chunk["choices"][0]["finish_reason"], finish);
    }
    assert_eq!(chunks[12]["choices"], json!([]));
    assert_eq!(chunks[12]["usage"], json!({"prompt_tokens": 3, "completion_tokens": 12, "total_tokens": 15}));
    let without = json!({"model": "m", "prompt": [5], "max_tokens": 2, "ignore_eos": true, "stream": true});
    assert_eq!(server.stream(without).await.len(), 3);
}

#[tokio::test]
async fn usage_in_every_chunk_is_the_default_of_0_6_and_a_wish_later() {
    let usages = async |version: &str, options: Json| {
        let server = ready(&format!("--sim-vllm-version {version}")).await;
        let ask = json!({
            "prompt": [5, 6], "max_tokens": 3, "ignore_eos": true, "stream": true, "stream_options": options,
        });
        let events = server.stream(ask).await;
        let chunks = events.iter().filter(|event| *event != "[DONE]");
        let count = |event: &String| {
            let chunk: Json = serde_json::from_str(event).unwrap();
            chunk["usage"]["completion_tokens"].as_u64()
        };
        chunks.map(count).collect::<Vec<_>>()
    };
    let every = vec![Some(1), Some(2), Some(3), Some(3)];
    assert_eq!(usages("0.6.3", json!({"include_usage": true})).await, every);
    assert_eq!(usages("0.8.5", json!({"include_usage": true})).await, [None, None, None, Some(3)]);
    let asked = json!({"include_usage": true, "continuous_usage_stats": true});
    assert_eq!(usages("0.32.0", asked.clone()).await, every);
    let without = json!({"include_usage": false, "continuous_usage_stats": true});
    assert_eq!(usages("0.32.0", without).await, [None, None, None]);
}

#[tokio::test]
async fn the_old_engine_of_a_release_with_both_logs_its_blocks() {
    let server = ready("--sim-vllm-version 0.8.5 --scheduler-delay-factor 0.5").await;
    let log = server.log.text();
    assert!(log.contains("Initializing a V0 LLM engine (v0.8.5)") && log.contains("# GPU blocks: "), "{log}");
}

#[tokio::test]
async fn one_document_answers_all_prompts() {
    let server = ready("").await;
    let ask = json!({"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 3, "ignore_eos": true});
    let (status, text) = server.complete(ask).await;
    let reply: Json = serde_json::from_str(&text).unwrap();
    assert_eq!(status, 200);
    assert_eq!(reply["choices"][1]["text"], " token token token");
    assert_eq!(reply["usage"], json!({"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}));
}

#[tokio::test]
async fn many_streams_at_once_get_exactly_their_tokens() {
    let server = ready("--max-num-seqs 8 --sim-time-scale 100").await;
    let streams = (0..32).map(|index| {
        let ask = json!({
            "prompt": vec![index; 40], "max_tokens": 10 + index, "ignore_eos": true, "stream": true,
        });
        server.stream(ask)
    });
    for (index, events) in futures_util::future::join_all(streams).await.iter().enumerate() {
        assert_eq!(events.len(), 10 + index + 1);
    }
    let generated: f64 = (0..32).map(|index| f64::from(10 + index)).sum();
    assert!((server.metric("generation_tokens_total").await - generated).abs() < 0.5);
    assert!((server.metric("prompt_tokens_total").await - 32.0 * 40.0).abs() < 0.5);
    assert!((server.metric("time_to_first_token_seconds_count").await - 32.0).abs() < 0.5);
    assert!((server.metric("inter_token_latency_seconds_count").await - (generated - 32.0)).abs() < 0.5);
    assert!(server.metric("num_requests_running").await.abs() < 0.5);
    assert!(server.metric("prefix_cache_queries_total").await > 0.0);
    let page = server.get("/metrics").await.unwrap();
    assert!(page.contains("vllm:cache_config_info{engine=\"0\",block_size=\"16\","), "{page}");
    assert!(page.contains("num_gpu_blocks=\""));
}

#[tokio::test]
async fn wrong_requests_get_the_status_and_form_of_the_release() {
    let server = ready("").await;
    let (status, text) = server.complete(json!({"model": "other", "prompt": [1]})).await;
    assert_eq!(status, 404);
    assert_eq!(serde_json::from_str::<Json>(&text).unwrap()["error"]["type"], "NotFoundError");
    assert_eq!(server.complete(json!({"prompt": [1000]})).await.0, 400);
    let old = ready("--sim-vllm-version 0.6.3").await;
    let (status, text) = old.complete(json!({"prompt": [1], "max_tokens": 2048})).await;
    assert_eq!((status, serde_json::from_str::<Json>(&text).unwrap()["object"].as_str()), (400, Some("error")));
    assert!(old.get("/metrics").await.unwrap().contains("vllm:gpu_cache_usage_perc{model_name=\"m\"} 0"));
}

#[tokio::test]
async fn a_client_that_goes_away_aborts_its_request() {
    let server = ready("--sim-time-scale 1").await;
    let ask = json!({"prompt": [1], "max_tokens": 2000, "ignore_eos": true, "stream": true});
    let mut reply = server.client.post(server.url("/v1/completions")).json(&ask).send().await.unwrap();
    assert!(reply.chunk().await.unwrap().is_some());
    drop(reply);
    let deadline = Instant::now() + Duration::from_secs(2);
    while server.metric("num_requests_running").await > 0.5 {
        assert!(Instant::now() < deadline, "still running");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let page = server.get("/metrics").await.unwrap();
    assert!(page.contains("vllm:request_success_total{finished_reason=\"abort\",engine=\"0\",model_name=\"m\"} 1"));
}

#[tokio::test]
async fn a_stop_ends_streams_and_is_logged() {
    let server = ready("--sim-time-scale 1").await;
    let ask = json!({"prompt": [1], "max_tokens": 2000, "ignore_eos": true, "stream": true});
    let mut reply = server.client.post(server.url("/v1/completions")).json(&ask).send().await.unwrap();
    assert!(reply.chunk().await.unwrap().is_some());
    let began = Instant::now();
    server.stop.send(15).unwrap();
    server.ended.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    let log = server.log.text();
    for line in [
        "non-default args: {",
        "Using max model len 2048",
        "Chunked prefill is enabled with max_num_batched_tokens=8192",
        "GPU KV cache size: ",
        "Maximum concurrency for 2,048 tokens per request: ",
        "init engine (profile, create kv cache, warmup model) took",
        "Starting vLLM server on http://127.0.0.1:",
        "Application startup complete.",
        "Application shutdown complete.",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[tokio::test]
async fn a_stop_while_starting_ends_at_once_by_its_signal() {
    let server = launch("--sim-startup-s 60");
    server.stop.send(15).unwrap();
    let error = server.ended.await.unwrap().unwrap_err();
    assert_eq!(error.exit_code(), 143);
}

#[tokio::test]
async fn configurations_that_vllm_refuses_are_refused_in_its_words() {
    for (flags, end) in [
        (
            "--max-num-batched-tokens 535 --no-enable-chunked-prefill",
            "1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens (535) is smaller than \
             max_model_len (2048). This effectively limits the maximum sequence length",
        ),
        (
            "--sim-vllm-version 0.6.3 --max-num-batched-tokens 535",
            "\nValueError: max_num_batched_tokens (535) is smaller than max_model_len (2048).",
        ),
        (
            "--max-num-batched-tokens 100 --max-num-seqs 200",
            "max_num_batched_tokens (100) must be greater than or equal to max_num_seqs (200).",
        ),
        ("--max-num-seqs 0", "SchedulerConfig\nmax_num_seqs\n  Input should be greater than or equal to 1 [type="),
        (
            "--gpu-memory-utilization 1.2",
            "Input should be less than or equal to 1 [type=less_than_equal, input_value=1.2",
        ),
        ("--max-model-len 4096", "User-specified max_model_len (4096) is greater than the derived max_model_len"),
        ("--gpu-memory-utilization 0.01", "No available memory for the cache blocks"),
        ("--gpu-memory-utilization 0.999", "on startup is less than desired GPU memory utilization (0.999, 79.11 GiB)"),
        ("--block-size 8", "No common block size for 8 (FLASH_ATTN: [MultipleOf(16)])"),
        ("--tensor-parallel-size 2", "World size (2) is larger than the number of available GPUs (1)"),
        ("--sim-devices 2 -tp 2 -pp 2", "World size (4) is larger than the number of available GPUs (2)"),
        ("--sim-devices 2 --data-parallel-size 4", "DP adjusted local rank 3 is out of bounds: 4 engines of 1 workers"),
        ("--sim-device cpu --tensor-parallel-size 3", "1 validation error for VllmConfig\n  Value error, Total number"),
        ("--sim-vllm-version 0.8.5 --block-size 8", "ValueError: Block size must be a multiple of 16"),
        ("--sim-vllm-version 0.8.5 --max-num-seqs 0", "EngineCore failed to start.\nTraceback"),
        (
            "--sim-vllm-version 0.12.0 --max-model-len -1",
            "ModelConfig\n  Value error, max_model_len must be at least 1",
        ),
        ("--num-gpu-blocks-override 65", "the estimated maximum model length is 1024"),
    ] {
        let refusal = refused(flags).await;
        assert_eq!(refusal.exit_code, 1);
        assert!(refusal.text.contains(end), "{flags}: {refusal}");
        assert!(refusal.text.contains("Traceback (most recent call last):"));
    }
}

#[tokio::test]
async fn a_degraded_configuration_is_a_warning_in_the_log() {
    let server = ready("--sim-device cpu --sim-vllm-version 0.12.0 --block-size 16").await;
    let log = server.log.text();
    let warning = log.lines().find(|line| line.contains("WARNING")).unwrap_or_default();
    assert!(warning.contains("CPU backend prefers block_size is multiples of 32"), "{log}");
}

#[tokio::test]
async fn endpoints_that_change_the_engine_are_served_in_development_mode_only() {
    for (value, status) in [(None, 404), (Some("0"), 404), (Some("1"), 200)] {
        let env: Vec<_> = value.map(|value| ("VLLM_SERVER_DEV_MODE", value)).into_iter().collect();
        let server = launch_in("", &env);
        server.wait().await;
        for path in ["/reset_prefix_cache", "/pause?mode=keep", "/resume"] {
            assert_eq!(server.post(path, json!({})).await.0, status, "{path} {value:?}");
        }
        server.end().await;
    }
}

#[tokio::test]
async fn an_environment_variable_allows_a_longer_model() {
    let model = tempfile::tempdir().unwrap();
    write_model(model.path());
    let line = format!("{} --sim-startup-s 0 --max-model-len 4096", model.path().display());
    let mut options = SimOptions::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap();
    options.env.insert("VLLM_ALLOW_LONG_MAX_MODEL_LEN".to_owned(), "1".to_owned());
    let log = ServedLog::new(options.version, Box::new(Capture::default()), Box::new(Capture::default()));
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        15
    };
    let ended = serve_on(options, Some(socket), log, stop).await;
    assert!(ended.is_ok(), "{ended:?}");
}

#[tokio::test]
async fn a_missing_model_and_a_taken_port_are_refused() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let model = tempfile::tempdir().unwrap();
    write_model(model.path());
    let port = taken.local_addr().unwrap().port();
    let start = async |line: String| {
        let options = SimOptions::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap();
        let log = ServedLog::new(options.version, Box::new(Capture::default()), Box::new(Capture::default()));
        serve_on(options, None, log, std::future::pending()).await.unwrap_err()
    };
    let error = start(format!("{} --sim-startup-s 0 --host 127.0.0.1 --port {port}", model.path().display())).await;
    assert!(error.to_string().ends_with("OSError: [Errno 98] Address already in use"), "{error}");
    // The port is bound by both servers and the other one listens first.
    let socket = || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket
    };
    let (own, other) = (socket(), socket());
    own.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    other.bind(own.local_addr().unwrap()).unwrap();
    let _other = other.listen(1).unwrap();
    let words = [model.path().display().to_string(), "--sim-startup-s".to_owned(), "0".to_owned()];
    let options = SimOptions::parse(&words).unwrap();
    let log = ServedLog::new(options.version, Box::new(Capture::default()), Box::new(Capture::default()));
    let error = serve_on(options, Some(own), log, std::future::pending()).await.unwrap_err();
    assert!(error.to_string().ends_with("OSError: [Errno 98] Address already in use"), "{error}");
    let error = start("no/such/model --sim-startup-s 0".to_owned()).await;
    assert_eq!(error.exit_code(), 1);
    assert!(error.to_string().contains("is not a local folder and is not a valid model identifier"), "{error}");
}
