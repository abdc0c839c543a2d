//! The JSON of `vllm bench serve --save-result`, with what is new here beside it.

use serde_json::{Map, Value as Json, json};

use super::{Benchmark, Runs};

/// One object for one run, an array for a profile.
pub(super) fn write(runs: Runs<'_>) -> String {
    let json = match runs {
        Runs::One(run) => benchmark_json(run),
        Runs::Profile(all) => all.iter().map(benchmark_json).collect(),
    };
    format!("{json:#}")
}

/// One run, flat, under the names of `vllm bench serve`.
///
/// What that program does not have: `name`, `device`, `seed`, `valid` with `invalid_reasons`, `end`, `unfinished`,
/// `unsent`, `saturated`, `series`, `server_series`, and of the [`Measurement`](crate::trial::Measurement) `errors` (counts
/// by class), `client`, `window`, `confidence` and `server`. A latency that does not exist is absent, not 0. A rate without a limit is the
/// text `inf`, as there; so is a burstiness without one.
#[must_use]
pub(crate) fn benchmark_json(run: &Benchmark) -> Json {
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

/// JSON has no infinity.
fn or_inf(value: f64) -> Json {
    if value.is_finite() { value.into() } else { "inf".into() }
}
