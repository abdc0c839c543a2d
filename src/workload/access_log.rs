//! Access logs of servers and proxies, read as lengths and arrival times. Texts of prompts and replies are never kept.
//!
//! - JSON lines of a proxy, one request a line: a time (`timestamp`, `time`, `startTime` ...) and the token counts of
//!   the OpenAI interface's `usage` (or `input_tokens` and `output_tokens`), at any depth.
//! - vLLM's log with `--enable-log-requests`: `Received request ID: ... prompt_token_ids: [...]`, and with
//!   `--enable-log-outputs` `Generated response ID: ... output_token_ids: [...]`. Without the latter the length of a
//!   reply is the request's `max_tokens`.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::civil::DateTime;
use regex::Regex;
use serde_json::Value as Json;

/// One request of a log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoggedRequest {
    /// Seconds since the log's first request.
    pub arrival_s: f64,
    pub input_tokens: u32,
    pub output_tokens: u32,
}

/// The requests of an access log, in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessLog {
    pub requests: Vec<LoggedRequest>,
    /// Requests without a time or a length.
    pub left_out: usize,
    /// Requests whose reply's length is only the limit `max_tokens`.
    pub limits_only: usize,
}

/// A reason why a file cannot be read as an access log.
#[derive(Debug, thiserror::Error)]
pub enum AccessLogError {
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    #[error(
        "none of its {0} requests has token counts; log them with vLLM's --enable-log-requests and \
         --enable-log-outputs, or in the proxy as `usage`"
    )]
    NoLengths(usize),
}

/// Lines that decide the kind of a file.
const MAX_FIRST_LINES: usize = 50;

/// A longer line is cut off: a prompt may have megabytes, and its length follows from the token ids before the cut.
const MAX_LINE_BYTES: u64 = 16 << 20;

static RECEIVED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"Received request (?<id>[\w.-]+?): ").ok());
static GENERATED: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"Generated response (?<id>[\w.-]+?)(?: \([^)]*\))?: ").ok());
static TIME: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"(?:(?<year>\d{4})-)?(?<month>\d\d)-(?<day>\d\d)[ T](?<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)").ok()
});
static MAX_TOKENS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\bmax_tokens=(\d+)").ok());

impl AccessLog {
    /// Returns whether the file is an access log: a log of requests by vLLM, lines of HTTP requests, or JSON lines with
    /// token counts.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn is_log(path: &Path) -> std::io::Result<bool> {
        let mut is_log = false;
        let mut lines = 0;
        for_each_line(path, |line| {
            lines += 1;
            let json = line.starts_with('{').then(|| serde_json::from_str::<Json>(line).ok()).flatten();
            is_log |= match json {
                // Mooncake's traces and files of prompts have no usage.
                Some(row) => {
                    find(&row, &["input_length", "prompt", "messages"]).is_none() && json_lengths(&row).is_some()
                }
                None => line.contains("Received request ") || line.contains("POST /v1/"),
            };
            !is_log && lines < MAX_FIRST_LINES
        })?;
        Ok(is_log)
    }

    /// Reads a log. Lines of other kinds are skipped.
    ///
    /// # Errors
    /// If the file cannot be read, or no request has a time and lengths.
    pub fn read(path: &Path) -> Result<Self, AccessLogError> {
        let (mut found, mut by_id, mut seen) = (Vec::<RawRequest>::new(), HashMap::<String, usize>::new(), 0);
        for_each_line(path, |line| {
            if line.starts_with('{') {
                if let Ok(row) = serde_json::from_str::<Json>(line)
                    && is_served(&row)
                {
                    seen += 1;
                    let (input, output) = json_lengths(&row).unzip();
                    found.push(RawRequest { at_s: json_time(&row), input, output, limit: None });
                }
            } else if let Some(id) = identifier(&RECEIVED, line) {
                seen += 1;
                by_id.insert(id.to_owned(), found.len());
                let limit = MAX_TOKENS.as_ref().and_then(|regex| regex.captures(line)?[1].parse().ok());
                let input = list_length(line, "prompt_token_ids: [");
                found.push(RawRequest { at_s: text_time(line), input, output: None, limit });
            } else if let Some(id) = identifier(&GENERATED, line)
                && let Some(request) = by_id.get(id).and_then(|index| found.get_mut(*index))
            {
                request.output = list_length(line, "output_token_ids: [").or(request.output);
            } else if line.contains("POST /v1/") {
                seen += 1;
            }
            true
        })?;
        let mut log = Self::default();
        for raw in &found {
            let lengths =
                raw.input.filter(|input| *input > 0).zip(raw.output.or(raw.limit).filter(|output| *output > 0));
            match (raw.at_s, lengths) {
                (Some(arrival_s), Some((input_tokens, output_tokens))) => {
                    log.limits_only += usize::from(raw.output.is_none());
                    log.requests.push(LoggedRequest { arrival_s, input_tokens, output_tokens });
                }
                _ => log.left_out += 1,
            }
        }
        if log.requests.is_empty() {
            return Err(AccessLogError::NoLengths(seen));
        }
        log.requests.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
        let first = log.requests.first().map_or(0.0, |request| request.arrival_s);
        log.requests.iter_mut().for_each(|request| request.arrival_s -= first);
        Ok(log)
    }

    /// Returns one line for people.
    #[must_use]
    pub fn describe(&self) -> String {
        let seconds = self.requests.last().map_or(0.0, |request| request.arrival_s);
        let mut text = format!("{} requests of {seconds:.0} s", self.requests.len());
        if self.limits_only > 0 {
            let _ = write!(text, "; {} replies are taken as long as their max_tokens", self.limits_only);
        }
        if self.left_out > 0 {
            let _ = write!(text, "; {} requests without a time or token counts are left out", self.left_out);
        }
        text
    }
}

