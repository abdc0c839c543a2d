//! The arguments of `bench`, grouped by topic.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use jiff::SignedDuration;

use crate::job::BenchProfile;
use crate::load::Dialect;
use crate::report::BENCH_FORMATS;
use crate::workload::TokenLength;

#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub(super) struct ServerArgs {
    /// URL of the server, such as `http://127.0.0.1:8000`; a trailing /v1 is accepted
    #[arg(long, value_name = "URL")]
    pub(super) url: String,
    /// Name of the served model [default: the only one that the server lists]
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Interface of the requests: /v1/completions or /v1/chat/completions [default: the profile's, else completions]
    #[arg(long, value_enum, value_name = "API")]
    pub(super) api: Option<ApiName>,
    #[arg(long, value_parser = PossibleValuesParser::new(Dialect::ALL.map(Dialect::name)),
        default_value = Dialect::Vllm.name(), value_name = "KIND",
        help = "Kind of the server, which determines the fields of requests and replies")]
    pub(super) server: String,
    /// Request whole replies instead of streams. There are then no TTFT, TPOT and ITL
    #[arg(long)]
    pub(super) no_stream: bool,
    /// Environment variable with the API key [default: `OPENAI_API_KEY`, if it is set]
    #[arg(long, value_name = "NAME")]
    pub(super) api_key_env: Option<String>,
    /// Header line of every request; repeatable
    #[arg(long, value_name = "'NAME: VALUE'")]
    pub(super) header: Vec<String>,
    /// JSON object with additional fields of every request's body
    #[arg(long, value_name = "JSON")]
    pub(super) extra_body: Option<String>,
    /// PEM file with the trusted certificates for https, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub(super) ca_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ApiName {
    Completions,
    Chat,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Workload")]
pub(super) struct WorkArgs {
    #[arg(long, value_parser = PossibleValuesParser::new(WORKLOAD_KINDS.iter().map(|(name, help)| {
        clap::builder::PossibleValue::new(*name).help(*help)
    })), value_name = "KIND",
        help = "Kind of the requests [default: that of the file after --dataset or --trace, else random]")]
    pub(super) workload: Option<String>,
    /// Length of a prompt in tokens: a number, a range such as 100..200, or `max_model_len - 2048` [default: 1024]
    #[arg(long, value_name = "N")]
    pub(super) input_len: Option<TokenLength>,
    /// Length of a reply in tokens: a number or a range [default: the lengths in the file, else 128]
    #[arg(long, value_name = "N")]
    pub(super) output_len: Option<TokenLength>,
    /// Draw lengths evenly from this share below to this share above, like --random-range-ratio of `vllm bench serve`
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(super) range_ratio: Option<f64>,
    /// Length of the prefix that prompts share, in tokens [default: none; 512 for a prefix workload]
    #[arg(long, value_name = "N")]
    pub(super) prefix_len: Option<u32>,
    /// Number of different prefixes of a prefix workload [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) prefix_groups: Option<u32>,
    /// Share of the requests of a prefix workload that begin with a prefix [default: 100%]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(super) prefix_share: Option<f64>,
    /// Turns of a conversation: a number or a range [default: 4]
    #[arg(long, value_name = "N")]
    pub(super) turns: Option<TokenLength>,
    /// Length of the later messages of a conversation, in tokens [default: --input-len]
    #[arg(long, value_name = "N")]
    pub(super) user_len: Option<TokenLength>,
    /// Mean pause of a user between two turns [default: none]
    #[arg(long, value_name = "S", value_parser = duration)]
    pub(super) think_time: Option<Duration>,
    /// Width and height of an image in pixels; repeatable [default: 512x512]
    #[arg(long, value_name = "WxH", value_parser = image_size)]
    pub(super) image_size: Vec<(u32, u32)>,
    /// Number of images in a request [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) images: Option<u32>,
    /// File with prompts: ShareGPT's JSON, or one JSON object with a prompt or messages per line
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub(super) dataset: Option<PathBuf>,
    /// File with lengths and time stamps: Azure's or `BurstGPT`'s CSV, or Mooncake's JSONL
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Directory with the model's tokenizer.json and config.json, or the tokenizer.json
    /// [default: the model's directory, if the server reports one of this machine]
    #[arg(long, value_name = "DIR")]
    pub(super) tokenizer: Option<PathBuf>,
    /// Number of token ids to draw prompts from [default: that of config.json, else 32000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub(super) vocab_size: Option<u32>,
}

