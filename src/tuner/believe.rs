//! What is believed of a study's space before anything is measured: by the twin, and from earlier studies.
//!
//! It follows from the study file, the installed engine and studies that are over, and not from the study's own trials: a run
//! that takes the study up again begins with the same beliefs, and so with the same suggestions.

use super::slots::CROWD;
use super::{Event, TuneError, Tuner};
use crate::facts::{Device, Gpu};
use crate::job::{Search, TWIN, known};
use crate::predict::{Knowledge, On, Question, Simulated, preset_of};
use crate::prior::{Belief, of_job, of_study};
use crate::sampler::{Known, Prior};
use crate::twin::{Calibration, DevicePreset, StartupModel, Warm};

impl Tuner<'_> {
    /// The priors that the study asks for, the most trusted first; those that are not to be had are told and left out. Samplers
    /// that look at none get none. Takes some seconds of computing, so that it is done while nothing runs.
    pub(super) async fn beliefs(&self, search: &Search<'_>) -> Result<Vec<Prior>, TuneError> {
        let mut priors = Vec::new();
        if !self.job.sampler.believes() {
            return Ok(priors);
        }
        for name in &self.job.priors {
            let belief = if name == TWIN { self.twin(search) } else { self.earlier(name, search).await? };
            match belief {
                Ok(Belief { prior, notes }) => {
                    for note in notes {
                        (self.observer)(Event::Noticed { text: format!("prior {name}: {note}") });
                    }
                    priors.push(prior);
                }
                Err(why) => (self.observer)(Event::Noticed { text: format!("no prior {name}: {why}") }),
            }
        }
        Ok(priors)
    }

    /// What the twin says of the study's own load.
    fn twin(&self, search: &Search<'_>) -> Result<Belief, String> {
        let (job, installed) = (self.job, &self.installed);
        let preset = self.preset()?;
        let unknown = Calibration::none();
        let question = Question {
            job,
            load: &job.load,
            config: search.space.fixed.clone(),
            version: installed.version,
            device: On { preset, facts: installed.device },
            host: installed.host,
            knowledge: Knowledge::here(&unknown),
            acceptance: None,
            starts: StartupModel::default(),
            warm: Warm::default(),
        };
        let allowed = |config: &crate::config::Config| search.rejection(config).is_none();
        let belief = of_job(&question, &search.space, &job.aim(), &allowed, job.seed);
        if belief.prior.points.is_empty() {
            return Err("the twin can run nothing of the space".to_owned());
        }
        Ok(belief)
    }

    /// The device's preset, where there is one.
    fn preset(&self) -> Result<&'static DevicePreset, String> {
        let engine = &self.job.engine;
        if engine.engine.kind() == "sim" {
            let simulated = Simulated::read(&engine.args).map(|simulated| simulated.device);
            return simulated.ok_or_else(|| "engine.args name no simulated device".to_owned());
        }
        let name = match self.installed.device {
            Device::Cpu => return DevicePreset::find("cpu").ok_or_else(|| "it knows no CPU".to_owned()),
            Device::Cuda(_) => {
                let visible = engine.environment.get("CUDA_VISIBLE_DEVICES").map(String::as_str);
                Gpu::describe(visible).map_err(|error| format!("the device is not known: {error}"))?
            }
        };
        preset_of(&name).ok_or_else(|| format!("it has no preset for {name}"))
    }

    /// What an earlier study has measured, by the objective and limits of this one.
    async fn earlier(&self, name: &str, search: &Search<'_>) -> Result<Result<Belief, String>, TuneError> {
        let Some(study) = self.store.study(name).await? else {
            return Ok(Err("the database has no study of this name".to_owned()));
        };
        let trials = self.store.trials(&study).await?.into_iter().map(|scored| scored.trial);
        let alone = trials.filter(|trial| trial.proposed_by != CROWD);
        let trials: Vec<_> = alone.map(|trial| (trial.config, known(&self.job.objective, &trial.outcome))).collect();
        let prior = of_study(name, &trials, &search.space);
        if !prior.points.iter().any(|(_, known)| matches!(known, Known::Measured(_))) {
            return Ok(Err("none of its measured trials is a point of this space".to_owned()));
        }
        let left_out = trials.len() - prior.points.len();
        let notes = (left_out > 0).then(|| format!("{left_out} of {} trials say nothing of this space", trials.len()));
        Ok(Ok(Belief { prior, notes: notes.into_iter().collect() }))
    }
}
