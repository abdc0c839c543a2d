//! `[deployment]` and `[[start]]`: the configurations that a study launches right after the engine's defaults.

use super::{EngineJob, Job, JobSearch, SpaceJob};
use crate::config::Config;
use crate::document::{DocumentError, Section};
use crate::engine::{LAUNCH_FLAGS, is_connection_flag};
use crate::facts::EngineVersion;
use crate::flag::FlagTable;
use crate::sampler::Suggestion;
use crate::trial::{Origin, is_secret, redact};

/// Today's deployment, or a further first point of the search. It need not lie in the space.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstPoint {
    /// [`Origin::Deployment`] or [`Origin::Start`].
    pub origin: Origin,
    /// The place of its flags, for people: a file and a line, or a recipe.
    pub source: String,
    /// Its flags. The fixed flags and the arguments of the study come on top.
    pub flags: Config,
}

impl FirstPoint {
    /// Creates today's deployment.
    #[must_use]
    pub fn deployment(source: impl Into<String>, flags: Config) -> Self {
        Self { origin: Origin::Deployment, source: source.into(), flags }
    }

    /// Creates a further first point of the search.
    #[must_use]
    pub fn start(source: impl Into<String>, flags: Config) -> Self {
        Self { origin: Origin::Start, source: source.into(), flags }
    }

    pub(super) fn read(
        section: &Section<'_>,
        origin: Origin,
        engine: &EngineJob,
        space: &SpaceJob,
    ) -> Result<Self, DocumentError> {
        let source: String = section.required("source")?;
        let flags: Config = section.required("flags")?;
        if source.trim().is_empty() {
            let hint = "name the file and line, or the recipe, that the flags come from".to_owned();
            return Err(section.error("source", "is empty", Some(hint)));
        }
        let point = Self { origin, source: redact(&source).into_owned(), flags };
        match point.find_problem(engine, space) {
            Some((problem, hint)) => Err(section.error("flags", problem, Some(hint))),
            None => Ok(point),
        }
    }

    /// Returns the first problem that needs no release, with a hint.
    fn find_problem(&self, engine: &EngineJob, space: &SpaceJob) -> Option<(String, String)> {
        let has_flags = engine.engine.rules().is_some();
        self.flags.iter().find_map(|(name, value)| {
            if is_secret(name) {
                let hint = "remove it here, and set it in [engine.env] or in the tuner's own environment".to_owned();
                return Some((format!("`{name}` would be stored, and visible to every user of this machine"), hint));
            }
            if has_flags && LAUNCH_FLAGS.contains(&name) {
                let hint = "remove it here".to_owned();
                return Some((format!("`{name}` is chosen by setpoint for every launch"), hint));
            }
            if has_flags && is_connection_flag(name) {
                let hint = "remove it here: setpoint connects to every launch of a study in the same way";
                return Some((format!("`{name}` would keep the tuner's requests from this launch"), hint.to_owned()));
            }
            let fixed = space.space.fixed.get(name).filter(|fixed| *fixed != value)?;
            let hint =
                format!("a study has one value of a fixed flag: make `{name}` equal, or a parameter of the space");
            Some((format!("`{name}` is {value} here and {fixed} in space.fixed"), hint))
        })
    }

    /// Returns the reason for its launch, in one line.
    #[must_use]
    pub fn why(&self) -> String {
        match self.origin {
            Origin::Deployment => format!("today's deployment: {}", self.source),
            _ => format!("start: {}", self.source),
        }
    }
}

impl Job {
    /// Iterates over today's deployment and the start points, each with its key in the study file.
    fn keyed_first_points(&self) -> impl Iterator<Item = (String, &FirstPoint)> {
        let starts = self.starts.iter().enumerate().map(|(index, point)| (format!("start[{index}]"), point));
        self.deployment.iter().map(|point| ("deployment".to_owned(), point)).chain(starts)
    }

