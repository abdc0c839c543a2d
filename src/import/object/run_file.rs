//! The file of one load in a folder of runs: `${MODEL}_${INPUT}-${OUTPUT}_${PROMPTS}.json`. Latencies are in
//! milliseconds.

use serde_json::Value as Json;

use super::{LineProblem, Members, count, number};
use crate::import::{ImportedResult, LoadDescription};

/// Keys and our names of their metrics.
const PLAIN: [(&str, &str); 6] = [
    ("successful_requests", "completed"),
    ("total_input_tokens", "total_input_tokens"),
    ("total_generated_tokens", "total_output_tokens"),
    ("request_throughput", "request_throughput"),
    ("output_token_throughput", "output_throughput"),
    ("total_token_throughput", "total_token_throughput"),
];

/// Keys of latencies and our names. A plain number is the mean.
const LATENCIES: [(&str, &str); 3] =
    [("time_to_first_token", "ttft"), ("time_per_output_token", "tpot"), ("inter_token_latency", "itl")];

pub(super) fn read(line: usize, members: &Members) -> Result<Vec<ImportedResult>, LineProblem> {
    let mut result = ImportedResult { line, ..ImportedResult::default() };
    for (key, name) in PLAIN {
        // A number that an imported and exported result lacks.
        if members.get(key) == Some(&Json::Null) {
            continue;
        }
        result.metrics.insert(name.to_owned(), number(line, members, key)?);
    }
    for (key, latency) in LATENCIES {
        match members.get(key) {
            Some(Json::Object(statistics)) => {
                for (statistic, value) in statistics {
                    let Some(value) = value.as_f64() else {
                        return Err(LineProblem::new(line, format!("{key:?}: {statistic} is {value}, not a number")));
                    };
                    result.metrics.insert(format!("{statistic}_{latency}_ms"), value);
                }
            }
            // A load whose replies have one token has no time per output token.
            Some(Json::Null) => {}
            _ => {
                result.metrics.insert(format!("mean_{latency}_ms"), number(line, members, key)?);
            }
        }
    }
    result.load = LoadDescription {
        requests: count(members, "num_prompts"),
        input_len: count(members, "input_length"),
        output_len: count(members, "output_length"),
        ..LoadDescription::default()
    };
    Ok(vec![result])
}
