//! A server that can be paused, with its requests and its page of metrics.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use serde_json::{Value as Json, json};

use crate::support::{Workplace, wait_until};

use setpoint::stats::f64_to_u64;

/// Values of a page. Each name has no `vllm:` prefix, but the label that distinguishes series of one name.
pub(super) type Page = BTreeMap<String, f64>;

/// Labels that distinguish series. The engine and the model are the same throughout.
const LABELS: [&str; 3] = ["le", "finished_reason", "reason"];

fn read(text: &str) -> Page {
    let value = |line: &str| {
        let (series, value) = line.strip_prefix("vllm:")?.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let label = |wanted: &&str| {
            let pair = labels.trim_end_matches('}').split(',').find_map(|pair| pair.strip_prefix(wanted));
            // One of the servers writes bounds with a decimal, the other without.
            Some(pair?.strip_prefix("=\"")?.trim_end_matches('"').trim_end_matches(".0").to_owned())
        };
        let told = LABELS.iter().find_map(label).map_or_else(String::new, |label| format!("{{{label}}}"));
        Some((format!("{name}{told}"), value.parse().ok()?))
    };
    text.lines().filter_map(value).collect()
}

/// Returns a counter of the page as a whole number.
pub(super) fn count(page: &Page, name: &str) -> u64 {
    f64_to_u64(page[name])
}

/// Returns the model of `examples/setup-vllm-cpu.sh`: the keys that determine the schedule, and the sizes that the
/// simulation needs.
pub(super) fn model() -> Json {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096,
        "max_position_embeddings": 4096, "tie_word_embeddings": true, "dtype": "bfloat16"
    })
}

/// A process in a group of its own. It ends with the test, even if the test fails.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = killpg(group, Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

pub(super) struct Server {
    pub(super) name: &'static str,
    _group: Group,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    url: String,
    model: String,
    /// For each request, its stream until it is read.
    replies: Vec<Option<reqwest::Response>>,
}

impl Server {
    /// Starts the real engine in its development mode, because only that mode has `/pause`.
    pub(super) fn real(installation: &Path, workplace: &Workplace, flags: &[&str]) -> Self {
        let mut command = command(&installation.join("bin/vllm"));
        command.envs([("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")]);
        command.envs([("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_SERVER_DEV_MODE", "1")]);
        let model = installation.join("model").to_string_lossy().into_owned();
        command.arg("serve").arg(&model).args(flags);
        Self::start("vllm", command, model, workplace)
    }

    pub(super) fn simulated(workplace: &Workplace, flags: &[&str]) -> Self {
        workplace.write("config.json", &model().to_string());
        let model = workplace.path("").to_string_lossy().into_owned();
        let mut command = command(Path::new(env!("CARGO_BIN_EXE_setpoint")));
        let simulation = ["--sim-device", "cpu", "--sim-startup-s", "0.02", "--sim-time-scale", "1"];
        command
            .envs([("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_SERVER_DEV_MODE", "1")])
            .args(["sim", "serve", &model])
            .args(flags)
            .args(simulation);
        Self::start("sim", command, model, workplace)
    }

    #[expect(clippy::disallowed_methods, reason = "the server under test")]
    fn start(name: &'static str, mut command: Command, model: String, workplace: &Workplace) -> Self {
        use std::os::unix::process::CommandExt;
        let port = setpoint::server::free_port().unwrap();
        let log = std::fs::File::create(workplace.path("server.log")).unwrap();
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log).process_group(0);
        let group = Group(command.spawn().unwrap());
        wait_until(Duration::from_mins(4), "the server's health", || crate::study::health(port));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_mins(2)).build().unwrap();
        Self {
            name,
            _group: group,
            runtime,
            client,
            url: format!("http://127.0.0.1:{port}"),
            model,
            replies: Vec::new(),
        }
    }

    fn post(&self, path: &str) {
        let status = self
            .runtime
            .block_on(async { self.client.post(format!("{}{path}", self.url)).send().await.unwrap().status() });
        assert_eq!(status.as_u16(), 200, "{path}");
    }

    /// Stops the scheduling. On return, the page contains the step that was in progress. The call is also a fence,
    /// because the engine handles messages in order.
    pub(super) fn pause(&self) {
        self.post("/pause?mode=keep&clear_cache=false");
    }

    pub(super) fn resume(&self) {
        self.post("/resume");
    }

    pub(super) fn page(&self) -> Page {
        let text = self.runtime.block_on(async {
            self.client.get(format!("{}/metrics", self.url)).send().await.unwrap().text().await.unwrap()
        });
        read(&text)
    }

    /// Returns the first page that fulfils the condition.
    pub(super) fn page_when(&self, holds: impl Fn(&Page) -> bool) -> Page {
        let begin = Instant::now();
        loop {
            let page = self.page();
            if holds(&page) {
                return page;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{page:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> usize {
        self.replies.len()
    }

    /// Requests streams for these prompts in one HTTP request while the server is paused. Returns once the engine has
    /// received it.
    pub(super) fn ask(&mut self, prompts: &[Vec<u32>], output: u32) {
        self.send(prompts, output);
        self.pause();
    }

    /// Like [`Self::ask`], but at any time.
    pub(super) fn send(&mut self, prompts: &[Vec<u32>], output: u32) {
        let body = json!({
            "model": self.model, "prompt": prompts, "max_tokens": output, "ignore_eos": true, "stream": true,
            "temperature": 0
        });
        let url = format!("{}/v1/completions", self.url);
        let reply = self.runtime.block_on(async { self.client.post(url).json(&body).send().await.unwrap() });
        assert_eq!(reply.status().as_u16(), 200);
        self.replies.push(Some(reply));
        self.replies.resize_with(self.replies.len() + prompts.len() - 1, || None);
    }

    pub(super) fn hang_up(&mut self, request: usize) {
        drop(self.replies[request].take().unwrap());
    }

    /// Reads all streams to their ends.
    pub(super) fn take_replies(&mut self) {
        for reply in self.replies.iter_mut().filter_map(Option::take) {
            let text = self.runtime.block_on(async { reply.text().await.unwrap() });
            assert!(text.ends_with("data: [DONE]\n\n") && !text.contains("\"error\""), "{text}");
        }
    }
}

fn command(program: &Path) -> Command {
    Command::new(program)
}