/// Every kind of workload that arguments can describe.
pub(super) const WORKLOAD_KINDS: &[(&str, &str)] = &[
    ("random", "Random tokens; the lengths are those of --input-len and --output-len"),
    ("sharegpt", "The prompts of a ShareGPT file"),
    ("jsonl", "The prompts of a file with one JSON object per line"),
    ("trace", "Random tokens, with the lengths and time stamps of a trace"),
    ("prefix", "Prompts that share prefixes"),
    ("conversation", "Sessions of several turns"),
    ("image", "Generated images with random text"),
];

fn image_size(text: &str) -> Result<(u32, u32), String> {
    let error = || format!("{text:?} is not WIDTHxHEIGHT, such as 640x480");
    let (width, height) = text.split_once('x').ok_or_else(error)?;
    match (width.parse(), height.parse()) {
        (Ok(width), Ok(height)) if width > 0 && height > 0 => Ok((width, height)),
        _ => Err(error()),
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Load")]
pub(super) struct LoadArgs {
    /// Number of requests in the measurement window [default: those of the trace, else 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) num_requests: Option<u64>,
    /// Maximum number of requests in flight. Without a rate, each request begins when another has ended
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) concurrency: Option<u32>,
    /// Requests per second, independent of the replies; `inf`: all at once
    #[arg(long, value_name = "R", value_parser = rate)]
    pub(super) rate: Option<f64>,
    /// Shape of the gamma distribution of the gaps: 1 is Poisson, less is burstier, `inf` is constant
    /// [default: 1]
    #[arg(long, value_name = "B", value_parser = burstiness)]
    pub(super) burstiness: Option<f64>,
    /// Rate that changes linearly and then stays; 1:20:5m is from 1 to 20 requests per second within 5 minutes
    #[arg(long, value_name = "FROM:TO:OVER", value_parser = ramp, conflicts_with_all = ["rate", "trace_factor"])]
    pub(super) ramp: Option<RampArgument>,
    /// Time after which no request is sent, such as 90s or 5m. Requests in flight may end
    #[arg(long, value_name = "S", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// Number of requests before the measurement window [default: that of the profile, else none]
    #[arg(long, value_name = "N")]
    pub(super) warmup: Option<u64>,
    /// Seed of prompts and arrivals. The same seed sends the same requests at the same times
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Allow replies to end before they have the requested number of tokens
    #[arg(long)]
    pub(super) allow_eos: bool,
    /// Time limit of a request, from its send to its last byte [default: that of the profile, else 10m]
    #[arg(long, value_name = "S", value_parser = duration)]
    pub(super) request_timeout: Option<Duration>,
    /// Factor for the time stamps of a trace: 0.5 is twice as fast
    #[arg(long, value_name = "F", value_parser = positive, conflicts_with = "rate")]
    pub(super) trace_factor: Option<f64>,
    #[arg(long, value_name = "NAME|FILE", help = profiles(), conflicts_with_all =
        ["workload", "trace", "num_requests", "concurrency", "rate", "ramp", "duration",
         "trace_factor", "burstiness"])]
    pub(super) profile: Option<String>,
}

fn profiles() -> String {
    let names = BenchProfile::BUILT_IN.map(|(name, _)| name).join(", ");
    format!("A series of runs instead of one: a TOML file, or one of the built-in {names}")
}

