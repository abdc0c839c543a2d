//! Exports a trial as a folder of a run: the engine's parameters, the memory in use, and a JSON file for its load.
//!
//! `import` reads the folder back. The file of the load is `${MODEL}_${INPUT}-${OUTPUT}_${PROMPTS}.json`. A number that
//! an imported result lacks is null in the file, and `unknown` in its name.

use serde::Serialize;
use serde_json::Value as Json;

use super::{ExportError, ExportedFile, ExportedTrial, Exporter};
use crate::engine::is_variable;
use crate::import::{GpuMemoryUse, MEMORY_FILE, PARAMETERS_FILE};
use crate::stats::{f64_to_u64, to_f64};
use crate::trial::{Measurement, REDACTED, without_controls};

pub(super) struct RunDirExporter;

/// The file of a load, with its fields in order.
#[derive(Debug, Serialize)]
struct RunFile {
    input_length: Option<u64>,
    output_length: Option<u64>,
    num_prompts: Option<u64>,
    successful_requests: Option<u64>,
    total_input_tokens: Option<u64>,
    total_generated_tokens: Option<u64>,
    request_throughput: Option<f64>,
    output_token_throughput: Option<f64>,
    total_token_throughput: Option<f64>,
    time_to_first_token: Option<Milliseconds>,
    time_per_output_token: Option<Milliseconds>,
    inter_token_latency: Option<Milliseconds>,
}

/// The known statistics of a latency, in milliseconds.
#[derive(Debug, Serialize)]
struct Milliseconds {
    #[serde(skip_serializing_if = "Option::is_none")]
    mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    median: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
}

impl Exporter for RunDirExporter {
    fn name(&self) -> &'static str {
        "run-dir"
    }

    fn summary(&self) -> &'static str {
        "a folder with engine_params.txt, mem_usage.txt and a JSON file for the load; needs -o DIR"
    }

    /// Returns the file of the load.
    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        Ok(load_file(winner))
    }

    fn is_folder(&self) -> bool {
        true
    }

    fn files(&self, winner: &ExportedTrial<'_>, memory: Option<GpuMemoryUse>) -> Vec<ExportedFile> {
        let mut files = vec![ExportedFile { name: PARAMETERS_FILE.to_owned(), content: parameters(winner) }];
        if let Some(measurement) = winner.scored.trial.outcome.measurement() {
            let RunFile { input_length, output_length, num_prompts, .. } = run_file(winner, measurement);
            let [input, output, prompts] = [input_length, output_length, num_prompts]
                .map(|number| number.map_or_else(|| "unknown".to_owned(), |number| number.to_string()));
            let name = format!("{}_{input}-{output}_{prompts}.json", model(winner));
            files.push(ExportedFile { name, content: load_file(winner) });
        }
        files
            .extend(memory.map(|memory| ExportedFile { name: MEMORY_FILE.to_owned(), content: format!("{memory}\n") }));
        files
    }
}

/// Returns the text of the load's file.
fn load_file(winner: &ExportedTrial<'_>) -> String {
    let file = winner.scored.trial.outcome.measurement().map(|measurement| run_file(winner, measurement));
    // A structure of numbers always serializes.
    format!("{}\n", serde_json::to_string_pretty(&file).unwrap_or_default())
}

/// Returns the launch line, after the variables that are no secrets.
fn parameters(winner: &ExportedTrial<'_>) -> String {
    let env = winner.scored.trial.launch.env.iter();
    let env = env.filter(|(name, value)| is_variable(name) && !value.contains(REDACTED));
    let words = env.map(|(name, value)| format!("{name}={value}")).chain(winner.command().iter().cloned());
    // A line end within a word would end the launch line.
    let words: Vec<_> = words.map(|word| without_controls(&word.replace('\0', "")).into_owned()).collect();
    format!("{}\n", shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default())
}

