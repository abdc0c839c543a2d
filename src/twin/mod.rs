//! The engine in virtual time: scheduler, paged cache and step time as pure functions of requests and their times.
//!
//! The simulated server runs it against the clock, a prediction as fast as it can; both see the same schedule.

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
mod shortage;
mod source;
mod startup;
#[cfg(test)]
mod startup_tests;
mod step_time;
#[cfg(test)]
mod tests;

pub use ask::{AddError, Ask, Tokens};
pub use batch::{Batch, Item, Work};
pub use calibrate::{
    CalibrateError, Calibration, Load, Observed, ReplayError, Run, Times, calibrate, prior_spread, replay,
};
pub use device::DevicePreset;
pub use drive::{Drive, Observer, Reply, drive};
pub use engine::{Counters, Engine, Event, Wait};
pub(crate) use fleet::Fleet;
pub(crate) use frontend::Desk;
pub use frontend::Frontend;
pub use memory::{MemoryPlan, kv_blocks};
pub use profile::{LayerProfile, ProfileError};
pub(crate) use replica::Flight;
pub use replica::Seen;
pub use sequence::RequestId;
pub use settings::{Order, Scheduling, Settings, SettingsError, Speculation};
pub use shortage::Shortage;
pub use source::{Arrival, Asked, Next, Source, tokens};
pub use startup::{Forecast, Part, Start, StartupModel, Warm};
pub use step_time::{Factor, Factors, IncompleteShape, Parallel, Parts, StepTime};

/// Returns the shape of Llama 3 8B.
#[cfg(test)]
pub(crate) fn test_model() -> crate::facts::ModelShape {
    crate::facts::ModelShape::from_json(&serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16"
    }))
}
