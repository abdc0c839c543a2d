//! Medians, the table, and the targets.

use comfy_table::{CellAlignment, Table, presets};

use crate::client::Outcome;
use crate::scenario::Scenario;

use setpoint::stats::to_f64;

/// The largest acceptable lateness of the server's 99th percentile. A later server is no reference clock for a client:
/// the narrowest target on single latencies is twice as wide.
const LATE_MS: f64 = 5.0;

/// The share of one core that other programs may use before a run is doubtful. A few ticks of the clock's resolution
/// are added.
const OTHERS: f64 = 0.2;

/// All runs of one scenario.
pub(crate) struct Results {
    pub scenario: &'static Scenario,
    pub setpoint: Vec<Outcome>,
    pub vllm: Vec<Outcome>,
}

/// Returns the median over runs; NaN without runs.
pub(crate) fn median(runs: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    let mut values: Vec<f64> = runs.iter().map(of).collect();
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

type Quantity = fn(&Outcome) -> f64;

const QUANTITIES: &[(&str, usize, Quantity)] = &[
    ("wall s", 2, |run| run.cost.wall_s),
    ("cpu s", 2, |run| run.cost.cpu_s),
    ("  until the first request", 2, |run| run.start_cpu_s),
    ("max rss MB", 0, |run| run.cost.max_rss_mb),
    ("start to first request ms", 1, |run| run.start_ms),
    ("completed", 0, |run| to_f64(run.reported.completed)),
    ("failed", 0, |run| to_f64(run.reported.failed)),
    ("output tokens/s", 0, |run| run.reported.output_throughput),
    ("  the server's own", 0, |run| run.truth.tokens_per_s),
    ("mean ttft ms", 2, |run| run.reported.mean_ttft_ms),
    ("  the server's own", 2, |run| run.truth.mean_ttft_ms),
    ("  own, from the read", 2, |run| run.truth.mean_read_ttft_ms),
    ("p99 ttft ms", 2, |run| run.reported.p99_ttft_ms),
    ("  the server's own", 2, |run| run.truth.p99_ttft_ms),
    ("mean itl ms", 3, |run| run.reported.mean_itl_ms),
    ("  the server's own", 3, |run| run.truth.mean_itl_ms),
    ("server late p99 ms", 2, |run| run.truth.late_p99_ms),
    ("server cpu s", 2, |run| run.truth.cpu_s),
    ("others' cpu s", 2, Outcome::others_cpu_s),
    ("server max rss MB", 0, |run| run.truth.max_rss_mb),
];

impl Results {
    /// Returns a table with rows of quantities, columns of clients, and medians over the runs.
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["", "setpoint", "vllm bench serve", "setpoint / vllm"]);
        for (name, digits, of) in QUANTITIES {
            let (ours, theirs) = (median(&self.setpoint, of), median(&self.vllm, of));
            let text = |value: f64, digits| if value.is_nan() { "-".to_owned() } else { format!("{value:.digits$}") };
            table.add_row([(*name).to_owned(), text(ours, *digits), text(theirs, *digits), text(ours / theirs, 3)]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Returns warnings about circumstances that make the numbers doubtful.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (name, runs) in [("setpoint", &self.setpoint), ("vllm", &self.vllm)] {
            for (index, run) in runs.iter().enumerate() {
                let mut warn = |what: String| warnings.push(format!("{name}, run {}: {what}", index + 1));
                let truth = &run.truth;
                if self.scenario.timing.gap_ms > 0 && truth.late_p99_ms > LATE_MS {
                    let late = truth.late_p99_ms;
                    warn(format!("the server itself could not keep time: p99 {late:.1} ms late, limit {LATE_MS} ms"));
                }
                let others = run.others_cpu_s();
                if others > OTHERS * run.cost.wall_s + 0.05 {
                    warn(format!("other programs took {others:.1} cpu seconds meanwhile: the machine was not quiet"));
                }
                if !truth.kernel_stamps {
                    warn("the kernel gave no times of arrival; the server's own TTFT lacks its backlog".to_owned());
                }
                if truth.blocked > 0 {
                    warn(format!("{} tokens waited because the client did not read", truth.blocked));
                }
                if truth.aborted > 0 {
                    warn(format!("{} connections broke in the middle of a reply", truth.aborted));
                }
                if run.cost.exit_code != Some(0) {
                    warn(format!("ended with exit code {:?}", run.cost.exit_code));
                }
            }
        }
        warnings
    }
}

/// The result of one target.
pub(crate) struct Verdict {
    pub text: String,
    pub met: bool,
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    Below(f64),
    AtLeast(f64),
}

fn verdict(scenario: &str, what: &str, value: f64, limit: Limit, unit: &str) -> Verdict {
    let (met, words) = match limit {
        Limit::AtMost(limit) => (value <= limit, format!("at most {limit}")),
        Limit::Below(limit) => (value < limit, format!("below {limit}")),
        Limit::AtLeast(limit) => (value >= limit, format!("at least {limit}")),
    };
    let state = if value.is_nan() {
        "not measured"
    } else if met {
        "met"
    } else {
        "NOT MET"
    };
    Verdict { text: format!("{state:12} {scenario:13} {what}: {value:.3}{unit}, {words}{unit}"), met }
}

/// Returns the verdict on every target of the scenarios that ran. `compared`: whether vLLM's client was to be measured
/// too.
pub(crate) fn verdicts(all: &[Results], compared: bool) -> Vec<Verdict> {
    let mut lines = Vec::new();
    for results in all {
        let name = results.scenario.name;
        let ours = |of: Quantity| median(&results.setpoint, of);
        let late = results.scenario.timing.gap_ms > 0 && ours(|run| run.truth.late_p99_ms) > LATE_MS;
        let remark = if late { " (but the server was late)" } else { "" };
        let mut line = |what: &str, value, limit, unit| {
            let mut verdict = verdict(name, what, value, limit, unit);
            verdict.text.push_str(remark);
            lines.push(verdict);
        };
        let ttft: Quantity = |run| (run.reported.mean_ttft_ms - run.truth.mean_ttft_ms).abs();
        match name {
            "start" => line("start to first request", ours(|run| run.start_ms), Limit::Below(50.0), " ms"),
            "streams-1000" => {
                let p99: Quantity = |run| (run.reported.p99_ttft_ms - run.truth.p99_ttft_ms).abs();
                let itl: Quantity = |run| (run.reported.mean_itl_ms / run.truth.mean_itl_ms - 1.0).abs() * 100.0;
                line("output tokens/s", ours(|run| run.reported.output_throughput), Limit::AtLeast(48_000.0), "");
                line("mean ttft against the server's own", ours(ttft), Limit::AtMost(5.0), " ms");
                line("p99 ttft against the server's own", ours(p99), Limit::AtMost(10.0), " ms");
                line("mean itl against the server's own", ours(itl), Limit::AtMost(1.0), " %");
                line("cpu with start", ours(|run| run.cost.cpu_s), Limit::AtMost(3.0), " s");
                line("max rss", ours(|run| run.cost.max_rss_mb), Limit::Below(150.0), " MB");
            }
            "streams-5000" => {
                let errors = median(&results.setpoint, |run| {
                    f64::from(results.scenario.requests) - to_f64(run.reported.completed)
                });
                line("requests not completed", errors, Limit::AtMost(0.0), "");
            }
            "long-prompts" => {
                let share: Quantity = |run| (run.reported.mean_ttft_ms / run.truth.mean_ttft_ms - 1.0).abs() * 100.0;
                line("mean ttft against the server's own", ours(share), Limit::AtMost(5.0), " %");
            }
            "firehose" if compared => {
                let included: Quantity = |run| to_f64(run.truth.tokens) / run.cost.cpu_s;
                let excluded: Quantity = |run| to_f64(run.truth.tokens) / (run.cost.cpu_s - run.start_cpu_s);
                for (what, per_cpu) in [("included", included), ("excluded", excluded)] {
                    let (ours, theirs) = (ours(per_cpu), median(&results.vllm, per_cpu));
                    let what = format!("tokens per cpu second, start {what}, {ours:.0} against {theirs:.0}");
                    line(&what, ours / theirs, Limit::AtLeast(5.0), " times");
                }
            }
            _ => {}
        }
    }
    lines
}
