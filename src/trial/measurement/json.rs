//! Conversion of a measurement from and to one flat JSON object with the names of `vllm bench serve`.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;

use super::{Distribution, Measurement, Speeds};

impl Serialize for Measurement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for name in Self::NAMES {
            let integer = match *name {
                _ if !self.reported.is_empty() => None,
                "completed" => Some(self.completed),
                "failed" => Some(self.failed),
                "total_input_tokens" => Some(self.total_input_tokens),
                "total_output_tokens" => Some(self.total_output_tokens),
                "cached_prompt_tokens" => self.cached_prompt_tokens,
                "max_concurrent_requests" => self.max_concurrent_requests,
                _ => None,
            };
            if let Some(integer) = integer {
                map.serialize_entry(name, &integer)?;
            } else if let Some(value) = self.metric(name) {
                map.serialize_entry(name, &value)?;
            }
        }
        map.serialize_entry("errors", &self.errors)?;
        if let Some(good) = self.good_requests {
            map.serialize_entry("good", &good)?;
        }
        if !self.confidence.is_empty() {
            map.serialize_entry("confidence", &self.confidence)?;
        }
        if let Some(window) = &self.window {
            map.serialize_entry("window", window)?;
        }
        if let Some(client) = &self.client {
            map.serialize_entry("client", client)?;
        }
        if !self.server.is_empty() {
            map.serialize_entry("server", &self.server)?;
        }
        if !self.disturbed.is_empty() {
            map.serialize_entry("disturbed", &self.disturbed)?;
        }
        if self.approximate {
            map.serialize_entry("exact", &false)?;
        }
        if !self.reported.is_empty() {
            map.serialize_entry("reported", &self.reported)?;
        }
        if !self.workloads.is_empty() {
            map.serialize_entry("workloads", &self.workloads)?;
        }
        if let Some(curve) = &self.load_curve {
            map.serialize_entry("load_curve", curve)?;
        }
        map.end()
    }
}

/// Ignores other keys and computes throughputs again. A distribution that lacks a statistic becomes `None`.
impl<'de> Deserialize<'de> for Measurement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut json = BTreeMap::<String, Json>::deserialize(deserializer)?;
        let (errors, confidence) = (object(&mut json, "errors")?, object(&mut json, "confidence")?);
        let (window, client) = (object(&mut json, "window")?, object(&mut json, "client")?);
        let (server, load_curve) = (object(&mut json, "server")?, object(&mut json, "load_curve")?);
        if let Some(workloads) = json.remove("workloads") {
            return serde_json::from_value(workloads).map(Self::joint).map_err(D::Error::custom);
        }
        if let Some(reported) = object(&mut json, "reported")? {
            return Ok(Self::of_reported(reported, server.unwrap_or_default()));
        }
        let disturbed = json.remove("disturbed").map(serde_json::from_value).transpose().map_err(D::Error::custom)?;
        let integer = |name: &'static str| match json.get(name) {
            None | Some(Json::Null) => Ok(None),
            Some(value) => value
                .as_u64()
                .map(Some)
                .ok_or_else(|| D::Error::custom(format!("{name} is not a whole number of at least 0: {value}"))),
        };
        let number = |name: &str| json.get(name)?.as_f64();
        let latency = |name: &str| Distribution::from_statistics(|statistic| number(&format!("{statistic}_{name}_ms")));
        Ok(Self {
            completed: integer("completed")?.unwrap_or(0),
            failed: integer("failed")?.unwrap_or(0),
            duration_s: number("duration").ok_or_else(|| D::Error::missing_field("duration"))?,
            total_input_tokens: integer("total_input_tokens")?.unwrap_or(0),
            total_output_tokens: integer("total_output_tokens")?.unwrap_or(0),
            ttft_ms: latency("ttft"),
            tpot_ms: latency("tpot"),
            itl_ms: latency("itl"),
            e2el_ms: latency("e2el"),
            lateness_ms: latency("lateness"),
            output_speed: Speeds::from_statistics(|statistic| number(&format!("{statistic}_output_speed"))),
            good_requests: integer("good")?,
            cached_prompt_tokens: integer("cached_prompt_tokens")?,
            max_output_tokens_per_s: number("max_output_tokens_per_s"),
            max_concurrent_requests: integer("max_concurrent_requests")?,
            errors: errors.unwrap_or_default(),
            confidence: confidence.unwrap_or_default(),
            window,
            client,
            server: server.unwrap_or_default(),
            disturbed: disturbed.unwrap_or_default(),
            approximate: json.get("exact") == Some(&Json::Bool(false)),
            reported: BTreeMap::new(),
            workloads: Vec::new(),
            load_curve,
        })
    }
}

/// Removes this key and returns its value if it is an object: `vllm bench serve --save-detailed` has a list of texts
/// under `errors`.
fn object<T: DeserializeOwned, E: serde::de::Error>(
    json: &mut BTreeMap<String, Json>,
    name: &str,
) -> Result<Option<T>, E> {
    match json.remove(name) {
        Some(value @ Json::Object(_)) => serde_json::from_value(value).map(Some).map_err(E::custom),
        _ => Ok(None),
    }
}