    /// Checks the flags of the deployment and of the start points against the engine's release.
    ///
    /// # Errors
    /// If the release lacks a flag or refuses its value, or if an argument of the study or a fixed flag contradicts it.
    pub(super) fn check_first_points(&self, version: EngineVersion, table: FlagTable) -> Result<(), DocumentError> {
        let arguments = self.engine.arguments(version);
        for (key, point) in self.keyed_first_points() {
            let error = |name: &str, problem: String, hint: Option<String>| DocumentError {
                file: self.file.clone(),
                line: None,
                key: format!("{key}.flags.{name}"),
                problem,
                hint,
            };
            // The command line may add a deployment after the study file was read.
            if let Some((problem, hint)) = point.find_problem(&self.engine, &self.space) {
                return Err(DocumentError { key: format!("{key}.flags"), ..error("", problem, Some(hint)) });
            }
            for (name, value) in point.flags.iter() {
                if let Some(argument) = arguments.get(name).filter(|argument| *argument != value) {
                    let hint = "a study's arguments are part of every launch: make the two equal, or move the flag from \
                                engine.args to a parameter of the space";
                    let problem = format!("`{name}` is {value} here and {argument} in engine.args");
                    return Err(error(name, problem, Some(hint.to_owned())));
                }
                let one = [(name.to_owned(), value.clone())].into_iter().collect();
                table.render(&one).map_err(|problem| error(name, problem.to_string(), None))?;
            }
        }
        Ok(())
    }
}

