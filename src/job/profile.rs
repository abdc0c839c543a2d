//! Profiles: named series of benchmark runs, each with its workload and load. Their results form one table.

use std::path::Path;

use super::LoadJob;
use super::paths::StudyPaths;
use super::workload::read_spec;
use crate::document::{Document, DocumentError, Section, nearest};
use crate::workload::WorkloadSpec;

/// Several runs, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchProfile {
    pub name: String,
    /// At least one.
    pub runs: Vec<ProfileRun>,
}

/// One run of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileRun {
    /// Unique in its profile.
    pub name: String,
    /// Its data files may be missing; [`BenchProfile::set_dataset`] sets them.
    pub spec: WorkloadSpec,
    pub load: LoadJob,
    /// The table of vLLM's nightly benchmarks to which the run belongs.
    pub test: BenchTest,
}

/// A kind of test of vLLM's nightly benchmarks. It decides the columns of a run's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BenchTest {
    /// Batches of a fixed size; the result is the end-to-end latency.
    Latency,
    /// All requests at once; the result is the throughput.
    Throughput,
    /// Requests that arrive one after the other.
    #[default]
    Serving,
}

impl BenchTest {
    /// Every kind, in the order of the nightly benchmarks' report.
    pub const ALL: [Self; 3] = [Self::Latency, Self::Throughput, Self::Serving];

    /// Returns the name in profiles and in tables by columns.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Serving => "serving",
        }
    }
}

macro_rules! built_in {
    ($($name:literal),+ $(,)?) => { [$(($name, include_str!(concat!("profiles/", $name, ".toml")))),+] };
}

impl BenchProfile {
    /// Names and texts of the profiles that ship in the binary.
    pub const BUILT_IN: [(&'static str, &'static str); 12] = built_in![
        "high",
        "medium",
        "low",
        "vision-a",
        "vision-b",
        "sweep-80",
        "sweep-10000",
        "sweep-128000",
        "nightly-serving",
        "nightly-latency",
        "nightly-throughput",
        "nightly-speculative",
    ];

    /// Reads a profile: one of [`BUILT_IN`](Self::BUILT_IN) by its name, else a TOML file by its path.
    ///
    /// # Errors
    /// The error names the file, the line, the key and the nearest valid one. For an unknown name it lists the known
    /// ones.
    pub fn read(path_or_name: &str) -> Result<Self, DocumentError> {
        if let Some((name, text)) = Self::BUILT_IN.iter().find(|(name, _)| *name == path_or_name) {
            return Self::parse(&Document::from_text(*name, *text), name);
        }
        let file = Path::new(path_or_name);
        if !file.exists() {
            let names = Self::BUILT_IN.map(|(name, _)| name);
            let hint = match nearest(path_or_name, names) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("the built-in profiles are {}; or give the path of a file", names.join(", ")),
            };
            return Err(DocumentError {
                file: file.to_owned(),
                line: None,
                key: String::new(),
                problem: "is neither a profile nor a file".to_owned(),
                hint: Some(hint),
            });
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self::parse(&Document::read(file)?, &name)
    }

    fn parse(document: &Document, name: &str) -> Result<Self, DocumentError> {
        let paths = StudyPaths::of(&document.file);
        document.parse(|root| {
            let mut names = Vec::new();
            let runs = root.sections("run", |section| {
                let run = read_run(section, &paths)?;
                if names.contains(&run.name) {
                    return Err(section.error("name", format!("{:?} is the name of an earlier run", run.name), None));
                }
                names.push(run.name.clone());
                Ok(run)
            })?;
            if runs.is_empty() {
                return Err(root.error("run", "there is no [[run]]", None));
            }
            Ok(Self { name: name.to_owned(), runs })
        })
    }

    /// Sets the data file of the runs that have none. Returns whether there was such a run.
    pub fn set_dataset(&mut self, file: &Path) -> bool {
        self.runs.iter_mut().map(|run| run.spec.set_dataset(file)).fold(false, |any, filled| any | filled)
    }
}

fn read_run(section: &Section<'_>, paths: &StudyPaths) -> Result<ProfileRun, DocumentError> {
    let name = section.required("name")?;
    let load = section.section("load", LoadJob::read)?;
    let spec = section.section("workload", |workload| read_spec(workload, paths, load.total()))?;
    let test = read_test(section)?;
    Ok(ProfileRun { name, spec, load, test })
}