/// A request as far as its line reveals it.
struct RawRequest {
    /// Seconds since an arbitrary instant of the log.
    at_s: Option<f64>,
    input: Option<u32>,
    output: Option<u32>,
    /// The request's `max_tokens`.
    limit: Option<u32>,
}

/// Calls `read` for each line until it returns false. Bytes that are not UTF-8 are replaced.
fn for_each_line(path: &Path, mut read: impl FnMut(&str) -> bool) -> std::io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if std::io::Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if !read(String::from_utf8_lossy(&line).trim()) {
            return Ok(());
        }
    }
}

fn identifier<'a>(regex: &LazyLock<Option<Regex>>, line: &'a str) -> Option<&'a str> {
    Some(regex.as_ref()?.captures(line)?.name("id")?.as_str())
}

/// Returns the number of elements of a list of numbers after `begin`.
fn list_length(line: &str, begin: &str) -> Option<u32> {
    // The prompt's text comes before its ids and may contain anything, so the last list counts.
    let (_, list) = line.rsplit_once(begin)?;
    let (list, _) = list.split_once(']')?;
    let count = list.split(',').filter(|word| !word.trim().is_empty()).count();
    u32::try_from(count).ok()
}

/// Returns the time of a line of a log as seconds. vLLM's lines have no year; then 2024, a leap year, is assumed.
fn text_time(line: &str) -> Option<f64> {
    let captures = TIME.as_ref()?.captures(line)?;
    let year = captures.name("year").map_or("2024", |year| year.as_str());
    let time = captures["time"].replace(',', ".");
    let text = format!("{year}-{}-{}T{time}", &captures["month"], &captures["day"]);
    let time: DateTime = text.parse().ok()?;
    let zoned = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(zoned.timestamp().as_duration().as_secs_f64())
}

/// Finds the first of these keys at any depth.
fn find<'a>(row: &'a Json, keys: &[&str]) -> Option<&'a Json> {
    match row {
        Json::Object(object) => keys
            .iter()
            .find_map(|key| object.get(*key).filter(|value| !value.is_null()))
            .or_else(|| object.values().find_map(|value| find(value, keys))),
        Json::Array(list) => list.iter().find_map(|value| find(value, keys)),
        _ => None,
    }
}

/// Returns the numbers of tokens in the prompt and in the reply.
fn json_lengths(row: &Json) -> Option<(u32, u32)> {
    let count = |keys: &[&str]| find(row, keys)?.as_u64().and_then(|count| u32::try_from(count).ok());
    let input = count(&["prompt_tokens", "input_tokens", "gen_ai.usage.input_tokens"])?;
    let output = count(&["completion_tokens", "output_tokens", "gen_ai.usage.output_tokens"])?;
    Some((input, output))
}