impl JobSearch<'_> {
    /// Returns the configuration of a first point: its flags and the fixed ones, without the arguments of every launch.
    #[must_use]
    pub fn config_of(&self, point: &FirstPoint) -> Config {
        self.space.fixed.merged(&point.flags.without(&self.arguments))
    }

    /// Returns the configuration of today's deployment. It may equal the engine's defaults.
    #[must_use]
    pub fn deployment(&self) -> Option<Config> {
        self.job.deployment.as_ref().map(|point| self.config_of(point))
    }

    /// Returns today's deployment and the start points, in the order of their launches. Those that equal the engine's
    /// defaults, or an earlier one of them, are left out.
    #[must_use]
    pub fn first_points(&self) -> Vec<(Origin, Suggestion)> {
        let mut points: Vec<(Origin, Suggestion)> = Vec::new();
        for (_, point) in self.job.keyed_first_points() {
            let config = self.config_of(point);
            if config != self.space.fixed && points.iter().all(|(_, known)| known.config != config) {
                points.push((point.origin.clone(), Suggestion::new(config, point.why())));
            }
        }
        points
    }

    /// Returns the largest number of launches of a confirmation round: the winner, the engine's defaults, and today's
    /// deployment if it is another configuration.
    #[must_use]
    pub fn launches_per_round(&self) -> u32 {
        2 + u32::from(self.deployment().is_some_and(|deployment| deployment != self.space.fixed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Device, HostLimits};

    /// Reads a study of the simulated engine with these sections at its end.
    fn read(end: &str) -> Result<Job, DocumentError> {
        let directory = tempfile::tempdir().expect("a directory");
        let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
        let text = format!(
            "study.name = 'a'\nengine = {{ kind = 'sim', args = ['--max-logprobs', '5'] }}\nmodel.path = {model:?}\n\
             workload = {{ kind = 'random', input_len = 32, output_len = 8 }}\nload = {{ concurrency = 8, requests = 16 }}\n\
             objective.maximize = 'output_throughput'\nbudget.trials = 9\n\
             space.fixed = {{ max-model-len = 2048 }}\nspace.file = 'search_spaces/sim/core.toml'\n{end}"
        );
        let file = directory.path().join("study.toml");
        std::fs::write(&file, text).expect("a file");
        Job::read(&file)
    }

    fn release() -> EngineVersion {
        EngineVersion::new(0, 19, 0)
    }

    #[test]
    fn a_deployment_and_start_points_are_read_in_their_order() {
        let job = read(
            "[deployment]\nsource = 'serve.sh, line 12'\nflags = { max-num-seqs = 4096, max-logprobs = 5 }\n\
             [[start]]\nsource = 'recipe A'\nflags = { max-num-batched-tokens = 8192 }\n\
             [[start]]\nsource = 'recipe B'\nflags = { max-num-seqs = 4096, max-model-len = 2048 }\n\
             [[start]]\nsource = 'recipe C'\nflags = {}",
        )
        .unwrap();
        job.check_release(release()).unwrap();
        let search = job.search(release(), Device::Cpu, HostLimits::default());
        let points = search.first_points();
        let fixed = || Config::new().with("max-model-len", 2048_i64);
        let expected = [
            (Origin::Deployment, fixed().with("max-num-seqs", 4096_i64), "today's deployment: serve.sh, line 12"),
            (Origin::Start, fixed().with("max-num-batched-tokens", 8192_i64), "start: recipe A"),
        ];
        let expected = expected.map(|(origin, config, why)| (origin, Suggestion::new(config, why)));
        assert_eq!(points, expected, "B equals the deployment, C the defaults, and every launch has the argument");
        assert_eq!(job.definition(), read("").unwrap().definition(), "they do not change measurements");
    }

    #[test]
    fn a_flag_that_contradicts_the_study_is_named_with_both_values() {
        let error = read("[deployment]\nsource = 'a'\nflags = { max-model-len = 4096 }").unwrap_err();
        assert_eq!((&*error.key, error.line.is_some()), ("deployment.flags", true));
        assert_eq!(error.problem, "`max-model-len` is 4096 here and 2048 in space.fixed");
        let job = read("[[start]]\nsource = 'a'\nflags = { max-logprobs = 9 }").unwrap();
        let error = job.check_release(release()).unwrap_err();
        assert_eq!(error.key, "start[0].flags.max-logprobs");
        assert_eq!(error.problem, "`max-logprobs` is 9 here and 5 in engine.args");
    }

    #[test]
    fn a_flag_that_the_release_lacks_is_named_with_the_nearest_one() {
        let job = read("[deployment]\nsource = 'a'\nflags = { max-num-seq = 64 }").unwrap();
        let error = job.check_release(release()).unwrap_err();
        assert_eq!(error.key, "deployment.flags.max-num-seq");
        assert!(error.problem.contains("max-num-seqs"), "{error}");
        let job = read("[deployment]\nsource = 'a'\nflags = { max-num-seqs = 'many' }").unwrap();
        assert!(job.check_release(release()).unwrap_err().problem.contains("many"));
    }

    #[test]
    fn a_flag_of_the_connection_and_a_secret_are_refused() {
        for (flag, problem) in [
            ("api-key = 'k'", "`api-key` would be stored"),
            ("port = 8000", "`port` is chosen by setpoint"),
            ("uds = '/tmp/s'", "`uds` would keep the tuner's requests from this launch"),
            ("served-model-name = 'm'", "`served-model-name` would keep"),
        ] {
            let error = read(&format!("[deployment]\nsource = 'a'\nflags = {{ {flag} }}")).unwrap_err();
            assert!(error.problem.starts_with(problem) && error.hint.is_some(), "{error}");
        }
        // The command line may set a deployment after the file was read.
        let mut job = read("").unwrap();
        job.deployment = Some(FirstPoint::deployment("a line", Config::new().with("port", 8000_i64)));
        assert_eq!(job.check_release(release()).unwrap_err().key, "deployment.flags");
    }

    #[test]
    fn a_deployment_without_a_source_or_flags_is_refused() {
        for (text, key) in [
            ("[deployment]\nflags = {}", "deployment.source"),
            ("[deployment]\nsource = 'a'", "deployment.flags"),
            ("[deployment]\nsource = ' '\nflags = {}", "deployment.source"),
            ("[[start]]\nsource = 'a'\nflags = {}\nflag = 1", "start[0].flag"),
        ] {
            assert_eq!(read(text).unwrap_err().key, key);
        }
    }
}
