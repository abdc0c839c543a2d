//! `[workload]`: the requests that a trial sends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use toml::de::DeValue;

use super::definition::{digest, workload_definition};
use super::paths::StudyPaths;
use super::{EngineJob, LoadJob, ModelJob};
use crate::document::{DocumentError, FromToml, Section, nearest};
use crate::facts::EngineVersion;
use crate::load::RequestApi;
use crate::stats::to_f64;
use crate::workload::{Pruning, Think, TokenLength, Workload, WorkloadError, WorkloadSpec, WorkloadSurroundings};

const NO_TOKENIZER: &str =
    "put the model's tokenizer.json beside its config.json, or name a directory that holds it with workload.tokenizer";

/// A workload, from its specification to the generated requests.
#[derive(Clone, Debug)]
pub struct WorkloadJob {
    pub spec: WorkloadSpec,
    pub surroundings: WorkloadSurroundings,
    pub source: Arc<dyn Workload>,
    /// Name and content digest of each data file. Paths are left out because they differ between machines.
    files: Vec<(String, String)>,
    /// A digest of the tokenizer, if the study names one.
    tokenizer_digest: Option<String>,
}

impl WorkloadJob {
    /// Creates a workload without data files.
    pub(super) fn of(spec: WorkloadSpec, surroundings: WorkloadSurroundings, built: Arc<dyn Workload>) -> Self {
        Self { spec, surroundings, source: built, files: Vec::new(), tokenizer_digest: None }
    }

    /// Reads the section and builds the workload. Sets the number of requests in `load` if a trace is replayed as a
    /// whole. `requests` is the number of requests that the workload serves, if it is known.
    pub(super) fn read(
        section: &Section<'_>,
        paths: &StudyPaths,
        seed: u64,
        model: &ModelJob,
        engine: &EngineJob,
        load: &mut LoadJob,
        requests: Option<u32>,
    ) -> Result<Self, DocumentError> {
        let spec = read_spec(section, paths, requests)?;
        let vocab_size = model.shape.vocab_size.and_then(|size| u32::try_from(size).ok());
        let own = || Some(model.directory.clone()).filter(|directory| directory.join("tokenizer.json").exists());
        let tokenizer = match section.optional::<String>("tokenizer")? {
            None => own(),
            Some(written) => Some(
                paths
                    .find(&written)
                    .ok_or_else(|| section.error("tokenizer", format!("{written:?} does not exist"), None))?,
            ),
        };
        let vocab_size = section.optional("vocab_size")?.or(vocab_size);
        // If neither the vocabulary's size nor the model's shape is known, prompts are sent as text.
        let takes_tokens = engine.dialect.takes_tokens(load.api) && (model.has_shape || vocab_size.is_some());
        let surroundings = WorkloadSurroundings {
            seed,
            vocab_size,
            max_model_len: model.has_shape.then(|| model.shape.max_model_len(EngineVersion::LATEST)),
            approximate: !model.has_shape && tokenizer.is_none(),
            tokenizer,
            takes_tokens,
            chat: load.api == RequestApi::Chat,
        };
        let error = |error: &WorkloadError| {
            let hint = match error {
                WorkloadError::NoTokenizer => Some(NO_TOKENIZER),
                _ => error.hint(),
            };
            section.error(error.key(), error.problem(), hint.map(str::to_owned))
        };
        let built = spec.build(&surroundings).map_err(|problem| error(&problem))?;
        load.set_trace_length(&*built).map_err(|problem| {
            let hint = "name a trace with time stamps, or remove load.trace_factor".to_owned();
            section.error("kind", format!("a {} workload {problem}", spec.kind()), Some(hint))
        })?;
        let digest = |file: &Path| {
            let problem = |error| WorkloadError::Read { file: file.to_owned(), problem: format!("{error}") };
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            digest(file).map(|digest| (name, digest)).map_err(|io| error(&problem(io)))
        };
        let files = spec.files().into_iter().map(digest).collect::<Result<_, _>>()?;
        let named = section.optional::<String>("tokenizer")?.is_some();
        let tokenizer = surroundings.tokenizer.as_deref().filter(|_| named);
        let tokenizer = tokenizer.map(|path| if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() });
        let tokenizer = tokenizer.as_deref().map(digest).transpose()?.map(|(_, digest)| digest);
        Ok(Self { spec, surroundings, source: built, files, tokenizer_digest: tokenizer })
    }

    pub(super) fn reseed(&mut self, seed: u64) -> Result<(), WorkloadError> {
        self.surroundings.seed = seed;
        self.source = self.spec.build(&self.surroundings)?;
        Ok(())
    }

    /// Returns the mean number of generated tokens per request, over the first eight sessions.
    #[must_use]
    pub fn mean_output(&self) -> f64 {
        let turns = (0..8).flat_map(|index| self.source.session(index).turns);
        let outputs: Vec<_> = turns.map(|turn| f64::from(turn.request.output_len)).collect();
        let count = to_f64(outputs.len().max(1));
        outputs.iter().sum::<f64>() / count
    }

    /// Returns a value that is equal for workloads with common prompts: the data files, or the definition without them.
    pub(super) fn prompt_source(&self) -> Json {
        if self.files.is_empty() { self.definition() } else { json!(self.files) }
    }

    /// Returns the part that decides which requests are sent; see [`Job::definition`](super::Job::definition).
    pub(super) fn definition(&self) -> Json {
        let mut definition = workload_definition(&self.spec, &mut self.files.iter());
        if let Some(vocab_size) = self.surroundings.vocab_size.filter(|_| self.surroundings.takes_tokens) {
            definition["vocab_size"] = json!(vocab_size);
        }
        if let Some(tokenizer) = &self.tokenizer_digest {
            definition["tokenizer"] = json!(tokenizer);
        }
        definition
    }
}