/// Returns the last part of the model's name, as a part of a file name.
fn model(winner: &ExportedTrial<'_>) -> String {
    let definition = &winner.report.study.definition;
    let imported = winner.scored.trial.proposal.config.get_str("import.model");
    let model = definition["model"].as_str().or(imported).unwrap_or("model");
    let last = model.trim_end_matches('/').rsplit('/').next().unwrap_or(model);
    let kept: String = last.chars().map(|c| if c.is_alphanumeric() || ".-_".contains(c) { c } else { '-' }).collect();
    if kept.trim_matches('.').is_empty() { "model".to_owned() } else { kept }
}

fn run_file(winner: &ExportedTrial<'_>, measurement: &Measurement) -> RunFile {
    let definition = &winner.report.study.definition;
    let config = &winner.scored.trial.proposal.config;
    let count = |name: &str| measurement.metric(name).map(f64_to_u64);
    let imported = |key: &str| u64::try_from(config.get_i64(key)?).ok();
    let completed = count("completed");
    // A workload without fixed lengths has the mean of its requests.
    let length = |key: &str, import: &str, tokens: Option<u64>| {
        let mean = || Some(f64_to_u64((to_f64(tokens?) / to_f64(completed?.max(1))).round()));
        definition["workload"][key].as_u64().or_else(|| imported(import)).or_else(mean)
    };
    let requests = definition["load"].get("requests").and_then(Json::as_u64).or_else(|| imported("import.requests"));
    let (input, output) = (count("total_input_tokens"), count("total_output_tokens"));
    let latency = |name: &str| {
        let of = |statistic: &str| measurement.metric(&format!("{statistic}_{name}_ms"));
        let value = Milliseconds { mean: of("mean"), median: of("median"), p99: of("p99") };
        (value.mean.is_some() || value.median.is_some() || value.p99.is_some()).then_some(value)
    };
    RunFile {
        input_length: length("input_len", "import.input-len", input),
        output_length: length("output_len", "import.output-len", output),
        num_prompts: requests.or_else(|| Some(completed? + count("failed").unwrap_or(0))),
        successful_requests: completed,
        total_input_tokens: input,
        total_generated_tokens: output,
        request_throughput: measurement.metric("request_throughput"),
        output_token_throughput: measurement.metric("output_throughput"),
        total_token_throughput: measurement.metric("total_token_throughput"),
        time_to_first_token: latency("ttft"),
        time_per_output_token: latency("tpot"),
        inter_token_latency: latency("itl"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::read_path;
    use crate::objective::Score;
    use crate::store::ScoredTrial;
    use crate::study_report::StudyReport;
    use crate::trial::{Distribution, LaunchCommand, Outcome, Trial};

    fn scored() -> ScoredTrial {
        let latency = |mean: f64| {
            Some(Distribution { mean, median: mean - 0.5, std: 1.0, p90: mean, p95: mean, p99: mean + 3.0 })
        };
        let measurement = Measurement {
            completed: 31,
            failed: 1,
            duration_s: 7.75,
            total_input_tokens: 6_200,
            total_output_tokens: 7_750,
            ttft_ms: latency(151.31),
            tpot_ms: latency(42.78),
            itl_ms: latency(42.76),
            ..Measurement::default()
        };
        let command =
            "vllm serve org/Qwen2-0.5B --max-num-seqs 64 --compilation-config '{\"level\": 3}' --host h --port 1";
        let mut trial = Trial::example(7, "auto", Outcome::Measured(measurement));
        let env = [("OMP_NUM_THREADS", "8"), ("HF_TOKEN", REDACTED)];
        trial.launch = LaunchCommand {
            command: shlex::split(command).unwrap(),
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..LaunchCommand::default()
        };
        ScoredTrial { trial, score: Score::Feasible { value: 1000.0 } }
    }

    fn report() -> StudyReport {
        let mut report = StudyReport::example("chat");
        report.study.definition["model"] = "org/Qwen2-0.5B".into();
        report.study.definition["workload"] = serde_json::json!({"input_len": 200, "output_len": 250});
        report.study.definition["load"] = serde_json::json!({"requests": 32});
        report
    }

    #[tokio::test]
    async fn the_folder_has_the_files_and_fields_of_the_runs_document_and_is_read_back() {
        let (report, scored) = (report(), scored());
        let winner = ExportedTrial::without_results(&report, &scored);
        let memory = GpuMemoryUse { used_mib: 19_344, total_mib: 46_068 };
        let files = RunDirExporter.files(&winner, Some(memory));
        let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["engine_params.txt", "Qwen2-0.5B_200-250_32.json", "mem_usage.txt"]);
        let json: serde_json::Map<String, Json> = serde_json::from_str(&files[1].content).unwrap();
        let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/seeds/run-folder.md");
        let document = std::fs::read_to_string(fixture).unwrap();
        let fields = document.lines().filter_map(|line| Some(line.strip_prefix("* `")?.split_once("`: ")?.0));
        let fields: std::collections::BTreeSet<_> = fields.collect();
        assert_eq!(fields.len(), 12);
        assert_eq!(json.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(), fields);

        let directory = tempfile::tempdir().unwrap();
        for file in &files {
            std::fs::write(directory.path().join(&file.name), &file.content).unwrap();
        }
        let read = read_path(directory.path()).await.unwrap();
        let [result] = &read.results[..] else { panic!("{read:?}") };
        assert!(read.unread.is_empty(), "{:?}", read.unread);
        assert_eq!(result.memory, Some(memory));
        let load = &result.load;
        assert_eq!((load.requests, load.input_len, load.output_len), (Some(32), Some(200), Some(250)));
        assert_eq!(load.model.as_deref(), Some("org/Qwen2-0.5B"));
        let launch = result.launch.as_ref().unwrap();
        assert_eq!(launch.env, [("OMP_NUM_THREADS".to_owned(), "8".to_owned())].into());
        assert_eq!(launch.command, winner.command());
        assert_eq!(launch.config.get_i64("max-num-seqs"), Some(64));
        let measurement = scored.trial.outcome.measurement().unwrap();
        assert_eq!(result.metrics.len(), 15);
        for (name, value) in &result.metrics {
            assert_eq!(Some(*value), measurement.metric(name), "{name}");
        }
    }

    #[tokio::test]
    async fn a_number_that_an_imported_result_lacks_is_unknown_and_not_zero() {
        let (mut report, mut scored) = (report(), scored());
        report.study.definition = serde_json::json!({"model": "org/Qwen2-0.5B"});
        let reported = [("output_throughput".to_owned(), 1990.05), ("mean_ttft_ms".to_owned(), 110.09)];
        scored.trial.outcome = Outcome::Measured(Measurement::of_reported(reported.clone().into(), [].into()));
        let files = RunDirExporter.files(&ExportedTrial::without_results(&report, &scored), None);
        assert_eq!(files[1].name, "Qwen2-0.5B_unknown-unknown_unknown.json");
        let json: Json = serde_json::from_str(&files[1].content).unwrap();
        for key in ["input_length", "num_prompts", "successful_requests", "total_input_tokens", "request_throughput"] {
            assert_eq!(json.get(key), Some(&Json::Null), "{key}");
        }

        let directory = tempfile::tempdir().unwrap();
        for file in &files {
            std::fs::write(directory.path().join(&file.name), &file.content).unwrap();
        }
        let read = read_path(directory.path()).await.unwrap();
        let [result] = &read.results[..] else { panic!("{read:?}") };
        assert_eq!(result.metrics, reported.into());
    }

    #[test]
    fn a_model_without_a_usable_name_has_one_in_the_file_name() {
        let (mut report, scored) = (report(), scored());
        for (name, expected) in [("a/b c$(x)/", "b-c--x-"), ("..", "model"), ("/", "model")] {
            report.study.definition["model"] = name.into();
            assert_eq!(model(&ExportedTrial::without_results(&report, &scored)), expected);
        }
    }
}
