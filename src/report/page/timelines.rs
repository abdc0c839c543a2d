//! Samples of a server over time, as few series with common instants.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::document::Timeline;
use crate::stats::to_f64;

/// The longest distance between an instant and the sample that stands for it, in intervals of sampling.
const MAX_DISTANCE: f64 = 1.5;

/// One source of samples: instants, and columns of values.
struct Source<'a> {
    at_s: Vec<f64>,
    columns: &'a serde_json::Map<String, Json>,
}

impl<'a> Source<'a> {
    fn of(json: &'a Json) -> Option<Self> {
        let columns = json.as_object()?;
        let at_s: Vec<f64> = columns.get("at_s")?.as_array()?.iter().filter_map(Json::as_f64).collect();
        (!at_s.is_empty()).then_some(Self { at_s, columns })
    }

    fn column(&self, name: &str) -> Option<Vec<Option<f64>>> {
        Some(self.columns.get(name)?.as_array()?.iter().map(Json::as_f64).collect())
    }

    /// Returns the values of a column nearest to other instants; `None` for an instant without a sample nearby.
    fn at(&self, instants: &[f64], column: &[Option<f64>], reach_s: f64) -> Vec<Option<f64>> {
        let nearest = |at: &f64| {
            let after = self.at_s.partition_point(|own| own < at);
            let around = [after.checked_sub(1), Some(after)].into_iter().flatten();
            let candidates = around.filter_map(|index| Some(((self.at_s.get(index)? - at).abs(), index)));
            let (distance, index) = candidates.min_by(|a, b| a.0.total_cmp(&b.0))?;
            if distance <= reach_s { column.get(index).copied().flatten() } else { None }
        };
        instants.iter().map(nearest).collect()
    }
}

/// Returns the timeline of a trial with at most `most` + 1 instants; `None` without samples.
///
/// The batch size (`tokens_per_step`) is the growth of prompt and generated tokens over that of the steps.
pub(super) fn timeline(stored: &Json, most: usize) -> Option<Timeline> {
    let [server, process, host] = ["server", "process", "host"].map(|name| Source::of(&stored[name]));
    let gpus: Vec<Source<'_>> = stored["gpus"].as_array().into_iter().flatten().filter_map(Source::of).collect();
    let sources = [&server, &process, &host].into_iter().flatten().chain(&gpus);
    let instants = thinned(&sources.max_by_key(|source| source.at_s.len())?.at_s, most);
    let reach_s = MAX_DISTANCE * stored["interval_s"].as_f64().unwrap_or(1.0).max(spacing(&instants));
    let mut series: BTreeMap<&'static str, Vec<Option<f64>>> = BTreeMap::new();
    let mut add = |name: &'static str, values: Vec<Option<f64>>| {
        if values.iter().any(Option::is_some) {
            series.insert(name, values);
        }
    };
    if let Some(server) = &server {
        for name in ["kv_cache_usage", "requests_running", "requests_waiting"] {
            if let Some(column) = server.column(name) {
                add(name, server.at(&instants, &column, reach_s));
            }
        }
        if let Some(column) = tokens_per_step(server) {
            add("tokens_per_step", server.at(&instants, &column, reach_s));
        }
    }
    if let Some((process, column)) = process.as_ref().and_then(|process| Some((process, process.column("rss_gib")?))) {
        add("server_rss_gib", process.at(&instants, &column, reach_s));
    }
    if let Some(host) = &host
        && let Some(column) = busy_share(host)
    {
        add("host_cpu_share", host.at(&instants, &column, reach_s));
    }
    for (name, column) in [("gpu_memory_gib", "memory_gib"), ("gpu_power_w", "power_w")] {
        let columns = gpus.iter().filter_map(|gpu| Some(gpu.at(&instants, &gpu.column(column)?, reach_s)));
        if let Some(sum) = columns.reduce(|sum, next| sum.iter().zip(next).map(|(a, b)| Some((*a)? + b?)).collect()) {
            add(name, sum);
        }
    }
    let window = stored["window_s"].as_f64().map(|length| [0.0, length]);
    (!series.is_empty()).then_some(Timeline { at_s: instants, series, window })
}

