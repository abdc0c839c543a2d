//! `predict`: predicts the results of configurations in virtual time.

mod calibrate;
mod configs;
mod release;

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;

use self::calibrate::LearnedCalibration;
use self::release::{ReleaseChoice, ReleaseOrigin};
use super::failure::{CommandFailure, INVALID, NOTHING_FEASIBLE, USAGE};
use super::output::{note, print, print_json};
use super::{GlobalOptions, OutputFormat};
use crate::config::Config;
use crate::engine::SimulatedLaunch;
use crate::execution::{prediction_device, preset_named, with_stated_count};
use crate::facts::EngineVersion;
use crate::job::{Job, LoadJob};
use crate::load::ArrivalPattern;
use crate::predict::{Knowledge, PredictedDevice, TwinQuestion, compare, predict};
use crate::report::{PredictedConfiguration, Predictions, predictions_json, predictions_page, predictions_text};
use crate::store::Store;
use crate::trial::Outcome;
use crate::twin::{Calibration, DevicePreset, StartupModel, WarmState};

#[derive(Debug, Args)]
pub(super) struct PredictCommand {
    /// The study file (TOML).
    study: PathBuf,
    /// Flags and values in addition to the study's fixed ones, such as '{"max-num-seqs": 64}'; repeatable.
    /// Default: the engine's defaults.
    #[arg(long = "config", value_name = "JSON")]
    configs: Vec<String>,
    /// Calibrate with the measured trials of this study in the database.
    #[arg(long, value_name = "STUDY_NAME")]
    calibrate: Option<String>,
    /// Device of the engine. Default: the simulated device, else this machine's GPU, else its processor.
    #[arg(long, value_name = "PRESET", value_parser = PossibleValuesParser::new(DevicePreset::names()))]
    device: Option<String>,
    /// Another device to predict for; repeatable.
    #[arg(long, value_name = "PRESET", value_parser = PossibleValuesParser::new(DevicePreset::names()))]
    on: Vec<String>,
    /// Requests per second, or inf, instead of the study's load. --concurrency limits the requests in flight.
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Number of users of a closed loop, instead of the study's load.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// The workload to predict, of a study with several.
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Acceptance rate of speculative tokens, 0 to 1. Default: no speculation; for the simulated engine its own rate.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    acceptance: Option<f64>,
    /// Release of the engine. Default: that of the study, its trials or the installed engine, else the newest known one.
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<EngineVersion>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
    /// Write an HTML page with plots of the batch over time.
    #[arg(long, short, value_name = "FILE.html")]
    output: Option<PathBuf>,
}

/// Returns the engine and its release for the page of a prediction.
fn engine_text(job: &Job, simulated: Option<SimulatedLaunch>, release: &ReleaseChoice) -> String {
    let engine = &job.engine.engine;
    let Some(simulated) = simulated else { return format!("{} {release}", engine.kind()) };
    let (product, version, scale) = (engine.display_name(), release.version, simulated.time_scale);
    format!("simulated {product} {version}, {scale} times as fast as its device")
}

