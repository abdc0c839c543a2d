//! The twin against the real vLLM 0.32 on a CPU: calibrated with two trials, it predicts other configurations and
//! loads.
//!
//! The measurements are in `tests/fixtures/vllm-cpu-loads.json`. `record_cpu_loads.py` beside it describes and repeats
//! them.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::Value as Json;
use setpoint::config::Config;
use setpoint::facts::HostLimits;
use setpoint::job::Job;
use setpoint::predict::{
    Knowledge, MAX_TRIALS, MeasuredTrial, PredictedDevice, TwinQuestion, calibrate_from_trials, predict,
};
use setpoint::twin::{Calibration, DevicePreset, StartupModel, TermFactor, WarmState};

use super::support::root;

const METRICS: [&str; 3] = ["output_throughput", "mean_ttft_ms", "mean_tpot_ms"];

/// The loads of the recorder.
const LOADS: [(&str, &str); 4] = [
    (
        "users10",
        "[workload]\nkind = 'random'\ninput_len = 128\noutput_len = 56\n[load]\nconcurrency = 10\nrequests = 80\nwarmup = 10",
    ),
    (
        "prefix16",
        "[workload]\nkind = 'prefix'\nprefix_len = 512\nsuffix_len = 256\ngroups = 4\noutput_len = 48\n\
         [load]\nconcurrency = 16\nrequests = 80\nwarmup = 16",
    ),
    (
        "rate10",
        "[workload]\nkind = 'random'\ninput_len = 200\noutput_len = 48\n[load]\nrate = 10\nrequests = 60\nwarmup = 8",
    ),
    (
        "users32",
        "[workload]\nkind = 'random'\ninput_len = 40\noutput_len = 80\n[load]\nconcurrency = 32\nrequests = 96\nwarmup = 32",
    ),
];

fn job(directory: &tempfile::TempDir, load: &str) -> Job {
    let load = LOADS.iter().find(|(name, _)| *name == load).unwrap().1;
    let root = root();
    let text = format!(
        "[study]\nname = 'cpu'\nseed = 1\n[engine]\nkind = 'vllm'\ncommand = ['vllm', 'serve']\nargs = ['--enforce-eager']\n\
         env = {{ VLLM_CPU_KVCACHE_SPACE = '1' }}\n[model]\npath = '{}'\n[space]\nfile = '{}'\n{load}\n\
         [objective]\nmaximize = 'output_throughput'\n[budget]\ntrials = 1\n",
        root.join("tests/fixtures/models/qwen2-tiny").display(),
        root.join("search_spaces/vllm/cpu.toml").display(),
    );
    let file = directory.path().join("study.toml");
    std::fs::write(&file, text).unwrap();
    Job::read(&file).unwrap()
}

fn question<'a>(job: &'a Job, config: Config, calibration: &'a Calibration) -> TwinQuestion<'a> {
    TwinQuestion {
        job,
        load: &job.load,
        config,
        version: "0.32.0".parse().unwrap(),
        device: PredictedDevice::preset(DevicePreset::find("cpu").unwrap()),
        host: HostLimits::default(),
        knowledge: Knowledge::for_same_device(calibration),
        acceptance: None,
        startup_model: StartupModel::default(),
        warm: WarmState::default(),
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], values[middle]) } else { values[middle] }
}

/// Returns Spearman's rank correlation: Pearson's of the ranks. Equal values share their rank.
fn spearman(pairs: &[(f64, f64)]) -> f64 {
    let float = |count: usize| f64::from(u32::try_from(count).unwrap());
    let ranks = |of: fn(&(f64, f64)) -> f64| {
        let rank = |value: f64| {
            let count = |holds: fn(f64, f64) -> bool| float(pairs.iter().filter(|pair| holds(of(pair), value)).count());
            count(|other, value| other < value) + count(|other, value| other <= value)
        };
        let ranks: Vec<f64> = pairs.iter().map(|pair| rank(of(pair))).collect();
        let mean = ranks.iter().sum::<f64>() / float(ranks.len());
        ranks.into_iter().map(|rank| rank - mean).collect::<Vec<_>>()
    };
    let (a, b) = (ranks(|pair| pair.0), ranks(|pair| pair.1));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    product(&a, &b) / (product(&a, &a) * product(&b, &b)).sqrt()
}