/// Returns at most `most` + 1 of the instants, evenly spread, the last one included.
fn thinned(instants: &[f64], most: usize) -> Vec<f64> {
    let step = instants.len().div_ceil(most.max(1)).max(1);
    let last = instants.len().saturating_sub(1);
    let kept = instants.iter().enumerate().filter(|(index, _)| index % step == 0 || *index == last);
    kept.map(|(_, at)| *at).collect()
}

/// Returns the mean distance of instants.
fn spacing(instants: &[f64]) -> f64 {
    match instants {
        [first, .., last] => (last - first) / to_f64(instants.len() - 1),
        _ => 0.0,
    }
}

/// Returns the tokens of a mean step between each sample and the one before.
fn tokens_per_step(server: &Source<'_>) -> Option<Vec<Option<f64>>> {
    let [steps, prompt, generated] = ["engine_steps", "prompt_tokens", "generation_tokens"].map(|it| server.column(it));
    let (steps, prompt, generated) = (steps?, prompt?, generated?);
    let tokens: Vec<Option<f64>> = prompt.iter().zip(&generated).map(|(a, b)| Some((*a)? + (*b)?)).collect();
    Some(ratio_of_growth(&tokens, &steps))
}

/// Returns the busy share of the host's processors between each sample and the one before.
fn busy_share(host: &Source<'_>) -> Option<Vec<Option<f64>>> {
    Some(ratio_of_growth(&host.column("cpu_busy_s")?, &host.column("cpu_all_s")?))
}

/// Returns the growth of one counter over that of another one since the sample before; `None` without growth.
fn ratio_of_growth(part: &[Option<f64>], whole: &[Option<f64>]) -> Vec<Option<f64>> {
    let growth = |column: &[Option<f64>], index: usize| Some((*column.get(index)?)? - (*column.get(index - 1)?)?);
    let at = |index: usize| {
        let whole = growth(whole, index).filter(|growth| *growth > 0.0)?;
        Some(round(growth(part, index)? / whole))
    };
    (0..part.len()).map(|index| if index == 0 { None } else { at(index) }).collect()
}

/// Rounds to three decimals, because a page needs no more.
fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn series_of_several_sources_get_common_instants() {
        let stored = json!({
            "interval_s": 1.0, "window_s": 2.0,
            "server": {"at_s": [0.1, 1.1, 2.1], "requests_running": [1.0, null, 3.0], "engine_steps": [0, 10, 10],
                       "prompt_tokens": [0, 100, 100], "generation_tokens": [0, 60, 60]},
            "process": {"at_s": [0.0, 1.0, 2.0, 9.0], "rss_gib": [1.5, 1.6, 1.7, 1.8]},
            "gpus": [{"at_s": [0.0, 1.0, 2.0, 9.0], "power_w": [100.0, 200.0, null, 400.0]},
                     {"at_s": [0.0, 1.0, 2.0, 9.0], "power_w": [1.0, 2.0, 3.0, 4.0]}],
        });
        let found = timeline(&stored, 120).unwrap();
        assert_eq!((found.at_s, found.window), (vec![0.0, 1.0, 2.0, 9.0], Some([0.0, 2.0])));
        let expected = [
            ("gpu_power_w", vec![Some(101.0), Some(202.0), None, Some(404.0)]),
            ("requests_running", vec![Some(1.0), None, Some(3.0), None]),
            ("server_rss_gib", vec![Some(1.5), Some(1.6), Some(1.7), Some(1.8)]),
            ("tokens_per_step", vec![None, Some(16.0), None, None]),
        ];
        assert_eq!(found.series, BTreeMap::from(expected));
        assert_eq!(timeline(&json!({"interval_s": 1.0, "notes": []}), 120), None);
    }

    #[test]
    fn many_samples_are_thinned_and_the_last_one_stays() {
        let instants: Vec<f64> = (0..121_u32).map(f64::from).collect();
        assert_eq!(thinned(&instants, 12), [0.0, 11.0, 22.0, 33.0, 44.0, 55.0, 66.0, 77.0, 88.0, 99.0, 110.0, 120.0]);
        assert_eq!(thinned(&instants[..2], 12), [0.0, 1.0]);
    }
}