fn read_test(section: &Section<'_>) -> Result<BenchTest, DocumentError> {
    let Some(name) = section.optional::<String>("test")? else { return Ok(BenchTest::default()) };
    let found = BenchTest::ALL.into_iter().find(|test| test.name() == name);
    found.ok_or_else(|| {
        let names = BenchTest::ALL.map(BenchTest::name).join(", ");
        section.error("test", format!("{name:?} is not one of {names}"), None)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{ArrivalPattern, RequestApi};
    use crate::workload::WorkloadSurroundings;
    use std::path::PathBuf;

    fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn every_profile_that_ships_is_read_and_built() {
        for (name, _) in BenchProfile::BUILT_IN {
            let mut profile = BenchProfile::read(name).unwrap_or_else(|error| panic!("{error}"));
            let needs_file = profile.set_dataset(&root().join("tests/fixtures/sharegpt.json"));
            assert_eq!(
                needs_file,
                ["nightly-serving", "nightly-throughput", "nightly-speculative"].contains(&name),
                "{name}"
            );
            for run in profile.runs {
                let chat = run.load.api == RequestApi::Chat;
                let surroundings = WorkloadSurroundings {
                    seed: 0,
                    vocab_size: Some(4096),
                    max_model_len: Some(131_072),
                    tokenizer: Some(root().join("tests/fixtures/tokenizer")),
                    takes_tokens: !chat,
                    chat,
                    approximate: false,
                };
                let built =
                    run.spec.build(&surroundings).unwrap_or_else(|error| panic!("{name} {}: {error}", run.name));
                assert!(!built.session(0).turns.is_empty() && built.longest() <= 131_072);
            }
        }
    }

    #[test]
    fn the_profiles_send_the_requests_of_their_sources() {
        let of = |name: &str| BenchProfile::read(name).unwrap().runs;
        let requests = |name: &str| of(name).iter().map(|run| run.load.requests.unwrap()).collect::<Vec<_>>();
        assert_eq!(requests("high"), [1, 5, 10]);
        assert_eq!(requests("medium"), [32, 64, 128]);
        assert_eq!(requests("low"), [1, 4, 8, 16, 32]);
        assert_eq!(requests("vision-a"), [8, 16, 32, 64, 128]);
        assert_eq!(requests("vision-b"), [1, 8, 16, 32]);
        assert_eq!(requests("sweep-80"), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]);
        assert_eq!(requests("sweep-10000"), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(requests("sweep-128000"), [1, 1, 1, 1]);
        for (name, _) in BenchProfile::BUILT_IN {
            let open = of(name).iter().all(|run| run.load.arrival == ArrivalPattern::AtOnce);
            assert_eq!(open, !["nightly-serving", "nightly-latency", "nightly-speculative"].contains(&name), "{name}");
        }
        let arrivals: Vec<_> = of("nightly-serving").into_iter().map(|run| run.load.arrival).collect();
        let rate = |per_s| ArrivalPattern::Rate { per_s, burstiness: 1.0 };
        assert_eq!(arrivals, [rate(1.0), rate(4.0), rate(16.0), ArrivalPattern::AtOnce]);
        let [speculative] = &of("nightly-speculative")[..] else { panic!("it is one run") };
        assert_eq!((&speculative.load.arrival, speculative.load.requests), (&rate(2.0), Some(200)));
        for (name, test) in [("latency", BenchTest::Latency), ("throughput", BenchTest::Throughput)] {
            assert!(of(&format!("nightly-{name}")).iter().all(|run| run.test == test), "{name}");
        }
    }

    #[test]
    fn an_unknown_profile_is_reported_with_the_known_ones() {
        let error = BenchProfile::read("hihg").unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.hint.as_deref()),
            ("hihg: is neither a profile nor a file", Some("did you mean high?"),)
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.toml");
        let run = "[[run]]\nname = 'a'\nload = { rate = 'inf', requests = 2 }\n\
                   workload = { kind = 'random', input_len = 'max_model_len - 9', output_len = 5 }\n";
        for (text, problem) in [
            (String::new(), "run: there is no [[run]]"),
            (format!("{run}{run}"), "6: run[1].name: \"a\" is the name of an earlier run"),
            (run.replace("output_len", "outptu_len"), "4: run[0].workload.outptu_len: unknown key"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = BenchProfile::read(&file.to_string_lossy()).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
