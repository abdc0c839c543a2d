//! The text block of `vllm bench serve`, plain or as a Markdown list.
//!
//! Labels are compared without their case, because `Total Token throughput` was written in two ways. A plain block ends
//! with a rule of `=`. A Markdown block has no end: it must have its throughputs and complete latencies.

use super::{ImportedResult, LineProblem};

/// Titles of the block and of its sections. They carry no value.
const TITLES: [&str; 5] = [
    "serving benchmark result",
    "time to first token",
    "time per output token (excl. 1st token)",
    "inter-token latency",
    "end-to-end latency",
];

/// Labels and our names of their metrics.
const LABELS: [(&str, &str); 11] = [
    ("successful requests", "completed"),
    ("failed requests", "failed"),
    ("benchmark duration (s)", "duration"),
    ("total input tokens", "total_input_tokens"),
    ("total generated tokens", "total_output_tokens"),
    ("request throughput (req/s)", "request_throughput"),
    ("request goodput (req/s)", "request_goodput"),
    ("output token throughput (tok/s)", "output_throughput"),
    ("peak output token throughput (tok/s)", "max_output_tokens_per_s"),
    ("peak concurrent requests", "max_concurrent_requests"),
    ("total token throughput (tok/s)", "total_token_throughput"),
];

/// Metrics that each block must have.
const REQUIRED: [(&str, &str); 3] = [
    ("completed", "Successful requests"),
    ("output_throughput", "Output token throughput (tok/s)"),
    ("total_token_throughput", "Total token throughput (tok/s)"),
];

/// A block that is being read.
#[derive(Debug)]
pub(super) struct ResultBlock {
    result: ImportedResult,
    /// Whether it ends with a rule.
    is_plain: bool,
}

/// The meaning of a line within a block.
#[derive(Debug, PartialEq)]
pub(super) enum BlockLine {
    /// It belongs to the block.
    Taken,
    /// It belongs to the block, but its label is unknown.
    Unknown,
    /// The block ends with it.
    End,
    /// It does not belong to the block.
    Other,
}

impl ResultBlock {
    /// Returns a new block if the line is its title.
    #[must_use]
    pub(super) fn begin(number: usize, line: &str) -> Option<Self> {
        let is_plain = line.starts_with('=');
        let is_title = is_plain || line.starts_with('#');
        (is_title && title(line) == TITLES[0])
            .then(|| Self { result: ImportedResult { line: number, ..ImportedResult::default() }, is_plain })
    }

    /// Reads the next line.
    ///
    /// # Errors
    /// If the value of a known label is not a number.
    pub(super) fn read(&mut self, number: usize, line: &str) -> Result<BlockLine, LineProblem> {
        if self.is_plain && line.len() >= 10 && line.bytes().all(|byte| byte == b'=') {
            return Ok(BlockLine::End);
        }
        if line.is_empty() || TITLES[1..].contains(&title(line).as_str()) {
            return Ok(BlockLine::Taken);
        }
        let item = line.strip_prefix("* ").or_else(|| line.strip_prefix("- ")).unwrap_or(line);
        let Some((label, value)) = item.rsplit_once(':') else { return Ok(BlockLine::Other) };
        let label = label.trim().to_lowercase();
        let number_of = |value: &str| match value.trim().parse::<f64>() {
            Ok(number) => Ok(Some(number).filter(|number| !number.is_nan())),
            Err(_) if value.trim().is_empty() => {
                Err(LineProblem::cut_off(number, format!("{:?} has no value", label.trim())))
            }
            Err(_) => Err(LineProblem::new(number, format!("{:?} is not a number: {label}", value.trim()))),
        };
        let load = &mut self.result.load;
        match label.as_str() {
            "maximum request concurrency" => load.concurrency = number_of(value)?.map(crate::stats::f64_to_u64),
            "request rate configured (rps)" | "traffic request rate" => load.rate = number_of(value)?,
            label => {
                let known = LABELS.iter().find(|(known, _)| *known == label).map(|(_, name)| (*name).to_owned());
                let Some(name) = known.or_else(|| latency(label)) else {
                    return Ok(if self.is_plain { BlockLine::Unknown } else { BlockLine::Other });
                };
                if let Some(value) = number_of(value)? {
                    self.result.metrics.insert(name, value);
                }
            }
        }
        Ok(BlockLine::Taken)
    }

    /// Returns the result at the block's end. `is_ended` means that its last rule was read; `number` is the last line.
    ///
    /// # Errors
    /// If the block is incomplete.
    pub(super) fn finish(mut self, number: usize, is_ended: bool) -> Result<ImportedResult, LineProblem> {
        let begin = self.result.line;
        if self.is_plain && !is_ended {
            let problem = format!("the result that begins on line {begin} has no closing line of \"=\"");
            return Err(LineProblem::cut_off(number, problem));
        }
        let metrics = &self.result.metrics;
        let missing = REQUIRED.iter().find(|(name, _)| !metrics.contains_key(*name)).map(|(_, label)| *label);
        let cut = ["ttft", "tpot", "itl", "e2el"].into_iter().find(|latency| {
            let has = |statistic: &str| metrics.contains_key(&format!("{statistic}_{latency}_ms"));
            has("mean") && !(has("median") && metrics.keys().any(|key| key.starts_with('p') && key.contains(latency)))
        });
        if let Some(label) = missing.map(str::to_owned).or(cut.map(|latency| format!("a percentile of {latency}"))) {
            let problem = format!("the result that begins on line {begin} lacks {label}");
            return Err(LineProblem::cut_off(number, problem));
        }
        // All requests were sent at once or in a loop: without failures the number of requests is the completed one.
        let total = metrics.get("completed").map(|done| done + metrics.get("failed").unwrap_or(&0.0));
        self.result.load.requests = total.map(crate::stats::f64_to_u64);
        Ok(self.result)
    }
}

/// Returns the metric of a label such as `P99 TTFT (ms)`.
fn latency(label: &str) -> Option<String> {
    // SGLang writes out the name of the end-to-end latency.
    let label = label.replace("e2e latency", "e2el");
    let (statistic, latency) = label.strip_suffix("(ms)")?.trim().split_once(' ')?;
    let latency = ["ttft", "tpot", "itl", "e2el"].into_iter().find(|known| *known == latency)?;
    let percentile = statistic.strip_prefix('p').is_some_and(|number| number.parse::<f64>().is_ok());
    (percentile || ["mean", "median", "std"].contains(&statistic)).then(|| format!("{statistic}_{latency}_ms"))
}

/// Returns a title without its rule or its Markdown, in lower case.
fn title(line: &str) -> String {
    line.trim_matches(['=', '-', '#', ' ', '*']).to_lowercase()
}