/// Reads a number, `{ min = 1, max = 9 }`, `"1..9"` or `"max_model_len - 2048"`.
impl FromToml for TokenLength {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        if let Ok(text) = String::from_toml(value) {
            return text.parse();
        }
        let Ok(mut range) = std::collections::BTreeMap::<String, u32>::from_toml(value) else {
            return u32::from_toml(value).map(Self::Exact);
        };
        match (range.remove("min"), range.remove("max"), range.is_empty()) {
            (Some(min), Some(max), true) => Ok(Self::Range { min, max }),
            _ => Err("a range has the keys min and max, and no others".to_owned()),
        }
    }

    fn kind() -> String {
        "a length".to_owned()
    }
}

/// Reads a specification. The keys `vocab_size` and `tokenizer` are left to the caller. `requests` determines
/// how many conversations of a ShareGPT file are taken if the section does not state it.
pub(super) fn read_spec(
    section: &Section<'_>,
    paths: &StudyPaths,
    requests: Option<u32>,
) -> Result<WorkloadSpec, DocumentError> {
    read_kind(section, paths, requests, true)
}

fn read_kind(
    section: &Section<'_>,
    paths: &StudyPaths,
    requests: Option<u32>,
    outer: bool,
) -> Result<WorkloadSpec, DocumentError> {
    let kind: String = section.required("kind")?;
    Ok(match kind.as_str() {
        "random" => {
            let (mut input_len, mut output_len) = (length(section, "input_len")?, length(section, "output_len")?);
            if let Some(ratio) = section.optional("range_ratio")? {
                let around = |length: TokenLength| {
                    length.with_range_ratio(ratio).map_err(|problem| section.error("range_ratio", problem, None))
                };
                (input_len, output_len) = (around(input_len)?, around(output_len)?);
            }
            WorkloadSpec::Random { input_len, output_len, prefix_len: section.optional_or("prefix_len", 0)? }
        }
        "sharegpt" => {
            let default = Pruning::default();
            WorkloadSpec::ShareGpt {
                path: path(section, paths)?,
                prompts: match section.optional("prompts")? {
                    Some(0) => return Err(section.error("prompts", "must be at least 1", None)),
                    // Twice the requests of the load, because a void sample is measured again with other prompts.
                    prompts => {
                        prompts.or(requests.map(|total| total.saturating_mul(2))).unwrap_or(WorkloadSpec::PROMPTS)
                    }
                },
                output_len: output_len(section)?,
                pruning: Pruning {
                    min_len: section.optional_or("min_len", default.min_len)?,
                    max_prompt_len: section.optional_or("max_prompt_len", default.max_prompt_len)?,
                    max_total_len: section.optional_or("max_total_len", default.max_total_len)?,
                },
            }
        }
        "jsonl" => WorkloadSpec::Jsonl { path: path(section, paths)?, output_len: output_len(section)? },
        "trace" => WorkloadSpec::Trace { path: path(section, paths)? },
        "prefix" => WorkloadSpec::Prefix {
            groups: section.optional_or("groups", 1)?,
            prefix_len: section.required("prefix_len")?,
            share: section.optional_or("share", 1.0)?,
            suffix_len: length(section, "suffix_len")?,
            output_len: length(section, "output_len")?,
        },
        "conversation" => WorkloadSpec::Conversation {
            turns: length(section, "turns")?,
            system_len: section.optional_or("system_len", 0)?,
            first_len: length(section, "first_len")?,
            user_len: length(section, "user_len")?,
            output_len: length(section, "output_len")?,
            think: think(section)?,
        },
        "image" => WorkloadSpec::Image {
            sizes: sizes(section)?,
            count: section.optional_or("count", 1)?,
            input_len: length(section, "input_len")?,
            output_len: length(section, "output_len")?,
        },
        "mixture" if outer => WorkloadSpec::Mixture {
            parts: section.sections("part", |part| {
                Ok((part.optional_or("weight", 1.0)?, read_kind(part, paths, requests, false)?))
            })?,
        },
        "mixture" => {
            let problem = "a mixture cannot be part of a mixture";
            return Err(section.error("kind", problem, Some("list its parts in the outer mixture".to_owned())));
        }
        other => {
            let known = WorkloadSpec::KINDS.map(|kind| format!("{kind:?}")).join(", ");
            let hint = nearest(other, WorkloadSpec::KINDS).map(|near| format!("did you mean {near:?}?"));
            return Err(section.error("kind", format!("{other:?} is not a workload; there are {known}"), hint));
        }
    })
}

