//! `init`, and the options of `tune` that describe a study without a file.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::failure::{CommandFailure, INVALID, USAGE};
use super::output::{note, print};
use super::query::{StudyChoice, no_winner};
use super::{GlobalOptions, parse_duration};
use crate::deployment::{read_deployment, read_recipe};
use crate::execution::{ExecutionEnvironment, detect};
use crate::facts::Device;
use crate::init::{
    ComposedStudy, InitError, LatencyLimit, LoadChoice, PRESETS, StartSource, StudyRequest, TuningGoal, engine_names,
    same_study,
};
use crate::job::Job;
use crate::store::{Store, database_path};
use crate::study_report::{NoWinner, StudyReport};
use crate::tuner::{FigureSource, Slots, estimate};

/// The description of a study by options.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "A study without a file")]
#[group(skip)]
#[command(group = ArgGroup::new("target").args(["model", "from"]).multiple(true))]
pub(super) struct RequestOptions {
    /// The model: a directory with its config.json, or a name in the local hub cache.
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Today's deployment, measured beside the defaults: a command line, or a script, a file of the engine's --config, a
    /// Compose file or a Kubernetes manifest. FILE#NAME selects one of several servers. Nothing of it is executed.
    #[arg(long, value_name = "LINE|FILE")]
    pub(super) from: Option<String>,
    /// Further first points of the search: the file of a recipe, or the name of an earlier study. Repeatable.
    #[arg(long, value_name = "RECIPE|STUDY", requires = "target")]
    start: Vec<String>,
    /// The adapter of the deployment (--lora-modules) that requests address. Default: its base model.
    #[arg(long, value_name = "NAME", requires = "from")]
    adapter: Option<String>,
    /// The engine. Default: llama.cpp for a GGUF file, else vllm. It has to be installed.
    #[arg(long, value_name = "ENGINE", requires = "target",
        value_parser = clap::builder::PossibleValuesParser::new(engine_names()))]
    engine: Option<String>,
    /// The goal. `balanced` is throughput within the usual latencies of the traffic.
    #[arg(long, value_name = "GOAL", requires = "target",
        value_parser = clap::builder::PossibleValuesParser::new(TuningGoal::ALL.map(|(name, _)| name)))]
    goal: Option<String>,
    /// A limit on latency, such as `ttft_p99=500ms` or `tpot_p99=50ms`. Repeatable.
    #[arg(long, value_name = "LIMIT", requires = "target")]
    slo: Vec<LatencyLimit>,
    /// The traffic: chat, rag, code, batch or agent, or a file: a trace, prompts, or an access log. Default: chat.
    #[arg(long, value_name = "WORKLOAD", requires = "target")]
    workload: Option<String>,
    /// Users at a time, each waiting for its reply. The default depends on the traffic.
    #[arg(long, value_name = "N", requires = "target", conflicts_with = "rate",
        value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// Requests per second, or inf for all at once.
    #[arg(long, value_name = "R", requires = "target")]
    rate: Option<f64>,
}

/// Writes a commented study file for a model on this machine.
#[derive(Debug, Args)]
pub(super) struct InitCommand {
    #[command(flatten)]
    request: RequestOptions,
    /// Number of launches. Default: no limit, or 20 on the simulated engine.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    trials: Option<u32>,
    /// Time limit, such as 8h. Default: 8h without --trials.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    time: Option<Duration>,
    /// File to write. Default: a name derived from the options, beside the database.
    #[arg(long, short, value_name = "STUDY.toml")]
    output: Option<PathBuf>,
}

