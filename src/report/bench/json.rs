//! Writes the JSON of `vllm bench serve --save-result`, with additional fields.

use serde_json::{Map, Value as Json, json};

use super::{BenchResult, BenchRuns};

/// Writes one object for one run, or an array for a profile.
pub(super) fn write(runs: BenchRuns<'_>) -> String {
    let json = match runs {
        BenchRuns::One(run) => benchmark_json(run),
        BenchRuns::Profile(all) => all.iter().map(benchmark_json).collect(),
    };
    format!("{json:#}")
}

/// Returns one run as a flat object, under the names of `vllm bench serve`.
///
/// The additional fields are `name`, `device`, `seed`, `valid` with `invalid_reasons`, `end`, `unfinished`, `unsent`,
/// `saturated`, `setpoint_version`, `ramp_up_over_s`, `series` and `server_series`. From the
/// [`Measurement`](crate::trial::Measurement), `errors` (counts by class), `client`, `window`, `confidence` and
/// `server` are additional too. A missing latency is absent, not 0. A rate or a burstiness without a limit is the text
/// `inf`, as in `vllm bench serve`.
#[must_use]
pub(crate) fn benchmark_json(run: &BenchResult) -> Json {
    let mut map = match serde_json::to_value(&run.measurement) {
        Ok(Json::Object(map)) => map,
        // A measurement is an object of finite numbers.
        _ => Map::new(),
    };
    map.entry("request_goodput").or_insert(Json::Null);
    let asked = json!({
        "date": run.date,
        "endpoint_type": run.backend,
        "backend": run.backend,
        "label": null,
        "model_id": run.model,
        "tokenizer_id": run.tokenizer,
        "num_prompts": run.requests,
        "request_rate": or_inf(run.rate),
        "burstiness": or_inf(run.burstiness),
        "max_concurrency": run.concurrency,
        "name": run.name,
        "device": run.device,
        "seed": run.seed,
        "valid": run.is_valid(),
        "invalid_reasons": run.invalid,
        "end": run.end,
        "unfinished": run.unfinished,
        "unsent": run.unsent,
        "saturated": run.saturated,
        "setpoint_version": env!("CARGO_PKG_VERSION"),
    });
    if let Json::Object(asked) = asked {
        map.extend(asked);
    }
    if let Some([from, to, over_s]) = run.ramp {
        map.insert("ramp_up_strategy".to_owned(), "linear".into());
        map.insert("ramp_up_start_rps".to_owned(), from.into());
        map.insert("ramp_up_end_rps".to_owned(), to.into());
        map.insert("ramp_up_over_s".to_owned(), over_s.into());
    }
    for (name, series) in [("series", &run.series), ("server_series", &run.server_series)] {
        if let Some(series) = series {
            map.insert(name.to_owned(), series.clone());
        }
    }
    Json::Object(map)
}

/// Returns a number, or the text `inf` for infinity, which JSON lacks.
fn or_inf(value: f64) -> Json {
    if value.is_finite() { value.into() } else { "inf".into() }
}