fn length(section: &Section<'_>, key: &str) -> Result<TokenLength, DocumentError> {
    match section.required(key)? {
        TokenLength::Exact(0) => Err(section.error(key, "must be at least 1", None)),
        length => Ok(length),
    }
}

fn output_len(section: &Section<'_>) -> Result<Option<u32>, DocumentError> {
    match section.optional("output_len")? {
        Some(0) => Err(section.error("output_len", "must be at least 1", None)),
        length => Ok(length),
    }
}

fn path(section: &Section<'_>, paths: &StudyPaths) -> Result<Option<std::path::PathBuf>, DocumentError> {
    let Some(written) = section.optional::<String>("path")? else { return Ok(None) };
    let found = paths.find(&written);
    if found.is_none() {
        return Err(section.error("path", format!("{written:?} does not exist"), None));
    }
    Ok(found)
}

fn think(section: &Section<'_>) -> Result<Think, DocumentError> {
    let time: Duration = section.optional_or("think_time", Duration::ZERO)?;
    match section.optional_or("think_distribution", "exponential".to_owned())?.as_str() {
        "exponential" => Ok(Think::Exponential(time)),
        "fixed" => Ok(Think::Fixed(time)),
        other => {
            let problem = format!("{other:?} is not a distribution; there are \"exponential\" and \"fixed\"");
            Err(section.error("think_distribution", problem, None))
        }
    }
}