fn show(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn read() -> Json {
    let text = std::fs::read_to_string(root().join("tests/fixtures/vllm-cpu-loads.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn config(row: &Json) -> Config {
    serde_json::from_value(row["config"].clone()).unwrap()
}

/// Returns measured and predicted values of each metric, for everything that the calibration did not use.
fn compare(record: &Json, calibration: &Calibration) -> BTreeMap<&'static str, Vec<(f64, f64)>> {
    let directory = tempfile::tempdir().unwrap();
    let jobs: BTreeMap<_, _> = LOADS.iter().map(|(name, _)| (*name, job(&directory, name))).collect();
    let seen: Vec<Config> = record["calibration"].as_array().unwrap().iter().map(config).collect();
    let mut pairs: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    show("                              tokens/s  measured      twin   error   TTFT ms  measured      twin   error");
    for row in record["measured"].as_array().unwrap() {
        let (load, config) = (row["load"].as_str().unwrap(), config(row));
        if load == "users10" && seen.contains(&config) {
            continue;
        }
        let prediction = predict(&question(&jobs[load], config, calibration)).unwrap();
        let predicted = prediction.outcome.measurement().unwrap();
        let mut line = format!("  {:<18} {load:<10}", row["name"].as_str().unwrap());
        for metric in METRICS {
            let measured = median(row[metric].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()));
            let predicted = predicted.metric(metric).unwrap();
            pairs.entry(metric).or_default().push((measured, predicted));
            if metric != "mean_tpot_ms" {
                let error = (predicted / measured - 1.0) * 100.0;
                let _ = std::fmt::Write::write_fmt(
                    &mut line,
                    format_args!("          {measured:>9.1} {predicted:>9.1} {error:>+5.0} %"),
                );
            }
        }
        show(&line);
    }
    pairs
}

fn errors(title: &str, pairs: &BTreeMap<&'static str, Vec<(f64, f64)>>) -> [(f64, f64); 3] {
    METRICS.map(|metric| {
        let pairs = &pairs[metric];
        let error = median(pairs.iter().map(|(measured, predicted)| (predicted / measured - 1.0).abs()));
        let order = spearman(pairs);
        show(&format!(
            "{title}: {metric}: median error {:.1} %, rank correlation {order:.3}, of {}",
            error * 100.0,
            pairs.len()
        ));
        (error, order)
    })
}

#[test]
fn two_trials_on_the_real_engine_are_enough_to_predict_others_and_their_order() {
    let record = read();
    let directory = tempfile::tempdir().unwrap();
    let job = job(&directory, "users10");
    let unknown = Calibration::none();
    let tried = record["calibration"].as_array().unwrap().iter().map(|trial| MeasuredTrial {
        config: config(trial),
        replies: serde_json::from_value(trial["replies"].clone()).unwrap(),
        steps: None,
        blocks: None,
    });
    let calibration =
        calibrate_from_trials(&question(&job, Config::new(), &unknown), &tried.collect::<Vec<_>>(), MAX_TRIALS)
            .unwrap();
    for factor in TermFactor::ALL {
        let (value, spread) = (calibration.factors[factor], calibration.spread[factor] * 100.0);
        show(&format!("  {:<9} {value:.3} +- {spread:.0} %", factor.name()));
    }
    let _ = errors("preset alone", &compare(&record, &unknown));
    let pairs = compare(&record, &calibration);
    assert!(pairs["output_throughput"].len() >= 20, "too few");
    let [throughput, ttft, _] = errors("calibrated", &pairs);
    assert!(throughput.0 <= 0.10 && throughput.1 >= 0.9, "{throughput:?}");
    assert!(ttft.0 <= 0.20 && ttft.1 >= 0.9, "{ttft:?}");
}