/// Returns whether the request was answered. A row without a status counts as answered.
fn is_served(row: &Json) -> bool {
    let status = find(row, &["status_code", "statusCode", "status", "response_code"]).and_then(Json::as_u64);
    status.is_none_or(|status| (200..300).contains(&status))
}

/// Returns the time of a row in seconds: RFC 3339, or a number of seconds or milliseconds since 1970.
fn json_time(row: &Json) -> Option<f64> {
    const MILLISECONDS_FROM: f64 = 1e11;
    let keys = ["timestamp", "time", "ts", "startTime", "start_time", "@timestamp", "created", "created_at"];
    match find(row, &keys)? {
        Json::Number(number) => {
            let number = number.as_f64()?;
            Some(if number > MILLISECONDS_FROM { number / 1e3 } else { number })
        }
        Json::String(text) => {
            let timestamp = text.parse::<Timestamp>().ok().map(|timestamp| timestamp.as_duration().as_secs_f64());
            timestamp.or_else(|| text_time(text))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AccessLog, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        std::fs::write(&path, text).unwrap();
        assert!(AccessLog::is_log(&path).unwrap());
        AccessLog::read(&path).map_err(|error| error.to_string())
    }

    fn request(arrival_s: f64, input_tokens: u32, output_tokens: u32) -> LoggedRequest {
        LoggedRequest { arrival_s, input_tokens, output_tokens }
    }

    #[test]
    fn vllms_log_gives_lengths_and_times_and_no_text() {
        let log = read(
            "INFO 11-25 10:00:01 [logger.py:43] Received request cmpl-1: prompt: 'a prompt_token_ids: [9]', params: \
             SamplingParams(n=1, max_tokens=64), prompt_token_ids: [1, 2, 3], lora_request: None.\n\
             INFO 11-25 10:00:03 [logger.py:43] Received request chat-2: prompt: 'b', params: SamplingParams(n=1, \
             max_tokens=32), prompt_token_ids: [1, 2], lora_request: None.\n\
             INFO 11-25 10:00:04 [logger.py:60] Generated response cmpl-1: output: 'x', output_token_ids: [4, 5], \
             finish_reason: stop\n\
             INFO 11-25 10:00:05 [logger.py:43] Received request chat-3: params: SamplingParams(n=1), lora_request: \
             None.\n",
        )
        .unwrap();
        assert_eq!(log.requests, [request(0.0, 3, 2), request(2.0, 2, 32)]);
        assert_eq!((log.limits_only, log.left_out), (1, 1));
        let text = "2 requests of 2 s; 1 replies are taken as long as their max_tokens; 1 requests without a time or \
                    token counts are left out";
        assert_eq!(log.describe(), text);
    }

    #[test]
    fn a_proxys_json_lines_give_lengths_times_and_answered_requests() {
        let log = read(
            r#"{"startTime": "2026-11-25T10:00:02Z", "status": 200, "response": {"usage": {"prompt_tokens": 10, "completion_tokens": 20}}}
{"ts": 1795600800.5, "usage": {"prompt_tokens": 11, "completion_tokens": 21}}
{"time": 1795600801000, "status": 500, "usage": {"prompt_tokens": 12, "completion_tokens": 22}}
"#,
        )
        .unwrap();
        assert_eq!(log.requests, [request(0.0, 11, 21), request(1.5, 10, 20)]);
    }

    #[test]
    fn a_log_without_token_counts_is_an_error_with_the_remedy() {
        let error = read("127.0.0.1 - - [25/Nov/2026:10:00:00 +0000] \"POST /v1/chat/completions HTTP/1.1\" 200 17\n");
        let error = error.unwrap_err();
        assert!(error.contains("none of its 1 requests has token counts") && error.contains("--enable-log-requests"));
    }

    #[test]
    fn traces_and_prompts_are_no_access_logs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        for text in [
            "{\"prompt\": \"a\", \"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": 1}}\n",
            "{\"timestamp\": 0, \"input_length\": 6, \"output_length\": 5}\n",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            "[{\"conversations\": []}]",
            "",
        ] {
            std::fs::write(&path, text).unwrap();
            assert!(!AccessLog::is_log(&path).unwrap(), "{text}");
        }
    }
}
