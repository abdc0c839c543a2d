//! Conversion of a caller's context to a job that can be predicted.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::context::{ModelContext, OptimizeContext};
use super::spelling::metric;
use super::twin_predictor::WantedMetrics;
use crate::config::Config;
use crate::engines::default_engine;
use crate::facts::{Device, EngineVersion, Gpu, HostLimits, ModelShape};
use crate::flag::FlagTable;
use crate::job::{Job, JobDescription, LoadJob};
use crate::load::ArrivalPattern;
use crate::objective::{Constraint, Goal, MetricLimit, Objective};
use crate::predict::{ForecastSpan, Knowledge, PredictedDevice, TwinQuestion, preset_of};
use crate::rule::Facts;
use crate::sampler::SearchAim;
use crate::stats::{f64_to_u32, f64_to_u64, to_f64};
use crate::twin::{Calibration, DevicePreset, StartupModel, WarmState};
use crate::workload::{TokenLength, UserSession, Workload, WorkloadError, WorkloadSpec};

/// The reason for a context without a prediction.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    #[error("context.{0} is missing")]
    Missing(&'static str),
    #[error("context.{field} is {value}, expected {expected}")]
    Value { field: &'static str, value: String, expected: String },
    #[error("context.load needs {tokens} output tokens at a time, more than the limit of {MAX_TOKENS}")]
    TooManyTokens { tokens: u64 },
    #[error("context.load: {0}")]
    Workload(#[from] WorkloadError),
    #[error("the twin models none of the objectives, and no constraint with a known limit")]
    NothingPredictable,
}

/// Maximum number of output tokens of all users at a time. One run computes some three times as many.
const MAX_TOKENS: u64 = 2_000_000;
/// Variation of lengths around their mean, as a share of it.
const VARIATION: f64 = 0.5;
/// Number of sessions for each user of a closed load: the first, one until the users are spread, and one to be
/// measured. Users are spread when they are at different points of their replies.
const SESSIONS_PER_USER: u64 = 3;
/// Least number of sessions of a run, so that its tails are meaningful.
const LEAST_SESSIONS: u64 = 150;
/// Maximum number of requests of an open load, whose duration is not given.
const OPEN_REQUESTS: u64 = 500;
/// Largest mean length of a prompt or a reply, in tokens.
const MAX_LENGTH: f64 = 1e6;
const MAX_DEVICES: u64 = 1024;

/// A prediction's input without the configuration.
#[derive(Debug)]
pub(super) struct ContextJob {
    job: Job,
    device: PredictedDevice,
    pub(super) version: EngineVersion,
    pub(super) span: ForecastSpan,
    pub(super) wanted: WantedMetrics,
    /// Flags of every configuration: `max-model-len`.
    pub(super) base: Config,
    /// Number of devices to fill with replicas, for a closed load.
    pub(super) devices_to_fill: Option<i64>,
}

/// Returns `value` if it is between `low` and `high`, both included.
fn check_range(field: &'static str, value: f64, low: f64, high: f64) -> Result<f64, ContextError> {
    let expected = || format!("a number from {low} to {high}");
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(ContextError::Value { field, value: value.to_string(), expected: expected() })
}

/// Checks a required length, and rounds it to whole tokens.
fn length(field: &'static str, value: Option<f64>) -> Result<u32, ContextError> {
    check_range(field, value.ok_or(ContextError::Missing(field))?, 1.0, MAX_LENGTH)
        .map(|value| f64_to_u32(value.round()))
}

impl ContextJob {
    pub(super) fn new(context: &OptimizeContext, aim: &SearchAim) -> Result<Self, ContextError> {
        let version = match context.engine_version.as_deref() {
            None => default_engine().newest_release(),
            Some(text) => text.parse().map_err(|_| ContextError::Value {
                field: "engine_version",
                value: format!("{text:?}"),
                expected: "a release such as 0.12.0".to_owned(),
            })?,
        };
        let wanted = wanted(context, aim);
        if wanted.objectives.iter().all(Option::is_none) && wanted.constraints.iter().all(Option::is_none) {
            return Err(ContextError::NothingPredictable);
        }
        let device = device(context)?;
        let (spec, load, users) = load(context)?;
        let (input, output) = (spec_length(&spec).0, spec_length(&spec).1);
        let longest = u64::from(input) + u64::from(output);
        let max_model_len = context.model.max_model_len.unwrap_or(longest);
        if max_model_len < longest || max_model_len > 1 << 32 {
            return Err(ContextError::Value {
                field: "model.max_model_len",
                value: max_model_len.to_string(),
                expected: format!("at least {longest} tokens for the longest request"),
            });
        }
        let shape = shape(&context.model, max_model_len)?;
        let objective = Objective {
            metric: wanted
                .objectives
                .iter()
                .flatten()
                .next()
                .cloned()
                .unwrap_or_else(|| "output_throughput".to_owned()),
            goal: aim.objectives.first().map_or(Goal::Maximize, |target| target.goal),
            constraints: wanted.constraints.iter().flatten().cloned().collect(),
            joint: None,
            price_per_hour: None,
            load_goal: None,
        };
        let mut job = Job::from_description(JobDescription {
            seed: 0,
            shape,
            spec,
            load,
            objective,
            version,
            device: device.facts,
        })?;
        let span = match users {
            Some(users) => {
                job.workload.source = Arc::new(StaggeredUsers { inner: Arc::clone(&job.workload.source), users });
                ForecastSpan::Settled { users }
            }
            None => ForecastSpan::Own,
        };
        let count = device.facts.gpu().and_then(|gpu| gpu.count);
        let base = Config::new().with("max-model-len", i64::try_from(max_model_len).unwrap_or(i64::MAX));
        let fill = users.and(count).map(i64::from);
        Ok(Self { job, device, version, span, wanted, base, devices_to_fill: fill })
    }

    pub(super) fn flag_table(&self) -> Option<FlagTable> {
        self.job.engine.engine.flag_table(self.version)
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        self.job.facts(self.version, self.device.facts, HostLimits::default())
    }

    pub(super) fn question<'a>(&'a self, calibration: &'a Calibration) -> TwinQuestion<'a> {
        TwinQuestion {
            job: &self.job,
            load: &self.job.load,
            config: Config::new(),
            version: self.version,
            device: self.device,
            host: HostLimits::default(),
            knowledge: Knowledge::for_same_device(calibration),
            acceptance: None,
            startup_model: StartupModel::default(),
            warm: WarmState::default(),
        }
    }
}

/// Returns the metrics and limits for the caller's names.
fn wanted(context: &OptimizeContext, aim: &SearchAim) -> WantedMetrics {
    let constraint = |name: &String| {
        let (metric, per_s) = metric(name)?;
        // A latency's limit is in seconds, even if its name ends in another unit.
        let unit = if metric.ends_with("_ms") { 1e3 } else { per_s };
        let limit = context.limits_s.get(name).filter(|limit| limit.is_finite() && **limit > 0.0)? * unit;
        Some(Constraint { metric, limit: MetricLimit::AtMost(limit) })
    };
    WantedMetrics {
        objectives: aim.objectives.iter().map(|target| metric(&target.name).map(|(metric, _)| metric)).collect(),
        constraints: aim.constraints.iter().map(constraint).collect(),
    }
}

fn device(context: &OptimizeContext) -> Result<PredictedDevice, ContextError> {
    let name = context.device.name.as_deref().ok_or(ContextError::Missing("device.name"))?;
    let found = DevicePreset::find(name.trim()).or_else(|| preset_of(&name.to_uppercase().replace('_', " ")));
    let preset = found.ok_or_else(|| ContextError::Value {
        field: "device.name",
        value: format!("{name:?}"),
        expected: format!("one of {}", DevicePreset::names().collect::<Vec<_>>().join(", ")),
    })?;
    let on = PredictedDevice::preset(preset);
    let count = context.device.count.unwrap_or(1);
    check_range("device.count", to_f64(count), 1.0, 1024.0)?;
    let count = u32::try_from(count.min(MAX_DEVICES)).ok();
    let memory =
        context.device.memory_bytes.map(|bytes| check_range("device.memory_bytes", bytes, 1e9, 1e13)).transpose()?;
    let memory = memory.map(f64_to_u64);
    let facts = match on.facts {
        Device::Cuda(gpu) => Device::Cuda(Gpu { count, memory: memory.or(gpu.memory), ..gpu }),
        Device::Cpu => Device::Cpu,
    };
    Ok(PredictedDevice { facts, ..on })
}

/// Returns workload and load, and the number of users of a closed load.
fn load(context: &OptimizeContext) -> Result<(WorkloadSpec, LoadJob, Option<u64>), ContextError> {
    let load = &context.load;
    let (input, output) =
        (length("load.input_tokens", load.input_tokens)?, length("load.output_tokens", load.output_tokens)?);
    let share = check_range("load.shared_prefix_fraction", load.shared_prefix_fraction.unwrap_or(0.0), 0.0, 1.0)?;
    let shared = f64_to_u32((f64::from(input) * share).round()).min(input - 1);
    let mean = f64::from(input) + f64::from(output);
    let room = context.model.max_model_len.map_or(VARIATION, |most| to_f64(most) / mean - 1.0 - 2.0 / mean);
    let variation = room.clamp(0.0, VARIATION);
    let around =
        |length: u32| TokenLength::Exact(length).with_range_ratio(variation).unwrap_or(TokenLength::Exact(length));
    let (input_len, output_len) = (around(input - shared), around(output));
    let spec = match load.shared_prefixes.unwrap_or(1) {
        groups if shared > 0 && groups > 0 => WorkloadSpec::Prefix {
            groups: u32::try_from(groups).unwrap_or(u32::MAX),
            prefix_len: shared,
            share: 1.0,
            suffix_len: input_len,
            output_len,
        },
        _ => WorkloadSpec::Random { input_len: around(input), output_len, prefix_len: 0 },
    };
    // No request times out and no error rate ends the load.
    let patient =
        |load: LoadJob| LoadJob { warmup: 0, request_timeout: Duration::from_hours(1), max_error_rate: 1.0, ..load };
    if let Some(rate) = load.rate_per_s {
        let per_s = check_range("load.rate_per_s", rate, 1e-6, 1e6)?;
        let requests = (MAX_TOKENS / u64::from(output)).clamp(LEAST_SESSIONS, OPEN_REQUESTS);
        let job = LoadJob {
            arrival: ArrivalPattern::Rate { per_s, burstiness: 1.0 },
            concurrency: load.concurrency.filter(|users| *users > 0).and_then(|users| u32::try_from(users).ok()),
            ..LoadJob::closed(1, u32::try_from(requests).unwrap_or(u32::MAX))
        };
        return Ok((spec, patient(job), None));
    }
    let users = load.concurrency.ok_or(ContextError::Missing("load.concurrency"))?;
    let tokens = users.saturating_mul(u64::from(output));
    if users == 0 {
        let expected = "a number of at least 1".to_owned();
        return Err(ContextError::Value { field: "load.concurrency", value: users.to_string(), expected });
    }
    if tokens > MAX_TOKENS {
        return Err(ContextError::TooManyTokens { tokens });
    }
    let requests = (users * SESSIONS_PER_USER).max(users + LEAST_SESSIONS);
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    Ok((spec, patient(LoadJob::closed(number(users), number(requests))), Some(users)))
}

/// Returns the lengths of the longest prompt and reply.
fn spec_length(spec: &WorkloadSpec) -> (u32, u32) {
    let most = |length: &TokenLength| match length {
        TokenLength::Exact(length) | TokenLength::BelowMaxModelLen(length) => *length,
        TokenLength::Range { max, .. } => *max,
    };
    match spec {
        WorkloadSpec::Prefix { prefix_len, suffix_len, output_len, .. } => {
            (prefix_len + most(suffix_len), most(output_len))
        }
        WorkloadSpec::Random { input_len, output_len, .. } => (most(input_len), most(output_len)),
        _ => (0, 0),
    }
}

fn shape(model: &ModelContext, max_model_len: u64) -> Result<ModelShape, ContextError> {
    let need =
        |value: Option<u64>, field: &'static str| value.filter(|value| *value > 0).ok_or(ContextError::Missing(field));
    let layers = need(model.num_hidden_layers, "model.num_hidden_layers")?;
    let hidden = need(model.hidden_size, "model.hidden_size")?;
    let vocabulary = need(model.vocab_size, "model.vocab_size")?;
    // Models without the field have four times the width.
    let intermediate = model.intermediate_size.unwrap_or(hidden.saturating_mul(4));
    let heads = model.num_attention_heads.filter(|heads| *heads > 0);
    let head_dim = model.head_dim.or_else(|| heads.map(|heads| hidden / heads)).filter(|size| *size > 0);
    let head_dim = need(head_dim, "model.head_dim")?;
    let heads = heads.unwrap_or((hidden / head_dim).max(1));
    let mut shape = ModelShape::from_json(&json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": model.num_key_value_heads.unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "max_position_embeddings": max_model_len,
        "torch_dtype": model.dtype.as_deref().unwrap_or("bfloat16"),
    }));
    if let Some(unread) = shape.unusable_keys.first() {
        return Err(ContextError::Value {
            field: "model",
            value: unread.clone(),
            expected: "a supported shape of a model".to_owned(),
        });
    }
    if let Some(parameters) = model.parameters {
        let parameters = check_range("model.parameters", parameters, 1e5, 1e13)?;
        let parameters = f64_to_u64(parameters);
        shape.checkpoint_bytes = Some(parameters * shape.dtype_bytes);
    }
    Ok(shape)
}

/// A closed load with users that begin at different points of a reply. The first replies are shortened to different
/// shares, so that the load is in its steady state sooner.
#[derive(Debug)]
struct StaggeredUsers {
    inner: Arc<dyn Workload>,
    users: u64,
}

/// The golden ratio less 1. The fractional parts of its multiples fill the interval from 0 to 1 evenly, for any number
/// of them.
const GOLDEN: f64 = 0.618_033_988_749_895;

impl Workload for StaggeredUsers {
    fn session(&self, index: u64) -> UserSession {
        let mut session = self.inner.session(index);
        if index < self.users {
            let share = (to_f64(index + 1) * GOLDEN).fract();
            for turn in &mut session.turns {
                let length = &mut turn.request.output_len;
                let part = f64_to_u32(f64::from(*length) * share);
                *length = part.max(1);
            }
        }
        session
    }

    fn warmup_session(&self, index: u64) -> UserSession {
        self.inner.warmup_session(index)
    }

    fn longest(&self) -> u64 {
        self.inner.longest()
    }
}
