//! The start-up model against 161 starts of vLLM 0.9.0.1 on an L40S (`auto-tuning-vllm-l40s`). Each start is predicted
//! from the earlier ones.

use std::collections::{BTreeMap, HashSet};

use setpoint::engines::vllm::compile_key;
use setpoint::engines::vllm::{memory_launch, resolve_config};
use setpoint::facts::{Device, EngineVersion};
use setpoint::rule::Facts;
use setpoint::stats::gib_to_bytes;
use setpoint::trial::PhaseTime;
use setpoint::twin::{DevicePreset, StartConditions, StartForecast, StartupModel, WarmState};

use super::memory_model::{arguments, median, model, show};
use super::support::{public_path, table};

/// One start: its inputs, and the durations of its phases from its log.
struct Told {
    name: String,
    start: StartConditions,
    phases: Vec<PhaseTime>,
}

impl Told {
    fn total(&self) -> f64 {
        self.phases.iter().map(|time| time.duration_s).sum()
    }

    /// Returns the forecast for the phases that the table contains.
    fn forecast(&self, model: &StartupModel) -> StartForecast {
        let mut parts = model.predict(&self.start).parts;
        parts.retain(|part| self.phases.iter().any(|time| time.phase == part.phase));
        StartForecast::of(parts)
    }
}

/// Returns the study's number and the trial's, which give the order of the starts.
fn order(path: &str) -> Vec<u64> {
    path.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Returns the starts in their order. The table has the seconds of the weights, of the graphs, and of the whole
/// initialisation. It does not separate compilation from memory profiling. The rest of the initialisation counts as
/// compilation if the launch compiles, else as the KV cache's phase.
fn told() -> Vec<Told> {
    let mut rows = table(&public_path("auto-tuning-vllm-l40s/vllm_startup.csv"));
    // Baselines ran first.
    rows.sort_by_key(|row| {
        (
            row["path"].contains("vllm_logs"),
            order(&row["path"])[0],
            !row["path"].contains("baseline"),
            order(&row["path"]),
        )
    });
    let (mut compiled, mut loaded) = (HashSet::new(), HashSet::new());
    let told = rows.iter().filter_map(|row| {
        let number = |key: &str| row[key].parse::<f64>().ok();
        let name = match row["model"].as_str() {
            "Qwen/Qwen3-1.7B" => "qwen3-1.7b",
            "Qwen/Qwen3-32B-FP8" => "qwen3-32b-fp8",
            text if text.starts_with("meta-llama/Llama-3.1-8B") => "llama-3.1-8b",
            _ => return None,
        };
        let (weights, graphs, all) =
            (number("load_seconds")?, number("graph_seconds")?, number("init_engine_seconds")?);
        let v0 = row["engine"] == "V0";
        let env = BTreeMap::from([("VLLM_USE_V1".to_owned(), if v0 { "0" } else { "1" }.to_owned())]);
        let (shape, config) = (model(name), arguments(&row["non_default_args"]));
        let device = Device::gpu_of(gib_to_bytes(44.52));
        let facts = Facts {
            env: &env,
            ..Facts::new(setpoint::engines::vllm::VLLM_RULES, &shape, EngineVersion::new(0, 9, 0), device)
        };
        let effective = resolve_config(&config, &facts);
        let launch = memory_launch(&config, &facts, &effective);
        let key = (row["model"].clone(), v0, compile_key(&config, &facts, &effective));
        let warm = WarmState {
            page_cache: !loaded.insert(row["model"].clone()),
            compile_cache: launch.compiled && !compiled.insert(key),
        };
        let start = StartConditions::new(&shape, &launch, DevicePreset::find("l40s").unwrap(), warm).unwrap();
        let rest = if launch.compiled { "compile" } else { "kv_cache" };
        let phases = [("weights", weights), ("graphs", graphs), (rest, all - graphs)];
        let phases = phases.map(|(phase, duration_s)| PhaseTime { phase: phase.to_owned(), duration_s });
        Some(Told { name: format!("{name} {}", row["engine"]), start, phases: phases.into() })
    });
    told.collect()
}

#[test]
fn starts_on_an_l40s_take_as_long_as_those_before_them_say() {
    let starts = told();
    let mut model = StartupModel::default();
    let prior = StartupModel::default();
    let (mut errors, mut cold, mut inside) = (Vec::new(), Vec::new(), 0);
    // Forecast by a single number, for comparison: each start takes as long as the last one.
    let pairs = starts.iter().zip(&starts[1..]);
    let as_before: Vec<_> = pairs.map(|(last, next)| (last.total() / next.total() - 1.0).abs()).collect();
    for told in &starts {
        let (forecast, took) = (told.forecast(&model), told.total());
        let error = (forecast.mean_s / took - 1.0).abs();
        inside += usize::from(forecast.low_s < took && took < forecast.high_s);
        if error > 0.25 {
            let StartForecast { mean_s, low_s, high_s, .. } = forecast;
            show(&format!("  {}: {took:.1} s, forecast {mean_s:.1} ({low_s:.1} to {high_s:.1})", told.name));
        }
        errors.push(error);
        cold.push((told.forecast(&prior).mean_s / took - 1.0).abs());
        model.learn(&told.start, &told.phases);
    }
    let percent = |values: &[f64]| 100.0 * median(values.to_vec());
    let mean = |values: &[f64]| 100.0 * values.iter().sum::<f64>() / f64::from(u32::try_from(values.len()).unwrap());
    let inside = 100.0 * f64::from(u32::try_from(inside).unwrap()) / f64::from(u32::try_from(errors.len()).unwrap());
    show(&format!(
        "{} starts on an L40S: median error {:.1} %, mean {:.1} %; from the presets alone {:.1} %, mean {:.1} %; as the last \
         one {:.1} %, mean {:.1} %; {inside:.0} % within their intervals",
        errors.len(),
        percent(&errors),
        mean(&errors),
        percent(&cold),
        mean(&cold),
        percent(&as_before),
        mean(&as_before)
    ));
    assert!(percent(&errors) < 4.0 && mean(&errors) < mean(&as_before));
    assert!(inside > 85.0, "{inside} %");
}
