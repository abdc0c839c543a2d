//! The two clients: their command lines, their reports, and the server's measurements of their requests.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::clock::ms;
use crate::own::{Own, Seen, quantile};
use crate::process::{Cost, Server, run, tail};
use crate::scenario::Scenario;

use setpoint::stats::to_f64;

#[derive(Clone, Debug)]
pub(crate) enum Client {
    /// The path of `setpoint`.
    Setpoint(PathBuf),
    Vllm {
        program: PathBuf,
        /// A directory with the tokenizer for its prompts.
        tokenizer: PathBuf,
    },
}

/// The fields that both clients write; the names are those of `vllm bench serve --save-result`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Reported {
    pub completed: u64,
    #[serde(default)]
    pub failed: u64,
    #[serde(default = "nothing", deserialize_with = "number")]
    pub output_throughput: f64,
    #[serde(default = "nothing", deserialize_with = "number")]
    pub mean_ttft_ms: f64,
    #[serde(default = "nothing", deserialize_with = "number")]
    pub p99_ttft_ms: f64,
    #[serde(default = "nothing", deserialize_with = "number")]
    pub mean_itl_ms: f64,
}

fn nothing() -> f64 {
    f64::NAN
}

/// Reads a number, or NaN for a null: one-token replies have no ITL.
fn number<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_else(nothing))
}

/// One run of one client.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub cost: Cost,
    pub reported: Reported,
    /// Time from the start of the client's process to the arrival of its first request's last byte.
    pub start_ms: f64,
    /// CPU seconds of the client until then.
    pub start_cpu_s: f64,
    pub truth: Truth,
}

/// The server's measurements of this run.
#[derive(Clone, Debug)]
pub(crate) struct Truth {
    pub tokens: u64,
    pub tokens_per_s: f64,
    pub mean_ttft_ms: f64,
    pub p99_ttft_ms: f64,
    /// The mean TTFT from the instants at which the server had read the requests.
    pub mean_read_ttft_ms: f64,
    pub mean_itl_ms: f64,
    pub late_p99_ms: f64,
    pub blocked: u64,
    pub aborted: u64,
    pub kernel_stamps: bool,
    pub cpu_s: f64,
    pub max_rss_mb: f64,
}

impl Outcome {
    /// Returns the CPU seconds of all other programs on this machine during the run.
    pub(crate) fn others_cpu_s(&self) -> f64 {
        (self.cost.machine_cpu_s - self.cost.cpu_s - self.truth.cpu_s).max(0.0)
    }
}

impl Client {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Setpoint(_) => "setpoint",
            Self::Vllm { .. } => "vllm",
        }
    }

    fn command(&self, scenario: &Scenario, port: u16, result: &Path) -> Vec<String> {
        let url = format!("http://127.0.0.1:{port}");
        let (input, output) = (scenario.input_len.to_string(), scenario.timing.tokens.to_string());
        let (requests, concurrency) = (scenario.requests.to_string(), scenario.concurrency.to_string());
        let file = result.display().to_string();
        let mut words = Vec::new();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|word| (*word).to_owned()));
        match self {
            Self::Setpoint(program) => {
                add(&[&program.display().to_string(), "bench", "--url", &url, "--model", "m", "--workload", "random"]);
                add(&["--input-len", &input, "--output-len", &output, "--vocab-size", "32000"]);
                add(&["--num-requests", &requests, "--concurrency", &concurrency, "--output", &file]);
            }
            Self::Vllm { program, tokenizer } => {
                add(&[&program.display().to_string(), "bench", "serve", "--backend", "openai", "--base-url", &url]);
                add(&[
                    "--endpoint",
                    "/v1/completions",
                    "--model",
                    "m",
                    "--tokenizer",
                    &tokenizer.display().to_string(),
                ]);
                add(&["--dataset-name", "random", "--random-input-len", &input, "--random-output-len", &output]);
                add(&["--num-prompts", &requests, "--max-concurrency", &concurrency, "--ignore-eos"]);
                add(&["--disable-tqdm", "--save-result", "--result-filename", &file]);
            }
        }
        words
    }

    /// Runs the client once against a server of its own.
    ///
    /// # Errors
    /// If the client gives no result; the text contains its last output.
    pub(crate) fn measure(&self, scenario: &Scenario, directory: &Path) -> Result<Outcome, Box<dyn std::error::Error>> {
        let result = directory.join("result.json");
        let log = directory.join("log");
        if result.exists() {
            std::fs::remove_file(&result)?;
        }
        let server = Server::spawn(scenario.timing)?;
        let command = self.command(scenario, server.port, &result);
        let offline = [("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")];
        let cost = run(&command, &offline, &log)?;
        let own = server.own()?;
        let text = std::fs::read_to_string(&result).map_err(|_| {
            format!("{} left no result, exit code {:?}:\n{}", command.join(" "), cost.exit_code, tail(&log))
        })?;
        let reported = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", result.display()))?;
        let first = own.requests.iter().map(|seen| seen.arrived_ns).min().ok_or("the server saw no request")?;
        let start_ms = ms(first.saturating_sub(cost.spawned_ns));
        let start_cpu_s = cost.cpu_s_at(first);
        Ok(Outcome { cost, reported, start_ms, start_cpu_s, truth: truth(own, scenario.requests as usize) })
    }
}

/// Evaluates the last `count` requests: a client may send others before its measurement begins.
fn truth(own: Own, count: usize) -> Truth {
    let mut requests = own.requests;
    let tokens = requests.iter().map(|seen| u64::from(seen.tokens)).sum();
    requests.sort_unstable_by_key(|seen| seen.arrived_ns);
    let measured = &requests[requests.len().saturating_sub(count)..];
    let ttft = |seen: &Seen| seen.first_ns - seen.arrived_ns;
    let mut ttfts_us: Vec<u32> =
        measured.iter().map(|seen| u32::try_from(ttft(seen) / 1000).unwrap_or(u32::MAX)).collect();
    ttfts_us.sort_unstable();
    let gaps: u64 = measured.iter().map(|seen| u64::from(seen.tokens - 1)).sum();
    let from = measured.iter().map(|seen| seen.arrived_ns).min().unwrap_or(0);
    let to = measured.iter().map(|seen| seen.last_ns).max().unwrap_or(0);
    let per = |sum: f64, count: u64| sum / to_f64(count);
    let mean = |of: &dyn Fn(&Seen) -> u64| per(ms(measured.iter().map(of).sum()), measured.len() as u64);
    let measured_tokens: u64 = measured.iter().map(|seen| u64::from(seen.tokens)).sum();
    Truth {
        tokens,
        tokens_per_s: 1e3 / per(ms(to - from), measured_tokens),
        mean_ttft_ms: mean(&ttft),
        p99_ttft_ms: f64::from(quantile(&ttfts_us, 0.99)) / 1e3,
        mean_read_ttft_ms: mean(&|seen| seen.first_ns.saturating_sub(seen.read_ns)),
        mean_itl_ms: per(ms(measured.iter().map(|seen| seen.last_ns - seen.first_ns).sum()), gaps),
        late_p99_ms: f64::from(own.late_p99_us) / 1e3,
        blocked: own.blocked,
        aborted: own.aborted,
        kernel_stamps: own.kernel_stamps,
        cpu_s: own.cpu_s,
        max_rss_mb: own.max_rss_mb,
    }
}
