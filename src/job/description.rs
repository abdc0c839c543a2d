//! A study without a file, for predictions only.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{EngineJob, GuardJob, Job, LoadJob, ModelJob, SpaceJob, StudyBudget, WorkloadJob};
use crate::engines::default_engine;
use crate::facts::{Device, EngineVersion, ModelShape};
use crate::load::Dialect;
use crate::objective::Objective;
use crate::sampler::SAMPLERS;
use crate::space::Space;
use crate::workload::{WorkloadError, WorkloadSpec, WorkloadSurroundings};

/// The inputs of a study without a file.
#[derive(Clone, Debug)]
pub struct JobDescription {
    pub seed: u64,
    pub shape: ModelShape,
    /// Its prompts become token ids, so that no tokenizer is needed.
    pub spec: WorkloadSpec,
    pub load: LoadJob,
    pub objective: Objective,
    pub version: EngineVersion,
    pub device: Device,
}

impl Job {
    /// Creates a job of vLLM that can be predicted but not run: it has no program, no model files and no search space.
    ///
    /// # Errors
    /// If the workload cannot be built.
    pub fn from_description(description: JobDescription) -> Result<Self, WorkloadError> {
        let JobDescription { seed, shape, spec, load, objective, version, device } = description;
        let surroundings = WorkloadSurroundings {
            seed,
            vocab_size: shape.vocab_size.and_then(|size| u32::try_from(size).ok()),
            max_model_len: Some(shape.max_model_len(version)),
            tokenizer: None,
            takes_tokens: true,
            chat: false,
            approximate: false,
        };
        let built = spec.build(&surroundings)?;
        let engine = EngineJob {
            engine: default_engine(),
            dialect: Dialect::Vllm,
            command: Vec::new(),
            written_command: None,
            args: Vec::new(),
            stop_command: None,
            has_forwarded_port: false,
            env: BTreeMap::new(),
            environment: BTreeMap::new(),
            version: Some(version),
            device: Some(device),
            preflight: false,
            startup_timeout: Duration::from_mins(15),
            stall_timeout: Duration::from_mins(1),
            stop_timeout: Duration::from_secs(30),
            retry_after: Duration::from_secs(10),
        };
        Ok(Self {
            guard: GuardJob::off(),
            repeat: None,
            file: PathBuf::new(),
            name: "described".to_owned(),
            seed,
            sampler: SAMPLERS[0],
            priors: Vec::new(),
            calibrate_prior: false,
            live_looks: false,
            fast_starts: false,
            engine,
            model: ModelJob {
                written: String::new(),
                argument: String::new(),
                directory: PathBuf::new(),
                shape,
                adapter: None,
                has_shape: true,
            },
            space: SpaceJob { space: Space::default(), file: None },
            workload: WorkloadJob::of(spec, surroundings, built),
            workloads: Vec::new(),
            load,
            objective,
            budget: StudyBudget::default(),
            slots: None,
            deployment: None,
            starts: Vec::new(),
        })
    }
}
