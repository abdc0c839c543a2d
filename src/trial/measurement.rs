//! The numbers that one trial's load gave, their names, and which way each is better.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;

/// A latency over requests (for ITL: over gaps between chunks), in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    pub mean: f64,
    /// Also known as `p50`.
    pub median: f64,
    /// Population standard deviation.
    pub std: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
}

/// One measured window. The definitions are those of `vllm bench serve`; `metrics` writes them down.
///
/// In JSON it is one flat object with that program's names. What does not exist (TPOT of one-token replies, a throughput
/// without a duration) is absent there and `None` from [`metric`](Self::metric), never 0: a 0 would win a minimisation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    pub completed: u64,
    pub failed: u64,
    /// Seconds from the first send to the last finish.
    pub duration_s: f64,
    /// Of the completed requests, by the server's count.
    pub total_input_tokens: u64,
    pub total_output_tokens: u64,
    pub ttft_ms: Option<Distribution>,
    pub tpot_ms: Option<Distribution>,
    pub itl_ms: Option<Distribution>,
    pub e2el_ms: Option<Distribution>,
    /// Count of each error class among the failed requests, by name.
    pub errors: BTreeMap<String, u64>,
}

/// Which way a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Maximize,
    Minimize,
}

/// `mean_ttft_ms` and so on: every statistic of every latency, in the order in which `vllm bench serve` prints them.
macro_rules! names {
    ($($scalar:literal),*; $($latency:literal),*) => {
        &[$($scalar,)* $(
            concat!("mean_", $latency, "_ms"),
            concat!("median_", $latency, "_ms"),
            concat!("std_", $latency, "_ms"),
            concat!("p50_", $latency, "_ms"),
            concat!("p90_", $latency, "_ms"),
            concat!("p95_", $latency, "_ms"),
            concat!("p99_", $latency, "_ms"),
        )*]
    };
}

impl Measurement {
    /// Every metric that an objective or a constraint may name.
    pub const NAMES: &[&str] = names!(
        "completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
        "output_throughput", "total_token_throughput"; "ttft", "tpot", "itl", "e2el");

    /// The metric of this name: milliseconds, seconds, counts, or requests or tokens per second. `None` for an unknown
    /// name, and where the window does not give the metric.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        let value = match name {
            "completed" => count(self.completed),
            "failed" => count(self.failed),
            "duration" => self.duration_s,
            "total_input_tokens" => count(self.total_input_tokens),
            "total_output_tokens" => count(self.total_output_tokens),
            "request_throughput" => count(self.completed) / self.duration_s,
            "output_throughput" => count(self.total_output_tokens) / self.duration_s,
            "total_token_throughput" => count(self.total_input_tokens + self.total_output_tokens) / self.duration_s,
            _ => {
                let (statistic, latency) = name.strip_suffix("_ms")?.split_once('_')?;
                let distribution = match latency {
                    "ttft" => self.ttft_ms,
                    "tpot" => self.tpot_ms,
                    "itl" => self.itl_ms,
                    "e2el" => self.e2el_ms,
                    _ => None,
                };
                distribution?.statistic(statistic)?
            }
        };
        value.is_finite().then_some(value)
    }

    /// Which way the metric of this name is better; `None` for an unknown name.
    #[must_use]
    pub fn direction(name: &str) -> Option<Direction> {
        let known = Self::NAMES.contains(&name);
        let smaller = name.ends_with("_ms") || matches!(name, "failed" | "duration");
        known.then_some(if smaller { Direction::Minimize } else { Direction::Maximize })
    }

    /// The known metric that resembles `name` most, for errors that suggest it.
    #[must_use]
    pub fn nearest(name: &str) -> &'static str {
        let similarity = |known: &str| strsim::normalized_damerau_levenshtein(known, name);
        let best = Self::NAMES.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        best.copied().unwrap_or_default()
    }
}

impl Distribution {
    /// The statistic of this name: `mean`, `median`, `std`, `p50`, `p90`, `p95` or `p99`.
    #[must_use]
    pub fn statistic(&self, name: &str) -> Option<f64> {
        Some(match name {
            "mean" => self.mean,
            "median" | "p50" => self.median,
            "std" => self.std,
            "p90" => self.p90,
            "p95" => self.p95,
            "p99" => self.p99,
            _ => return None,
        })
    }

    /// The distribution whose six statistics `get` knows; `None` unless it knows them all.
    fn from_statistics(get: impl Fn(&str) -> Option<f64>) -> Option<Self> {
        let (mean, median, std) = (get("mean")?, get("median").or_else(|| get("p50"))?, get("std")?);
        Some(Self { mean, median, std, p90: get("p90")?, p95: get("p95")?, p99: get("p99")? })
    }
}

impl Serialize for Measurement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for name in Self::NAMES {
            match *name {
                "completed" => map.serialize_entry(name, &self.completed)?,
                "failed" => map.serialize_entry(name, &self.failed)?,
                "total_input_tokens" => map.serialize_entry(name, &self.total_input_tokens)?,
                "total_output_tokens" => map.serialize_entry(name, &self.total_output_tokens)?,
                _ => {
                    if let Some(value) = self.metric(name) {
                        map.serialize_entry(name, &value)?;
                    }
                }
            }
        }
        map.serialize_entry("errors", &self.errors)?;
        map.end()
    }
}

/// Other keys are passed over and throughputs are computed again. A latency that lacks a statistic is read as absent.
impl<'de> Deserialize<'de> for Measurement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut json = BTreeMap::<String, Json>::deserialize(deserializer)?;
        let integer = |name: &'static str| match json.get(name) {
            None | Some(Json::Null) => Ok(0),
            Some(value) => value.as_u64().ok_or_else(|| D::Error::custom(format!("{name} is no count: {value}"))),
        };
        let latency = |name: &str| {
            Distribution::from_statistics(|statistic| json.get(&format!("{statistic}_{name}_ms"))?.as_f64())
        };
        let duration_s = json.get("duration").and_then(Json::as_f64);
        let duration_s = duration_s.ok_or_else(|| D::Error::missing_field("duration"))?;
        let mut measurement = Self {
            completed: integer("completed")?,
            failed: integer("failed")?,
            duration_s,
            total_input_tokens: integer("total_input_tokens")?,
            total_output_tokens: integer("total_output_tokens")?,
            ttft_ms: latency("ttft"),
            tpot_ms: latency("tpot"),
            itl_ms: latency("itl"),
            e2el_ms: latency("e2el"),
            errors: BTreeMap::new(),
        };
        // `vllm bench serve --save-detailed` has a list of texts under this name.
        if let Some(errors @ Json::Object(_)) = json.remove("errors") {
            measurement.errors = serde_json::from_value(errors).map_err(D::Error::custom)?;
        }
        Ok(measurement)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of tokens and requests are far below 2^53")]
fn count(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
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
            errors: BTreeMap::from([("timeout".to_owned(), 2)]),
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
        assert_eq!(serde_json::from_value::<Measurement>(json).unwrap(), example());
    }

    #[test]
    fn what_does_not_exist_is_absent_and_not_zero() {
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
        let measurement = Measurement { tpot_ms: Some(full), itl_ms: Some(full), ..example() };
        for name in Measurement::NAMES {
            assert!(measurement.metric(name).is_some(), "{name}");
            assert!(Measurement::direction(name).is_some(), "{name}");
        }
        assert_eq!(Measurement::direction("p99_ttft_ms"), Some(Direction::Minimize));
        assert_eq!(Measurement::direction("failed"), Some(Direction::Minimize));
        assert_eq!(Measurement::direction("output_throughput"), Some(Direction::Maximize));
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
}