/// A rate in requests per second that changes linearly over a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RampArgument {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) over: Duration,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Evaluation")]
pub(super) struct JudgeArgs {
    /// Limit of a good request in milliseconds: ttft, tpot or e2el; repeatable
    #[arg(long, value_name = "LATENCY:MS")]
    pub(super) goodput: Vec<String>,
    /// Continue until the metric has this relative precision with 95 % confidence, such as 2%. --num-requests and
    /// --duration [default: 30m] limit the run
    #[arg(long, value_name = "SHARE")]
    pub(super) until: Option<String>,
    /// Metric of --until, or of a profile's precision [default: `output_throughput`]
    #[arg(long, value_name = "METRIC")]
    pub(super) until_metric: Option<String>,
    /// Largest share of failed requests in a valid sample [default: that of the profile, else 5%]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(super) max_error_rate: Option<f64>,
    /// Part of the run that is measured: the whole run, or its steady state [default: the profile's, else whole]
    #[arg(long, value_enum, value_name = "PART")]
    pub(super) window: Option<WindowName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum WindowName {
    Whole,
    Steady,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArgs {
    #[arg(long, value_parser = PossibleValuesParser::new(BENCH_FORMATS.iter().map(|format| {
        clap::builder::PossibleValue::new(format.name).help(format.help)
    })), default_value = BENCH_FORMATS[0].name, value_name = "FORMAT", help = "Output format")]
    pub(super) format: String,
    /// Also write the JSON to this file, even if the sample is void
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Write one JSON object for each request to this file
    #[arg(long, value_name = "FILE")]
    pub(super) records: Option<PathBuf>,
    /// Add one object for each second to the JSON
    #[arg(long)]
    pub(super) series: bool,
    /// Device of the server, for tables [default: this machine's, if the server runs on it]
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// Do not read the server's /metrics and this machine's counters during the run
    #[arg(long)]
    pub(super) no_telemetry: bool,
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

pub(super) fn positive(text: &str) -> Result<f64, String> {
    match number(text)? {
        value if value > 0.0 && value.is_finite() => Ok(value),
        value => Err(format!("{value} is not a finite number above 0")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match number(text)? {
        value if value > 0.0 => Ok(value),
        value => Err(format!("{value} requests per second: give a number above 0, or `inf` for all at once")),
    }
}

fn burstiness(text: &str) -> Result<f64, String> {
    match number(text)? {
        value if value > 0.0 => Ok(value),
        value => Err(format!("{value} is not above 0")),
    }
}

/// Parses a share such as `2%` or `0.02`.
fn share(text: &str) -> Result<f64, String> {
    let value = match text.strip_suffix('%') {
        Some(percent) => number(percent.trim_end())? / 100.0,
        None => number(text)?,
    };
    if (0.0..=1.0).contains(&value) {
        return Ok(value);
    }
    Err(format!("{text:?} is not between 0 % and 100 %: give a share such as 2% or 0.02"))
}

/// Parses a duration: seconds as a plain number, or a value such as `90s`, `5m` or `1h 30m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok()),
    };
    match parsed {
        Some(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(format!("{text:?} is not a time above 0: give seconds, or a duration such as 90s or 5m")),
    }
}

fn ramp(text: &str) -> Result<RampArgument, String> {
    let parts: Vec<_> = text.split(':').collect();
    let [from, to, over] = parts[..] else {
        return Err(format!("{text:?} is not FROM:TO:OVER, such as 1:20:5m"));
    };
    let (from, to) = (number(from)?, number(to)?);
    if !(from.is_finite() && to.is_finite() && from >= 0.0 && to >= 0.0 && from + to > 0.0) {
        return Err(format!("{text:?}: rates are numbers of at least 0, not both 0"));
    }
    Ok(RampArgument { from, to, over: duration(over)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_have_units() {
        for (text, seconds) in [("60", 60.0), ("1.5", 1.5), ("90s", 90.0), ("5m", 300.0), ("1h 30m", 5400.0)] {
            assert!((duration(text).unwrap().as_secs_f64() - seconds).abs() < 1e-9, "{text}");
        }
        for text in ["", "0", "-1", "nan", "inf", "5 parsecs", "1e300"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_are_percent_or_fractions() {
        assert_eq!([share("2%"), share("0.02"), share("100 %")], [Ok(0.02), Ok(0.02), Ok(1.0)]);
        for text in ["2", "-1%", "101%", "nan", "%", "two"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_may_be_infinite_and_ramps_may_not() {
        assert_eq!([rate("inf"), rate("0.5")], [Ok(f64::INFINITY), Ok(0.5)]);
        assert!(rate("0").is_err() && rate("nan").is_err() && rate("-inf").is_err());
        assert_eq!(ramp("1:20:5m"), Ok(RampArgument { from: 1.0, to: 20.0, over: Duration::from_mins(5) }));
        for text in ["1:20", "1:inf:5m", "0:0:5m", "1:2:0", "-1:2:3", "a:b:c"] {
            assert!(ramp(text).is_err(), "{text}");
        }
    }
}
