//! Short titles and units of metrics, for the heads of columns.

use crate::trial::SERVER_METRICS;

/// Statistics before the name of a latency or a speed.
const STATISTICS: [&str; 11] = ["mean", "median", "std", "p50", "p90", "p95", "p99", "p10", "p5", "p1", "max"];

/// Returns the unit of a metric. Empty for counts and for unknown names.
#[must_use]
pub(crate) fn metric_unit(metric: &str) -> &'static str {
    match metric {
        "output_throughput" | "total_token_throughput" | "max_output_tokens_per_s" => "tok/s",
        "request_throughput" | "request_goodput" => "req/s",
        "duration" => "s",
        "total_input_tokens" | "total_output_tokens" | "cached_prompt_tokens" => "tokens",
        name if name.ends_with("_ms") => "ms",
        name if name.ends_with("_output_speed") => "tok/s",
        name => {
            let unit = SERVER_METRICS.iter().find(|(known, ..)| *known == name).map(|(_, unit, _)| *unit);
            unit.filter(|unit| !["count", "share"].contains(unit)).unwrap_or_default()
        }
    }
}

/// Returns a short title without its unit: `output`, `p99 TTFT`. Metrics without a shorter name keep their own.
#[must_use]
pub(crate) fn metric_title(metric: &str) -> String {
    let fixed = match metric {
        "output_throughput" => "output",
        "total_token_throughput" => "all tokens",
        "max_output_tokens_per_s" => "peak output",
        "request_throughput" => "requests",
        "request_goodput" => "goodput",
        "cost_per_million_tokens" => "cost per M tokens",
        _ => "",
    };
    if !fixed.is_empty() {
        return fixed.to_owned();
    }
    let statistic = STATISTICS.into_iter().find_map(|name| Some((name, metric.strip_prefix(name)?.strip_prefix('_')?)));
    let Some((statistic, rest)) = statistic else { return metric.to_owned() };
    match rest {
        "output_speed" => format!("{statistic} speed"),
        _ => match rest.strip_suffix("_ms") {
            Some("lateness") => format!("{statistic} lateness"),
            Some(latency) => format!("{statistic} {}", latency.to_ascii_uppercase()),
            None => metric.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Measurement;

    #[test]
    fn metrics_have_short_titles_and_units() {
        let shown = ["output_throughput", "p99_ttft_ms", "mean_output_speed", "request_goodput", "energy_j", "failed"]
            .map(|name| (metric_title(name), metric_unit(name)));
        let expected = [
            ("output", "tok/s"),
            ("p99 TTFT", "ms"),
            ("mean speed", "tok/s"),
            ("goodput", "req/s"),
            ("energy_j", "J"),
            ("failed", ""),
        ];
        assert_eq!(shown, expected.map(|(title, unit)| (title.to_owned(), unit)));
    }

    #[test]
    fn no_two_metrics_have_the_same_title() {
        let mut titles: Vec<_> = Measurement::NAMES.iter().map(|name| metric_title(name)).collect();
        titles.sort_unstable();
        let all = titles.len();
        titles.dedup();
        assert_eq!(titles.len(), all);
    }
}
