//! Mapping of each engine's series on `/metrics` to our own names.

use std::collections::BTreeMap;

use super::exposition;
use super::series::SeriesRow;

/// Combination of the values of several engines or labels into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combination {
    Sum,
    Mean,
}

/// A series and its names on the pages of the engines.
struct SeriesSource {
    /// Our name.
    series: &'static str,
    fold: Combination,
    /// Names of the series on pages. Only the first name that the page has is read.
    names: &'static [&'static str],
}

const fn sum(series: &'static str, names: &'static [&'static str]) -> SeriesSource {
    SeriesSource { series, fold: Combination::Sum, names }
}

const fn mean(series: &'static str, names: &'static [&'static str]) -> SeriesSource {
    SeriesSource { series, fold: Combination::Mean, names }
}

/// Every series and its names.
///
/// vLLM: `vllm/engine/metrics.py` (V0, up to 0.8 by default) and `vllm/v1/metrics/loggers.py`; V1 has one sample for
/// each engine (`engine="0"`, ...). V0 and V1 before 0.10 have `gpu_cache_usage_perc`. 0.10 has both names, and later
/// releases only the new one. V0 reports the prefix cache's hit rate instead of counters, and -1 if the cache is off.
/// Before 0.10 the counters count blocks, later tokens. Their ratio is the same.
///
/// `SGLang` (`--enable-metrics`): its own page on production metrics. Its gauge `cache_hit_rate` covers only the last
/// batches, so the counters are read. TGI and llama.cpp (`--metrics`): the corresponding series.
const SOURCES: &[SeriesSource] = &[
    sum(
        "requests_running",
        &[
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "tgi_batch_current_size",
            "llamacpp:requests_processing",
        ],
    ),
    sum(
        "requests_waiting",
        &["vllm:num_requests_waiting", "sglang:num_queue_reqs", "tgi_queue_size", "llamacpp:requests_deferred"],
    ),
    sum("requests_swapped", &["vllm:num_requests_swapped"]),
    mean(
        "kv_cache_usage",
        &[
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "sglang:token_usage",
            "llamacpp:kv_cache_usage_ratio",
        ],
    ),
    sum("preemptions", &["vllm:num_preemptions_total", "sglang:num_retracted_requests_total"]),
    sum(
        "prefix_cache_queries",
        &["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "sglang:prompt_tokens_total"],
    ),
    sum(
        "prefix_cache_hits",
        &["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"],
    ),
    mean("prefix_cache_hit_rate", &["vllm:gpu_prefix_cache_hit_rate"]),
    sum(
        "prompt_tokens",
        &[
            "vllm:prompt_tokens_total",
            "sglang:prompt_tokens_total",
            "tgi_request_input_length_sum",
            "llamacpp:prompt_tokens_total",
        ],
    ),
    sum(
        "generation_tokens",
        &[
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "tgi_request_generated_tokens_sum",
            "llamacpp:tokens_predicted_total",
        ],
    ),
    // The count of the histogram of tokens per step.
    sum("engine_steps", &["vllm:iteration_tokens_total_count"]),
    // A draft is the proposal of one step for one sequence, of several draft tokens.
    sum("drafts", &["vllm:spec_decode_num_drafts_total"]),
    sum("draft_tokens", &["vllm:spec_decode_num_draft_tokens_total"]),
    sum("accepted_draft_tokens", &["vllm:spec_decode_num_accepted_tokens_total"]),
    mean("mean_acceptance_length", &["sglang:spec_accept_length"]),
    sum("requests_finished", &["vllm:request_success_total", "sglang:num_requests_total", "tgi_request_success"]),
];

/// Returns the series of a page, or none for a page of an unknown engine. `own` contains names of series that take
/// precedence over the known ones.
pub(super) fn read(page: &str, own: &BTreeMap<String, String>) -> SeriesRow {
    let names = |source: &SeriesSource| {
        let own = own.get(source.series).map(String::as_str);
        own.into_iter().chain(source.names.iter().copied()).collect::<Vec<_>>()
    };
    // Sum and number of the samples of every known name.
    let mut found: BTreeMap<&str, (f64, f64)> = SOURCES.iter().flat_map(names).map(|name| (name, (0.0, 0.0))).collect();
    for sample in exposition::samples(page) {
        // A rate of -1 means that there is no cache.
        if let Some((sum, count)) = found.get_mut(sample.name)
            && sample.value >= 0.0
            && sample.value.is_finite()
        {
            *sum += sample.value;
            *count += 1.0;
        }
    }
    let value = |source: &SeriesSource| {
        let (sum, count) =
            names(source).into_iter().filter_map(|name| found.get(name)).find(|(_, count)| *count > 0.0)?;
        let value = if source.fold == Combination::Mean { sum / count } else { *sum };
        Some((source.series, value))
    };
    SOURCES.iter().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(page: &str) -> BTreeMap<&'static str, f64> {
        read(page, &BTreeMap::new()).into_iter().collect()
    }

    #[test]
    fn a_recorded_page_of_0_32_0_is_read() {
        let row = row(include_str!("../../tests/fixtures/metrics/vllm-0.32.0.txt"));
        let expected = [
            ("engine_steps", 16.0),
            ("generation_tokens", 16.0),
            ("kv_cache_usage", 0.0),
            ("preemptions", 0.0),
            ("prefix_cache_hits", 128.0),
            ("prefix_cache_queries", 280.0),
            ("prompt_tokens", 280.0),
            ("requests_finished", 2.0),
            ("requests_running", 0.0),
            ("requests_waiting", 0.0),
        ];
        assert_eq!(row, BTreeMap::from(expected));
    }

    #[test]
    fn a_study_can_name_the_series_of_its_own_server() {
        let series: Vec<_> = SOURCES.iter().map(|source| source.series).collect();
        assert_eq!(series, crate::engine::QUANTITIES);
        let own = BTreeMap::from([("requests_running".to_owned(), "my_active".to_owned())]);
        assert_eq!(read("my_active 3\nmy_queue 4\n", &own), [("requests_running", 3.0)]);
    }

    #[test]
    fn v0_has_swapped_requests_the_old_name_of_the_cache_and_a_rate_that_may_be_off() {
        let page = |rate: &str| {
            format!(
                "# HELP vllm:num_requests_running Number of requests currently running on GPU.\n\
                 # TYPE vllm:num_requests_running gauge\n\
                 vllm:num_requests_running{{model_name=\"q\"}} 7.0\n\
                 vllm:num_requests_swapped{{model_name=\"q\"}} 1.0\n\
                 vllm:num_requests_waiting{{model_name=\"q\"}} 2.0\n\
                 vllm:gpu_cache_usage_perc{{model_name=\"q\"}} 0.25\n\
                 vllm:cpu_cache_usage_perc{{model_name=\"q\"}} 0.5\n\
                 vllm:gpu_prefix_cache_hit_rate{{model_name=\"q\"}} {rate}\n\
                 vllm:num_preemptions_total{{model_name=\"q\"}} 3.0\n"
            )
        };
        let on = row(&page("0.75"));
        assert_eq!((on["requests_running"], on["requests_swapped"], on["requests_waiting"]), (7.0, 1.0, 2.0));
        assert_eq!((on["kv_cache_usage"], on["preemptions"], on["prefix_cache_hit_rate"]), (0.25, 3.0, 0.75));
        assert!(!row(&page("-1.0")).contains_key("prefix_cache_hit_rate"));
    }

    #[test]
    fn engines_are_added_up_and_their_caches_averaged_and_a_new_name_stands_before_the_old() {
        let page = "vllm:num_requests_running{engine=\"0\",model_name=\"q\"} 3.0\n\
                    vllm:num_requests_running{engine=\"1\",model_name=\"q\"} 5.0\n\
                    vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"q\"} 0.9\n\
                    vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"q\"} 0.2\n\
                    vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"q\"} 0.4\n\
                    vllm:gpu_prefix_cache_queries_total{engine=\"0\",model_name=\"q\"} 12.0\n\
                    vllm:gpu_prefix_cache_hits_total{engine=\"0\",model_name=\"q\"} 6.0\n\
                    vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"q\"} 1.0\n\
                    vllm:request_success_total{engine=\"1\",finished_reason=\"length\",model_name=\"q\"} 2.0\n\
                    vllm:request_success_created{engine=\"1\",finished_reason=\"length\",model_name=\"q\"} 1.7e9\n";
        let row = row(page);
        assert_eq!((row["requests_running"], row["requests_finished"]), (8.0, 3.0));
        assert!((row["kv_cache_usage"] - 0.3).abs() < 1e-12);
        assert_eq!((row["prefix_cache_queries"], row["prefix_cache_hits"]), (12.0, 6.0));
    }

    #[test]
    fn other_servers_have_their_own_series_and_unknown_ones_none() {
        let sglang = row("sglang:num_running_reqs{model_name=\"l\"} 4.0\nsglang:token_usage{model_name=\"l\"} 0.28\n\
                          sglang:prompt_tokens_total{model_name=\"l\"} 8.128902e+06\n\
                          sglang:cached_tokens_total{cache_source=\"device\"} 100.0\n\
                          sglang:cached_tokens_total{cache_source=\"host\"} 11.0\n");
        assert_eq!((sglang["requests_running"], sglang["kv_cache_usage"]), (4.0, 0.28));
        assert_eq!((sglang["prompt_tokens"], sglang["prefix_cache_queries"]), (8_128_902.0, 8_128_902.0));
        assert_eq!(sglang.get("prefix_cache_hits"), Some(&111.0));
        let tgi = row("tgi_batch_current_size 4\ntgi_queue_size 7\ntgi_request_generated_tokens_sum 8123\n");
        assert_eq!((tgi["requests_running"], tgi["requests_waiting"], tgi["generation_tokens"]), (4.0, 7.0, 8123.0));
        let llama = row("llamacpp:requests_deferred 1\nllamacpp:tokens_predicted_total 39080\n");
        assert_eq!((llama["requests_waiting"], llama["generation_tokens"]), (1.0, 39080.0));
        assert!(row("process_cpu_seconds_total 11.48\n<html>not here</html>").is_empty());
    }
}
