//! Renders predictions for programs, as one document.

use serde_json::{Map, Value as Json, json};

use super::{PredictedConfiguration, Predictions, describe_load};
use crate::load::HighestLoad;
use crate::predict::{BatchSeries, LoadLimit, LoadLimits, PredictedHighest, ServedLoad, StepTerm, wait_name, waits};
use crate::trial::Outcome;
use crate::twin::{PhaseForecast, StartForecast};

/// Returns one document, with the best prediction first.
#[must_use]
pub(crate) fn predictions_json(predictions: &Predictions<'_>) -> Json {
    json!({
        "study": predictions.study,
        "engine": predictions.engine,
        "engine_version": predictions.version.to_string(),
        "engine_version_assumed": predictions.version_assumed,
        "load": describe_load(predictions.load),
        "objective": predictions.objective,
        "predictions": predictions.all.iter().map(|one| predicted_json(one, &predictions.objective.metric)).collect::<Vec<_>>(),
    })
}

fn predicted_json(predicted: &PredictedConfiguration, objective: &str) -> Json {
    let prediction = &predicted.prediction;
    let mut object = json!({
        "config": predicted.config,
        "device": predicted.device.name,
        "calibrated": predicted.calibrated,
        "launch_noise": predicted.noise.as_ref().map(|noise| json!({
            "measured": noise.is_measured(),
            "configurations": noise.configurations,
            "launches": noise.launches,
            "deviation": noise.deviation(objective).0,
        })),
        "basis": predicted.basis(objective),
        "state": prediction.outcome.name(),
        "feasible": prediction.score.is_feasible(),
        "value": prediction.score.value(),
    });
    match &prediction.outcome {
        Outcome::Rejected(rejection) => {
            object["rule"] = json!(rejection.rule);
            object["reason"] = json!(rejection.message);
        }
        Outcome::Failed(failure) => object["reason"] = json!(failure.message),
        Outcome::Measured(measurement) => object["metrics"] = json!(measurement),
    }
    if let (Some(served), Json::Object(object)) = (&prediction.served, &mut object) {
        object.extend(served_json(served));
    }
    object
}

fn served_json(served: &ServedLoad) -> Map<String, Json> {
    let fields = [
        ("intervals", json!(served.intervals)),
        ("draws", json!(served.draws)),
        ("limit", limits_json(&served.limits)),
        ("highest_load", served.highest.as_ref().map_or(Json::Null, highest_json)),
        ("unknown_metrics", json!(served.unknown)),
        (
            "resolved",
            json!({
                "num_gpu_blocks": served.blocks,
                "block_size": served.resolved.block_size,
                "max_num_seqs": served.resolved.max_num_seqs,
                "max_num_batched_tokens": served.resolved.max_num_batched_tokens,
                "tensor_parallel_size": served.resolved.tensor_parallel_size,
                "pipeline_parallel_size": served.resolved.pipeline_parallel_size,
                "data_parallel_size": served.replicas,
            }),
        ),
        ("startup", served.startup.as_ref().map_or(Json::Null, startup_json)),
        ("series", series_json(&served.series)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn limits_json(limits: &LoadLimits) -> Json {
    let kind = match limits.main {
        LoadLimit::Queue(_) => "queue",
        LoadLimit::Load(_) => "load",
        LoadLimit::FrontEnd => "front end",
        LoadLimit::Idle => "idle",
    };
    let waits = waits(&limits.shares).map(|(wait, share)| (wait_name(wait).to_owned(), json!(share)));
    let terms = StepTerm::ALL.into_iter().zip(limits.shares.terms);
    let terms = terms.map(|(term, share)| (term.name().to_owned(), json!(share)));
    json!({
        "kind": kind,
        "by": limits.main.name(),
        "largest_term": limits.term.name(),
        "share": limits.share,
        "advice": limits.advice,
        "waits": waits.collect::<Map<_, _>>(),
        "step_time": terms.collect::<Map<_, _>>(),
        "busy": limits.shares.busy,
        "front_end": limits.front_end,
    })
}

fn highest_json(highest: &PredictedHighest) -> Json {
    json!({
        "of": highest.knob.name(),
        "value": highest.value.value(),
        "bounded": matches!(highest.value, HighestLoad::At(_)),
        "tried_down_to": match highest.value { HighestLoad::Below(value) => Some(value), _ => None },
        "interval": highest.interval,
        "draws": highest.draws,
    })
}

fn startup_json(startup: &StartForecast) -> Json {
    let phase = |part: &PhaseForecast| json!({"phase": part.phase, "median_s": part.median_s});
    let phases: Vec<Json> = startup.parts.iter().map(phase).collect();
    json!({"mean_s": startup.mean_s, "interval_s": [startup.low_s, startup.high_s], "phases": phases})
}

/// Returns the series as columns, which are shorter than a list of points.
fn series_json(series: &BatchSeries) -> Json {
    let column = |of: fn(&crate::predict::SeriesPoint) -> f64| {
        let rounded = series.points.iter().map(|point| (of(point) * 1e4).round() / 1e4);
        rounded.collect::<Vec<_>>()
    };
    json!({
        "step_s": series.step_s,
        "token_budget": series.budget,
        "running": column(|point| point.running),
        "waiting": column(|point| point.waiting),
        "kv_usage": column(|point| point.kv),
        "tokens_per_step": column(|point| point.tokens),
    })
}