impl RequestOptions {
    /// Returns the request, with the deployment and the first points that it names. `None` without a model and without a
    /// deployment.
    ///
    /// # Errors
    /// If the deployment or a first point cannot be read, or the deployment names no model.
    pub(super) async fn request(
        &self,
        global: &GlobalOptions,
        trials: Option<u32>,
        time: Option<Duration>,
    ) -> Result<Option<StudyRequest>, CommandFailure> {
        if self.model.is_none() && self.from.is_none() {
            return Ok(None);
        }
        let deployment = self.from.as_deref().map(read_deployment).transpose().map_err(InitError::from)?;
        let deployed_model = deployment.as_ref().and_then(|deployment| deployment.model.clone());
        let Some(model) = self.model.clone().or(deployed_model) else {
            return Err(CommandFailure::new(USAGE, "the deployment does not name its model")
                .with_hint("name the model that it serves with --model"));
        };
        let mut starts = Vec::new();
        for source in &self.start {
            let path = Path::new(source);
            let is_yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
            let is_recipe = path.is_file() || is_yaml;
            starts.push(if is_recipe {
                StartSource::Recipe(Box::new(read_recipe(source).map_err(InitError::from)?))
            } else {
                earlier_best(source, global).await?
            });
        }
        let goal = |name: &str| TuningGoal::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, goal)| goal);
        Ok(Some(StudyRequest {
            model,
            engine: self.engine.clone(),
            goal: self.goal.as_deref().and_then(goal).unwrap_or_default(),
            limits: self.slo.clone(),
            workload: self.workload.clone().unwrap_or_else(|| PRESETS[0].name.to_owned()),
            load: LoadChoice { concurrency: self.concurrency, rate: self.rate },
            deployment,
            adapter: self.adapter.clone(),
            starts,
            trials,
            time,
        }))
    }
}

/// Returns the best configuration of an earlier study in the database.
async fn earlier_best(name: &str, global: &GlobalOptions) -> Result<StartSource, CommandFailure> {
    let store = Store::open(&global.db, false).await?;
    let choice = StudyChoice { study: Some(name.to_owned()) };
    let report = StudyReport::read(&store, choice.find(&store).await?, 1).await?;
    let Some(winner) = report.winner() else {
        return Err(no_winner(&report.study, &NoWinner::read(&store, &report).await?));
    };
    let proposal = winner.results.ranked.first.trial.proposal.clone();
    store.close().await;
    Ok(StartSource::Study { name: name.to_owned(), trial: proposal.number, config: proposal.config })
}

