//! The presets, uncalibrated, against measurements by others: time per token at a steady number of clients.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use setpoint::facts::ModelShape;
use setpoint::twin::{DevicePreset, Parallel, Scheduling, Settings, StepTime, TwinEngine, VirtualReply, drive};
use setpoint::workload::RandomWorkload;

use super::support::{public_path, root, table};

fn number(row: &BTreeMap<String, String>, key: &str) -> f64 {
    row[key].parse().unwrap()
}

fn step_time(model: &str, device: &str, tensor: u32, async_scheduling: bool) -> (Settings, StepTime) {
    let model = ModelShape::read(&root().join("tests/fixtures/models").join(model)).unwrap();
    let settings =
        Settings { scheduling: Scheduling { async_scheduling, ..Scheduling::default() }, ..Settings::default() };
    let device = DevicePreset::find(device).unwrap();
    let step_time = StepTime::on_devices(&model, device, &settings, Parallel { tensor, pipeline: 1 }).unwrap();
    (settings, step_time)
}

/// Returns the mean TPOT in milliseconds of `requests` requests. Each client sends the next one once it is answered.
fn tpot_ms(engine: &(Settings, StepTime), len: u32, clients: u32, requests: u32) -> f64 {
    let (settings, step_time) = engine;
    let workload = RandomWorkload { input_len: len, output_len: len, vocab_size: 1000, seed: 1 };
    let mut engine = TwinEngine::new(settings.clone()).unwrap();
    let replies = drive(&mut engine, step_time, &workload, requests.into(), clients.into()).unwrap();
    let decoding = |reply: &VirtualReply| reply.finished().saturating_sub(reply.received_at + reply.ttft);
    let sum: Duration = replies.iter().map(decoding).sum();
    sum.as_secs_f64() * 1e3 / f64::from(requests) / f64::from(len - 1)
}

/// Prints a table and checks the errors, which are differences of logarithms.
fn assert_close(title: &str, rows: &[(u32, f64, f64)], typical: f64, largest: f64) {
    let show = |text: &str| {
        let _ = writeln!(std::io::stderr(), "{text}");
    };
    show(&format!("{title}\n  clients   measured ms    twin ms    error"));
    let mut errors = Vec::new();
    for (clients, measured, twin) in rows {
        show(&format!("  {clients:>7} {measured:>13.2} {twin:>10.2} {:>+7.1} %", (twin / measured - 1.0) * 100.0));
        errors.push((twin / measured).ln().abs());
    }
    errors.sort_by(f64::total_cmp);
    assert!(errors.len() > 1, "no rows");
    assert!(errors[errors.len() / 2] < typical && errors[errors.len() - 1] < largest, "{title}: {errors:?}");
}

#[test]
fn the_l40s_decodes_as_fast_as_was_measured() {
    let rows = table(&root().join("examples/optimizer_benchmark/data/vllm-optimization-bench-l40s/rows.csv"));
    let is = |row: &BTreeMap<String, String>, key: &str, value: &str| row[key] == value;
    let mut seen = BTreeMap::new();
    for row in &rows {
        if is(row, "workload", "chat")
            && is(row, "precision", "bf16")
            && is(row, "speculative", "none")
            && is(row, "max_num_seqs", "256")
        {
            let measured = (number(row, "tpot_ms_mean"), row["completed"].parse().unwrap());
            seen.entry(row["concurrency"].parse().unwrap()).or_insert(measured);
        }
    }
    // 0.24 schedules asynchronously by default.
    let engine = step_time("llama-3.1-8b", "l40s", 1, true);
    let row = |(clients, (measured, requests))| (clients, measured, tpot_ms(&engine, 256, clients, requests));
    let rows: Vec<_> = seen.into_iter().map(row).collect();
    assert_close("Llama 3.1 8B on an L40S", &rows, 0.1, 0.2);
}

#[test]
fn two_h100s_decode_together_as_fast_as_was_measured() {
    let rows = table(&public_path("aiconfigurator/qwen3-32b-h100.csv"));
    let mut seen = BTreeMap::new();
    for row in &rows {
        let dense = row["model_path"].ends_with("Qwen3-32B") && row["system"] == "h100_sxm";
        if dense && row["isl"] == "1024" && row["osl"] == "1024" && row["tp_size"] == "2.0" {
            seen.insert(row["concurrency"].parse::<u32>().unwrap(), number(row, "silicon_tpot_ms"));
        }
    }
    // 0.12 does not schedule asynchronously by default.
    let engine = step_time("qwen3-32b", "h100", 2, false);
    let row = |(clients, measured)| (clients, measured, tpot_ms(&engine, 1024, clients, 3 * clients));
    let rows: Vec<_> = seen.into_iter().map(row).collect();
    assert_close("Qwen3 32B on two H100", &rows, 0.1, 0.2);
}
