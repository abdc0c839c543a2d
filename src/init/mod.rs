//! The study file of a model and a goal: the text that `setpoint init` writes and that `setpoint tune --model` runs.

mod deployed;
mod first_points;
mod goal;
mod limit;
mod load;
mod name;
mod preset;
mod start;
mod text;
mod traffic;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::deployment::{Deployment, DeploymentError, RecipeError};
use crate::document::{Document, DocumentError, nearest};
use crate::engine::{Engine, resolve_program};
use crate::engines::{ENGINES, built_in, default_engine};
use crate::execution::ExecutionEnvironment;
use crate::facts::{Device, is_gguf};
use crate::job::Job;
use crate::space::built_in_for;

pub(crate) use deployed::DeployedFlags;
use deployed::DeployedProcess;
pub(crate) use goal::TuningGoal;
pub(crate) use limit::LatencyLimit;
pub(crate) use load::LoadChoice;
pub(crate) use preset::PRESETS;
pub(crate) use start::StartSource;
pub(crate) use text::same_study;
use traffic::TrafficSource;

/// The options that describe a study without a file.
#[derive(Clone, Debug)]
pub(crate) struct StudyRequest {
    /// A directory, or a name in the local hub cache.
    pub model: String,
    /// The kind of engine. `None`: the installed one.
    pub engine: Option<String>,
    pub goal: TuningGoal,
    pub limits: Vec<LatencyLimit>,
    /// A preset's name or a file.
    pub workload: String,
    pub load: LoadChoice,
    /// Today's deployment.
    pub deployment: Option<Deployment>,
    /// The adapter that requests address.
    pub adapter: Option<String>,
    /// Further first points.
    pub starts: Vec<StartSource>,
    pub trials: Option<u32>,
    pub time: Option<Duration>,
}

/// A study file that was composed and validated, and is not yet written.
#[derive(Debug)]
pub(crate) struct ComposedStudy {
    pub job: Job,
    /// The path and the text of the study file.
    pub file: PathBuf,
    pub text: String,
    /// A further file that the study needs: the lengths and times of an access log, as CSV.
    pub traffic: Option<(PathBuf, String)>,
    /// The decisions that the options left open, one line each.
    pub assumptions: Vec<String>,
}

/// A reason why no study can be composed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InitError {
    #[error("{problem}")]
    Option { problem: String, hint: String },
    #[error(transparent)]
    Study(#[from] DocumentError),
    #[error(transparent)]
    Deployment(#[from] DeploymentError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
}

impl InitError {
    fn new(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Option { problem: problem.into(), hint: hint.into() }
    }

    /// Returns the next step for the user.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::Option { hint, .. } => Some(hint),
            Self::Study(error) => error.hint.as_deref(),
            Self::Deployment(error) => error.hint.as_deref(),
            Self::Recipe(error) => Some(&error.hint),
        }
    }
}

/// The simulated clock runs this many times faster than real time, so that a demonstration takes less than a minute.
/// Limits on latency and rates are scaled alike.
const SIMULATED_TIME_SCALE: f64 = 5.0;

impl StudyRequest {
    /// Returns the engine, and the place of its program if the options do not name one.
    fn engine(&self) -> Result<(Arc<dyn Engine>, Option<String>), InitError> {
        if let Some(wanted) = &self.engine {
            let engine = built_in(wanted).filter(|engine| engine.rules().is_some());
            let problem = || {
                let near = nearest(wanted, engine_names()).map(|near| format!("did you mean {near}? "));
                let known = engine_names().collect::<Vec<_>>().join(", ");
                InitError::new(
                    format!("{wanted:?} is not an engine that needs no study file; there are {known}"),
                    format!(
                        "{}other servers need a study file: see examples/any-server.toml",
                        near.unwrap_or_default()
                    ),
                )
            };
            return Ok((engine.ok_or_else(problem)?, None));
        }
        let engine = self.usual_engine();
        let deployed = self.deployment.as_ref().map(|deployment| DeployedProcess::of(deployment, &*engine));
        if deployed.is_some_and(|process| process.command.is_some()) {
            return Ok((engine, None));
        }
        let program = engine.default_command().ok().and_then(|command| command.into_iter().next()).unwrap_or_default();
        let Some(found) = resolve_program(&program) else {
            let simulated = engine_names().find(|name| built_in(name).is_some_and(|engine| !engine.runs_model()));
            return Err(InitError::new(
                format!("no engine was found: the program `{program}` is not on the PATH"),
                format!(
                    "activate the environment of {}, or try --engine {}",
                    engine.display_name(),
                    simulated.unwrap_or_default()
                ),
            ));
        };
        let text = format!("engine: {}, found as {}", engine.display_name(), found.display());
        Ok((engine, Some(text)))
    }

    /// Returns the engine that usually serves the model: a GGUF file has one of its own.
    fn usual_engine(&self) -> Arc<dyn Engine> {
        let of_gguf = if is_gguf(Path::new(&self.model)) {
            engine_names().filter_map(built_in).find(|engine| engine.reads_gguf())
        } else {
            None
        };
        of_gguf.unwrap_or_else(default_engine)
    }