impl From<InitError> for CommandFailure {
    fn from(error: InitError) -> Self {
        let code = if matches!(error, InitError::Option { .. }) { USAGE } else { INVALID };
        let hint = error.hint().map(str::to_owned);
        let failure = Self::new(code, error.to_string());
        match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

/// Composes the study of a request for the engine and the devices that are installed. Its folder is that of the
/// database.
pub(super) async fn compose(
    request: &StudyRequest,
    global: &GlobalOptions,
) -> Result<(ComposedStudy, ExecutionEnvironment), CommandFailure> {
    let directory = database_path(&global.db).parent().map(Path::to_owned).unwrap_or_default();
    let draft = request.compose(&directory, None)?;
    let installed = detect(&draft.job).await;
    let composed = request.compose(&directory, Some((&installed, &draft.job)))?;
    Ok((composed, installed))
}

/// Returns the decisions that the options left open, and the expected duration of the study.
pub(super) async fn assumptions(
    composed: &ComposedStudy,
    installed: &ExecutionEnvironment,
) -> Result<Vec<String>, CommandFailure> {
    let mut lines = vec![format!("model: {}", composed.job.model.argument)];
    lines.extend(composed.assumptions.clone());
    let engine = &composed.job.engine.engine;
    lines.push(format!(
        "release: {} {} ({}), {}",
        engine.display_name(),
        installed.version,
        installed.release_from,
        device_text(installed)
    ));
    let mut installed = installed.clone();
    let slots = Slots::resolve(&composed.job, &mut installed)?;
    let estimate = estimate(&composed.job, &installed, &slots, None, None).await?;
    if estimate.source != FigureSource::Guess {
        let (start, load) = (estimate.startup_s.round(), estimate.load_s.round());
        let launches = estimate.launches.map_or_else(String::new, |launches| format!("{launches} launches, "));
        let total = estimate.total_s().map_or_else(
            || "until the time limit".to_owned(),
            |total| format!("about {} minutes in all", (total / 60.0).ceil()),
        );
        lines.push(format!("expected: {launches}{start} s to start and {load} s of load each, {total}"));
    }
    Ok(lines)
}

/// Returns the device in words.
fn device_text(installed: &ExecutionEnvironment) -> String {
    match (installed.device, &installed.gpu_name) {
        (Device::Cpu, _) => "on the CPU".to_owned(),
        (Device::Cuda(gpu), name) => {
            let name = name.as_deref().unwrap_or("GPU");
            gpu.count.map_or_else(|| format!("on a {name}"), |count| format!("on {count} x {name}"))
        }
    }
}

/// Writes the study file, and its trace if it has one. A file that a person has changed stays as it is.
///
/// # Errors
/// If the file exists with another content, or cannot be written. Then nothing is written.
pub(super) fn write_study(composed: &ComposedStudy) -> Result<(), CommandFailure> {
    match std::fs::read_to_string(&composed.file) {
        Ok(existing) if !same_study(&existing, &composed.text) => {
            let file = composed.file.display();
            let hint = format!("run it as it is with `setpoint tune {file}`, or remove it");
            return Err(
                CommandFailure::new(INVALID, format!("{file} exists and differs from these options")).with_hint(hint)
            );
        }
        Ok(_) | Err(_) => {}
    }
    let files = composed.traffic.iter().map(|(path, text)| (path, text)).chain([(&composed.file, &composed.text)]);
    for (path, text) in files {
        super::export::write(path, text, false).map_err(|error| {
            CommandFailure::unexpected(format!("cannot write {}: {error}", path.display()))
                .with_hint("name a database in a folder that can be written with --db, or a file with -o")
        })?;
    }
    Ok(())
}

/// Composes and writes the study of a request, and reads it as `tune STUDY.toml` does.
pub(super) async fn prepare(request: &StudyRequest, global: &GlobalOptions) -> Result<Job, CommandFailure> {
    let (composed, installed) = compose(request, global).await?;
    for line in assumptions(&composed, &installed).await? {
        note(global, &line);
    }
    write_study(&composed)?;
    note(global, &format!("study file: {}; the same command continues the study", composed.file.display()));
    Ok(Job::read(&composed.file)?)
}

impl InitCommand {
    pub(super) async fn run(mut self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        if self.request.model.is_none() && self.request.from.is_none() {
            self.ask()?;
        }
        let Some(request) = Box::pin(self.request.request(global, self.trials, self.time)).await? else {
            return Err(CommandFailure::new(USAGE, "--model is missing").with_hint(
                "name a directory that holds config.json, a model in the local hub cache, or a deployment with --from",
            ));
        };
        let (mut composed, installed) = compose(&request, global).await?;
        if let Some(output) = &self.output {
            composed.file.clone_from(output);
        }
        for line in assumptions(&composed, &installed).await? {
            note(global, &line);
        }
        write_study(&composed)?;
        print(&format!("{}", composed.file.display()))?;
        note(global, &format!("run it: setpoint tune {}", composed.file.display()));
        Ok(())
    }

    /// Asks for the model, the goal and the traffic. Does nothing unless a person sits at a terminal.
    fn ask(&mut self) -> Result<(), CommandFailure> {
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Ok(());
        }
        self.request.model = answer("model (directory or hub name)", "")?;
        if self.request.model.is_none() {
            return Ok(());
        }
        let goals = TuningGoal::ALL.map(|(name, _)| name).join(", ");
        self.request.goal = answer(&format!("goal ({goals})"), TuningGoal::default().name())?;
        if let Some(goal) = &self.request.goal
            && TuningGoal::ALL.iter().all(|(name, _)| name != goal)
        {
            return Err(CommandFailure::new(USAGE, format!("{goal:?} is not a goal")).with_hint(format!("use {goals}")));
        }
        let presets = PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", ");
        self.request.workload = answer(&format!("traffic ({presets}, or a file)"), PRESETS[0].name)?;
        Ok(())
    }
}

/// Asks one question. Returns `None` for an empty answer without a default.
fn answer(question: &str, default: &str) -> Result<Option<String>, CommandFailure> {
    let shown = if default.is_empty() { String::new() } else { format!(" [{default}]") };
    let failure = |error: std::io::Error| CommandFailure::unexpected(format!("cannot ask for the {question}: {error}"));
    let mut stderr = anstream::stderr().lock();
    write!(stderr, "{question}{shown}: ").and_then(|()| stderr.flush()).map_err(failure)?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(failure)?;
    let text = match line.trim() {
        "" => default,
        text => text,
    };
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}