impl PredictCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let job = self.chosen_workload(Job::read(&self.study)?)?;
        self.check_twin(&job)?;
        let simulated = job.engine.engine.simulated(&job.engine.args);
        let release =
            ReleaseChoice::find(self.engine_version, &job, simulated, self.calibrate.as_deref(), global).await?;
        let version = release.version;
        job.check_release(version)?;
        let configs = configs::read(&self.configs, &job, version)?;
        let load = self.load(&job)?;
        let (here, host) = prediction_device(&job, self.device.as_deref())?;
        let unknown = Calibration::none();
        let question = TwinQuestion {
            job: &job,
            load: &load,
            config: Config::new(),
            version,
            device: here,
            host,
            knowledge: Knowledge::for_same_device(&unknown),
            acceptance: self.acceptance,
            startup_model: StartupModel::default(),
            warm: WarmState::default(),
        };
        let learned = match &self.calibrate {
            None => LearnedCalibration::none(),
            Some(study) => {
                let store = Store::open(&global.db, false).await?;
                let learned = calibrate::calibrate(&store, study, &question).await;
                store.close().await;
                let learned = learned?;
                note(global, &calibrate::calibration_text(&learned, study));
                learned
            }
        };
        let calibration = &learned.calibration;
        let question = TwinQuestion { startup_model: learned.starts.model.clone(), ..question };
        let mut devices = vec![(here, Knowledge::for_same_device(calibration).with_noise(learned.noise.as_ref()))];
        for name in self.on.iter().filter(|name| !name.eq_ignore_ascii_case(here.preset.name)) {
            let there = with_stated_count(PredictedDevice::preset(preset_named(name)?), &job);
            devices.push((there, Knowledge::for_other_device(calibration).with_noise(learned.noise.as_ref())));
        }
        let mut all = Vec::new();
        for (config, (device, knowledge)) in
            configs.iter().flat_map(|config| devices.iter().map(move |device| (config, device)))
        {
            // Earlier launches of the calibrating study left weights and compiled code in the machine's caches. They
            // shorten the predicted start.
            let warm = learned.starts.warm_state(&calibrate::launch_context(&question), config);
            let question = TwinQuestion {
                config: config.clone(),
                device: *device,
                knowledge: *knowledge,
                warm,
                ..question.clone()
            };
            let prediction = predict(&question).map_err(|error| {
                let hint = error.hint().map(str::to_owned);
                let failure = CommandFailure::new(INVALID, format!("{}: {error}", job.file.display()));
                hint.into_iter().fold(failure, CommandFailure::with_hint)
            })?;
            all.push(PredictedConfiguration {
                config: config.without(&job.search_space().fixed),
                device: device.preset,
                elsewhere: device.preset.name != here.preset.name,
                calibrated: knowledge.is_calibrated(),
                noise: learned.noise.clone(),
                prediction,
            });
        }
        all.sort_by(|a, b| compare(&job.objective, &a.prediction, &b.prediction));
        let speculates = configs.iter().any(|config| config.get("speculative-config").is_some());
        if speculates && self.acceptance.is_none() && simulated.is_none() {
            note(global, "speculation is not simulated: set --acceptance to the share of accepted draft tokens");
        }
        let engine = engine_text(&job, simulated, &release);
        let predictions = Predictions {
            study: &job.name,
            objective: &job.objective,
            engine,
            version,
            version_assumed: release.origin == ReleaseOrigin::Assumed,
            load: &load,
            all,
        };
        if let Some(file) = &self.output {
            write(file, &predictions_page(&predictions))?;
        }
        match self.format {
            OutputFormat::Table => print(&predictions_text(&predictions))?,
            OutputFormat::Json => print_json(&predictions_json(&predictions))?,
        }
        if predictions.all.iter().any(|one| matches!(one.prediction.outcome, Outcome::Measured(_))) {
            return Ok(());
        }
        Err(CommandFailure::new(NOTHING_FEASIBLE, "none of the configurations can serve the load")
            .with_hint("the output contains the reason of each; `setpoint check` shows the removals of each rule"))
    }

    /// Returns the study with the workload of the command line, if it has several.
    fn chosen_workload(&self, job: Job) -> Result<Job, CommandFailure> {
        let names: Vec<_> = job.workloads.iter().map(|entry| entry.name.clone()).collect();
        let list = names.join(", ");
        match (&self.workload, names.is_empty()) {
            (None, true) => Ok(job),
            (None, false) => {
                Err(CommandFailure::new(USAGE, "the study has several workloads, and a prediction has one")
                    .with_hint(format!("choose one with --workload: {list}")))
            }
            (Some(_), true) => Err(CommandFailure::new(USAGE, "--workload needs a study with several workloads")),
            (Some(name), false) => job.with_workload(name).ok_or_else(|| {
                CommandFailure::new(USAGE, format!("the study has no workload {name:?}; it has {list}"))
            }),
        }
    }

    /// Fails if the twin does not simulate the study's engine.
    fn check_twin(&self, job: &Job) -> Result<(), CommandFailure> {
        let engine = &job.engine.engine;
        if engine.twin().is_some() {
            return Ok(());
        }
        let message =
            format!("the twin cannot simulate engines of kind {:?}, so there is no prediction", engine.kind());
        let hint = format!("measure it instead: `setpoint tune {}`", self.study.display());
        Err(CommandFailure::new(INVALID, message).with_hint(hint))
    }

    /// Returns the study's load, or the one of the command line.
    fn load(&self, job: &Job) -> Result<LoadJob, CommandFailure> {
        let mut load = job.load.clone();
        if self.rate.is_none() && self.concurrency.is_none() {
            return Ok(load);
        }
        let own = load.concurrency.filter(|_| load.arrival == ArrivalPattern::Closed);
        let burstiness = match load.arrival {
            ArrivalPattern::Rate { burstiness, .. } | ArrivalPattern::Ramp { burstiness, .. } => burstiness,
            ArrivalPattern::Closed | ArrivalPattern::AtOnce | ArrivalPattern::Trace { .. } => 1.0,
        };
        load.arrival = match self.rate {
            None => ArrivalPattern::Closed,
            Some(per_s) if per_s.is_infinite() => ArrivalPattern::AtOnce,
            Some(per_s) => ArrivalPattern::Rate { per_s, burstiness },
        };
        // In a closed loop, the study's `concurrency` is its number of users. It does not limit the load of the command
        // line.
        load.concurrency = self.concurrency.or(load.concurrency.filter(|_| own.is_none()));
        if let (None, Some(users)) = (self.rate, self.concurrency) {
            load.requests = load.requests.map(|requests| requests.max(users));
            // The default warm-up of a closed loop is one request for each user.
            if own.is_none_or(|own| load.warmup == own) {
                load.warmup = users;
            }
        }
        if load.requests.is_none() && load.duration.is_none() {
            let message = "the study's load has neither a number of requests nor a duration";
            return Err(CommandFailure::new(INVALID, message).with_hint("set load.requests or load.duration"));
        }
        Ok(load)
    }
}

fn write(file: &Path, text: &str) -> Result<(), CommandFailure> {
    std::fs::write(file, text)
        .map_err(|error| CommandFailure::unexpected(format!("cannot write {}: {error}", file.display())))
}

/// Parses a rate in requests per second. Infinity means all at once.
fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "expected a number or inf".to_owned())?;
    if rate > 0.0 { Ok(rate) } else { Err("must be above 0".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be from 0 to 1".to_owned()) }
}