    /// Composes the study in two steps. The first one, without `environment`, is for the detection of the engine's
    /// release and devices. They decide the search space of the second. `directory` is the folder of the study file.
    ///
    /// # Errors
    /// If the model is unknown, the workload cannot be read, or an option does not fit the others.
    pub(crate) fn compose(
        &self,
        directory: &Path,
        environment: Option<(&ExecutionEnvironment, &Job)>,
    ) -> Result<ComposedStudy, InitError> {
        let (engine, found) = self.engine()?;
        let is_simulated = !engine.runs_model();
        let mut assumptions: Vec<String> = found.into_iter().collect();
        let traffic = TrafficSource::find(&self.workload)?;
        let time_scale = if is_simulated { SIMULATED_TIME_SCALE } else { 1.0 };
        let load = self.load.resolve(&traffic)?.scaled(time_scale);
        let goal = self.goal.resolve(&scaled(&self.limits, time_scale), &traffic, time_scale)?;
        let kind = engine.kind();
        let (device, has_experts, version) = match environment {
            None => (Device::UNKNOWN_GPU, false, engine.newest_release()),
            Some((environment, job)) => (environment.device, job.model.shape.experts.is_some(), environment.version),
        };
        let family = engine.first_space(device, has_experts).unwrap_or_default();
        let space = built_in_for(family, version).unwrap_or(family);
        let first_points = self.first_points(&*engine, space, environment)?;
        let process = self.deployment.as_ref().map(|deployment| DeployedProcess::of(deployment, &*engine));
        let process = process.unwrap_or_default();
        let name = self.study_name(kind);
        let file = directory.join(format!("{name}.toml"));
        let traffic_file = traffic.rows().map(|rows| (directory.join(format!("{name}-traffic.csv")), rows));
        let study = text::StudyText {
            name: &name,
            kind,
            time_scale: is_simulated.then_some(time_scale),
            model: &self.model_path(),
            adapter: self.adapter.as_deref(),
            process: &process,
            priors: self.starts.iter().filter_map(StartSource::prior).collect(),
            first_points: &first_points,
            space,
            traffic: &traffic,
            traffic_file: traffic_file.as_ref().map(|(path, _)| path.as_path()),
            load: &load,
            goal: &goal,
            trials: self.trials(is_simulated),
            time: self.time(is_simulated),
        };
        let text = study.render();
        if is_simulated {
            assumptions.push(format!(
                "engine: simulated, {time_scale} times faster than real time; limits and rates are scaled alike, and the \
                 numbers are those of the fast clock"
            ));
        }
        assumptions.extend(self.deployment_assumptions(&process, &first_points, version));
        assumptions.push(format!("space: {space}"));
        assumptions.push(format!("traffic: {}", traffic.describe()));
        assumptions.push(format!("load: {}", load.describe()));
        assumptions.push(format!("goal: {}", goal.describe()));
        let job = traffic::with_traffic(traffic_file.as_ref(), &text, |text| {
            Document::from_text(&file, text).parse(|root| Job::resolve(root, &file))
        })
        .map_err(|error| self.with_model_hint(error))?;
        Ok(ComposedStudy { job, file, text, traffic: traffic_file, assumptions })
    }

    /// Adds the option that names the model on this machine, if the deployment's model is not found.
    fn with_model_hint(&self, error: InitError) -> InitError {
        match error {
            InitError::Study(error) if self.deployment.is_some() && error.key == "model.path" => {
                let hint = error.hint.unwrap_or_default();
                let hint = format!("{hint}; --model names the deployment's model on this machine");
                InitError::Study(DocumentError { hint: Some(hint), ..error })
            }
            error => error,
        }
    }

    /// Returns the absolute path of a local model, so that the study can be moved, or the name of a hub model.
    fn model_path(&self) -> String {
        let path = Path::new(&self.model);
        let absolute = path.exists().then(|| path.canonicalize().ok()).flatten();
        absolute.map_or_else(|| self.model.clone(), |path| path.to_string_lossy().into_owned())
    }

    /// Returns the limit on launches. A demonstration on the simulated engine has one by default.
    fn trials(&self, is_simulated: bool) -> Option<u32> {
        const DEMONSTRATION: u32 = 20;
        self.trials.or_else(|| (self.time.is_none() && is_simulated).then_some(DEMONSTRATION))
    }

    /// Returns the time limit: a night, if the options limit neither time nor trials.
    fn time(&self, is_simulated: bool) -> Option<Duration> {
        let night = Duration::from_hours(8);
        self.time.or_else(|| (self.trials.is_none() && !is_simulated).then_some(night))
    }
}

/// Returns the names of the engines that `--engine` accepts.
pub(crate) fn engine_names() -> impl Iterator<Item = &'static str> {
    ENGINES
        .iter()
        .filter(|kind| built_in(kind.name).is_some_and(|engine| engine.rules().is_some()))
        .map(|kind| kind.name)
}

/// Returns the limits on a clock that runs `time_scale` times faster.
fn scaled(limits: &[LatencyLimit], time_scale: f64) -> Vec<LatencyLimit> {
    limits.iter().map(|limit| limit.scaled(time_scale)).collect()
}
