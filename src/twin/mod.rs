//! The twin: a simulation of vLLM's engine in virtual time, made of scheduler, paged cache and step time. Its results
//! are pure functions of the requests and their times.
//!
//! The simulated server runs it in real time, a prediction as fast as possible. Both get the same schedule.

mod ask;
mod batch;
mod block;
mod calibrate;
mod device;
mod drive;
#[cfg(test)]
mod drive_tests;
mod engine;
mod fleet;
mod frontend;
mod memory;
mod output;
mod profile;
mod queue;
#[cfg(test)]
mod recorded_tests;
mod replica;
mod schedule;
#[cfg(test)]
mod schedule_tests;
mod schedule_v0;
mod sequence;
mod settings;
mod start_failure;
mod source;
mod speed_variation;
mod startup;
#[cfg(test)]
mod startup_tests;
mod step_time;
#[cfg(test)]
mod tests;

pub use ask::{AddError, Tokens, TwinRequest};
pub use batch::{Batch, BatchWork, Item};
pub use calibrate::{
    CalibrateError, Calibration, ObservedRequest, ObservedRun, ReplayError, ReplayedLoad, RequestTimes, calibrate,
    prior_spread, replay,
};
pub use device::DevicePreset;
pub use drive::{Drive, DriveObserver, VirtualReply, drive};
pub use engine::{Counters, StepEvent, TwinEngine, WaitReason};
pub(crate) use fleet::Fleet;
pub use frontend::Frontend;
pub(crate) use frontend::FrontendProcess;
pub use memory::{MemoryPlan, plan_memory};
pub use profile::{LayerProfile, ProfileError};
pub use replica::ScheduledStep;
pub(crate) use replica::StepFlight;
pub use sequence::RequestId;
pub use settings::{LiveLimits, QueueOrder, Scheduling, Settings, SettingsError, Speculation};
pub use source::{NextArrival, RequestSource, SentRequest, TwinArrival, tokens};
pub use speed_variation::{LaunchDraw, LaunchSpeed, SpeedVariation};
pub use start_failure::PredictedStartFailure;
pub use startup::{PhaseForecast, StartConditions, StartForecast, StartupModel, WarmState};
pub use step_time::{Factors, IncompleteShape, Parallel, StepParts, StepTime, TermFactor};

/// Returns the shape of Llama 3 8B.
#[cfg(test)]
pub(crate) fn test_model() -> crate::facts::ModelShape {
    crate::facts::ModelShape::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16"
    }))
}