/// Reads `width` and `height`, or `sizes = [[512, 512], [1024, 768]]`.
fn sizes(section: &Section<'_>) -> Result<Vec<(u32, u32)>, DocumentError> {
    let sizes: Option<Vec<Vec<u32>>> = section.optional("sizes")?;
    let (width, height): (Option<u32>, Option<u32>) = (section.optional("width")?, section.optional("height")?);
    match (sizes, width, height) {
        (None, Some(width), Some(height)) => Ok(vec![(width, height)]),
        (Some(sizes), None, None) => {
            let pair = |size: &Vec<u32>| match size[..] {
                [width, height] => Ok((width, height)),
                _ => Err(section.error("sizes", format!("{size:?} is not [width, height]"), None)),
            };
            sizes.iter().map(pair).collect()
        }
        _ => Err(section.error("sizes", "give either sizes, or width and height", None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;

    /// Reads the quick-start study with another workload and load.
    fn study(workload: &str, load: &str) -> Result<Job, DocumentError> {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let text = std::fs::read_to_string(examples.join("quickstart.toml")).unwrap();
        let text = text.replace("models/", &format!("{}/models/", examples.display()));
        let (begin, rest) = text.split_once("[workload]").unwrap();
        let (_, end) = rest.split_once("[objective]").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("study.toml");
        std::fs::write(folder.path().join("trace.csv"), "arrival_s,input_tokens,output_tokens\n1,5,3\n2,6,5\n")
            .unwrap();
        std::fs::write(&file, format!("{begin}[workload]\n{workload}\n[load]\n{load}\n[objective]{end}")).unwrap();
        Job::read(&file)
    }

    const LOAD: &str = "concurrency = 4\nrequests = 8";

    #[test]
    fn the_definition_of_a_plain_study_does_not_change() {
        let job = study("kind = 'random'\ninput_len = 16\noutput_len = 4\nvocab_size = 500", LOAD).unwrap();
        let definition = job.definition();
        let workload = r#"{"input_len":16,"kind":"random","output_len":4,"vocab_size":500}"#;
        assert_eq!(definition["workload"].to_string(), workload);
        let load = r#"{"concurrency":4,"max_error_rate":0.05,"request_timeout_s":60.0,"requests":8,"warmup":4}"#;
        assert_eq!(definition["load"].to_string(), load);
        assert!((job.workload.mean_output() - 4.0).abs() < 1e-9);
    }

    #[test]
    fn every_key_that_changes_the_requests_changes_the_definition() {
        let prefix = "kind = 'prefix'\nprefix_len = 9\nsuffix_len = { min = 2, max = 5 }\noutput_len = '3..4'\n";
        let conversation = "kind = 'conversation'\nturns = 2\nfirst_len = 9\nuser_len = 4\noutput_len = 3\n";
        let random = "kind = 'random'\ninput_len = 16\noutput_len = 4\n";
        let mixture = format!("kind = 'mixture'\n[[workload.part]]\n{random}");
        let texts = [
            random.to_owned(),
            format!("{random}prefix_len = 3"),
            format!("{random}range_ratio = 0.5"),
            prefix.to_owned(),
            format!("{prefix}share = 0.5"),
            format!("{prefix}groups = 2"),
            conversation.to_owned(),
            format!("{conversation}think_time = '2s'"),
            format!("{conversation}think_time = '2s'\nthink_distribution = 'fixed'"),
            format!("{conversation}system_len = 7"),
            "kind = 'trace'\npath = 'trace.csv'".to_owned(),
            mixture.clone(),
            format!("{mixture}[[workload.part]]\nweight = 2\n{prefix}"),
        ];
        let mut seen = Vec::new();
        for text in texts {
            let definition = study(&text, LOAD).unwrap_or_else(|error| panic!("{error}\n{text}")).definition();
            assert!(!seen.contains(&definition["workload"]), "{text}");
            seen.push(definition["workload"].clone());
        }
        for load in [
            "goodput = ['ttft:200']\nrate = 2",
            "goodput = ['ttft:100']\nrate = 2",
            "until = '5%'\nrate = 2",
            "until = '2%'\nrate = 2",
            "until = '2%'\nwindow = 'whole'\nrate = 2",
            "window = 'steady'\nrate = 2",
            "rate = 2",
            "rate = 'inf'",
            "rate = 2\nburstiness = 3",
            "duration = 9\nrate = 2",
            "allow_eos = true\nrate = 2",
        ] {
            let definition = study(random, &format!("requests = 8\n{load}")).unwrap().definition();
            assert!(!seen.contains(&definition["load"]), "{load}");
            seen.push(definition["load"].clone());
        }
    }

    #[test]
    fn a_trace_is_replayed_as_a_whole_and_has_its_file_in_the_definition() {
        let job = study("kind = 'trace'\npath = 'trace.csv'", "trace_factor = 0.5").unwrap();
        assert_eq!((job.load.requests, job.workload.source.due(1)), (Some(2), Some(Duration::from_secs(1))));
        assert_eq!(job.definition()["workload"]["file"]["name"], "trace.csv");
        assert_eq!(job.definition()["workload"]["file"]["digest"].as_str().map(str::len), Some(16));
    }

    #[test]
    fn a_named_tokenizer_replaces_a_missing_one() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let text = format!("kind = 'sharegpt'\npath = '{}'\n", fixtures.join("sharegpt.json").display());
        let error = study(&text, LOAD).unwrap_err();
        assert!(error.hint.is_some_and(|hint| hint.contains("workload.tokenizer")));
        let named = format!("{text}tokenizer = '{}'", fixtures.join("tokenizer").display());
        let definition = study(&named, LOAD).unwrap().definition();
        assert_eq!(definition["workload"]["tokenizer"].as_str().map(str::len), Some(16));
        assert!(study(&format!("{text}tokenizer = 'none'"), LOAD).unwrap_err().to_string().contains("does not exist"));
    }

    #[test]
    fn an_invalid_workload_is_reported_with_its_line_and_key() {
        let random = "kind = 'random'\ninput_len = 16\noutput_len = 4";
        for (workload, load, problem) in [
            ("kind = 'randm'", LOAD, "workload.kind: \"randm\" is not a workload; there are \"random\", \"sharegpt\""),
            ("kind = 'random'\ninput_len = 0", LOAD, "workload.input_len: must be at least 1"),
            ("kind = 'random'\ninput_len = { min = 3 }", LOAD, "workload.input_len: a range has the keys min and max"),
            ("kind = 'random'\ninput_len = { min = 5, max = 3 }\noutput_len = 1", LOAD, "workload.input_len: min 5 is"),
            ("kind = 'random'\ninput_len = 9999999\noutput_len = 4", LOAD, "workload.input_len: input_len 9999999 + o"),
            ("kind = 'trace'\npath = 'none.csv'", LOAD, "workload.path: \"none.csv\" does not exist"),
            ("kind = 'trace'", LOAD, "workload.path: a trace workload needs a file with its requests"),
            ("kind = 'image'\nwidth = 9\ninput_len = 4\noutput_len = 1", LOAD, "workload.sizes: give either sizes, or"),
            (random, "trace_factor = 1", "workload.kind: a random workload has no time stamps to replay"),
            (
                random,
                "concurrency = 4\nrequests = 8\napi = 'chat'",
                "workload.kind: the model's tokenizer is not known",
            ),
            ("kind = 'mixture'", LOAD, "workload.part: no part has a weight above 0"),
            ("kind = 'random'\ninput_len = 1\noutput_len = 4\nprefx_len = 3", LOAD, "workload.prefx_len: unknown key"),
        ] {
            let error = study(workload, load).unwrap_err();
            assert!(error.to_string().contains(problem) && error.line.is_some(), "{error}");
        }
    }
}
