//! The names, the directions and the JSON of a measurement.

use std::collections::BTreeMap;

use super::*;

fn example() -> Measurement {
    let distribution = Distribution { mean: 1.5, median: 1.25, std: 0.5, p90: 2.0, p95: 2.5, p99: 3.0 };
    Measurement {
        completed: 8,
        failed: 2,
        duration_s: 4.0,
        total_input_tokens: 40,
        total_output_tokens: 80,
        ttft_ms: Some(distribution),
        tpot_ms: None,
        itl_ms: None,
        e2el_ms: Some(Distribution { mean: 7.0, ..distribution }),
        output_speed: Some(Speeds { mean: 40.0, median: 41.0, std: 2.0, p10: 30.0, p5: 29.0, p1: 20.0 }),
        good_requests: Some(6),
        cached_prompt_tokens: Some(12),
        max_output_tokens_per_s: Some(33.5),
        max_concurrent_requests: Some(5),
        lateness_ms: Some(Distribution { mean: 0.25, ..distribution }),
        errors: BTreeMap::from([("timeout".to_owned(), 2)]),
        confidence: BTreeMap::from([("p99_ttft_ms".to_owned(), Interval { low: Some(2.5), high: None })]),
        window: Some(MeasuredWindow {
            from_s: 1.0,
            to_s: 5.0,
            steady: true,
            reason: "found".to_owned(),
            saved_s: None,
            overloaded: true,
        }),
        client: Some(ClientReport { cpu_s: 1.5, p99_lag_ms: Some(0.5), valid: true, ..ClientReport::default() }),
        server: BTreeMap::from([("anything".to_owned(), 0.5)]),
        disturbed: vec!["process 7 has come to GPU 0".to_owned()],
        approximate: true,
        reported: BTreeMap::new(),
        workloads: Vec::new(),
        load_curve: None,
    }
}

#[test]
fn the_json_is_flat_and_comes_back_unchanged() {
    let json = serde_json::to_value(example()).unwrap();
    assert_eq!(json["mean_ttft_ms"], 1.5);
    assert_eq!(json["p50_ttft_ms"], json["median_ttft_ms"]);
    assert_eq!(json["mean_e2el_ms"], 7.0);
    assert_eq!(json["completed"], 8);
    assert_eq!(json["request_throughput"], 2.0);
    assert_eq!(json["output_throughput"], 20.0);
    assert_eq!(json["total_token_throughput"], 30.0);
    assert_eq!(json["errors"]["timeout"], 2);
    assert_eq!(json["request_goodput"], 1.5);
    assert_eq!(json["p1_output_speed"], 20.0);
    assert_eq!(json["confidence"]["p99_ttft_ms"], serde_json::json!([2.5, null]));
    assert_eq!((&json["window"]["from_s"], &json["client"]["cpu_s"]), (&1.0.into(), &1.5.into()));
    assert_eq!((&json["server"]["anything"], &json["exact"]), (&0.5.into(), &false.into()));
    assert_eq!(serde_json::from_value::<Measurement>(json).unwrap(), example());
}

#[test]
fn missing_values_are_absent_and_not_zero() {
    let json = serde_json::to_value(example()).unwrap();
    assert!(Measurement::NAMES.iter().filter(|name| name.contains("tpot")).all(|name| json.get(name).is_none()));
    assert_eq!(example().metric("mean_tpot_ms"), None);
    assert_eq!(Measurement::default().metric("output_throughput"), None);
}

#[test]
fn nulls_and_keys_of_other_programs_are_read() {
    let json = r#"{"duration": 2, "completed": 1, "backend": "vllm", "errors": [""], "mean_ttft_ms": null}"#;
    let measurement: Measurement = serde_json::from_str(json).unwrap();
    assert_eq!((measurement.completed, measurement.duration_s, measurement.ttft_ms), (1, 2.0, None));
    assert!(serde_json::from_str::<Measurement>(r#"{"completed": 1}"#).is_err());
    assert!(serde_json::from_str::<Measurement>(r#"{"duration": 1, "completed": -1}"#).is_err());
}

#[test]
fn every_name_has_a_direction_and_a_value_in_a_full_measurement() {
    let full = Distribution::default();
    let highest = HighestMeasuredLoad { value: 9.0, low: None, high: None, bound: LoadBound::AtLeast, cliff: false };
    let (knob, probes) = (LoadKnob::Concurrency, Vec::new());
    let load_curve = Some(LoadCurve { knob, highest, lost_against: None, probes, tiers: Vec::new() });
    let measurement = Measurement { tpot_ms: Some(full), itl_ms: Some(full), load_curve, ..example() };
    for name in Measurement::NAMES {
        assert!(measurement.metric(name).is_some(), "{name}");
        assert!(Measurement::direction(name).is_some(), "{name}");
    }
    assert_eq!(Measurement::direction("p99_ttft_ms"), Some(MetricDirection::Minimize));
    assert_eq!(Measurement::direction("failed"), Some(MetricDirection::Minimize));
    assert_eq!(Measurement::direction("output_throughput"), Some(MetricDirection::Maximize));
    assert_eq!(Measurement::direction("p1_output_speed"), Some(MetricDirection::Maximize));
    assert_eq!(Measurement::direction("std_output_speed"), Some(MetricDirection::Minimize));
}

#[test]
fn an_unknown_name_has_no_value_but_a_neighbour() {
    for name in ["", "ttft", "p98_ttft_ms", "mean_ttft", "mean_x_ms", "errors"] {
        assert_eq!(example().metric(name), None, "{name}");
        assert_eq!(Measurement::direction(name), None, "{name}");
    }
    assert_eq!(Measurement::nearest("p99_tfft_ms"), "p99_ttft_ms");
    assert_eq!(Measurement::nearest("output_troughput"), "output_throughput");
}

#[test]
fn a_measurement_of_an_earlier_release_is_read() {
    let json = r#"{"duration": 2, "completed": 1, "failed": 0, "mean_ttft_ms": 1, "errors": {}}"#;
    let measurement: Measurement = serde_json::from_str(json).unwrap();
    assert_eq!(measurement, Measurement { completed: 1, duration_s: 2.0, ..Measurement::default() });
    assert!(serde_json::to_value(&measurement).unwrap().get("exact").is_none());
}

#[test]
fn a_cost_is_the_price_of_the_time_for_a_million_output_tokens() {
    let mut measurement = example();
    let interval = Interval { low: Some(10.0), high: None };
    measurement.confidence.insert("output_throughput".to_owned(), interval);
    // 20 tokens per second: a million takes 50,000 s.
    measurement.add_cost(7.2);
    let name = Measurement::COST_PER_MILLION_TOKENS;
    assert!((measurement.metric(name).unwrap() - 100.0).abs() < 1e-9);
    let Interval { low, high } = measurement.confidence[name];
    assert!(low.is_none() && (high.unwrap() - 200.0).abs() < 1e-9);
    assert_eq!(Measurement::direction(name), Some(MetricDirection::Minimize));

    let mut silent = Measurement { total_output_tokens: 0, ..example() };
    silent.add_cost(7.2);
    assert_eq!(silent.metric(name), None);
}
