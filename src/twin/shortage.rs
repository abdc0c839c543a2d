//! Reasons for a failed start that the engine finds only during the start.

use super::{IncompleteShape, MemoryPlan, Settings};
use crate::stats::gib;

/// The reason why an engine would not start on this device. The engine itself finds it only during its start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StartShortage {
    #[error(transparent)]
    Shape(#[from] IncompleteShape),
    /// Since 0.10 the requested share must be free before anything is loaded.
    #[error(
        "gpu-memory-utilization {utilization} asks for {wanted_gib:.2} GiB, and {free_gib:.2} of {total_gib:.2} GiB are free on the device"
    )]
    NotFree { utilization: f64, wanted_gib: f64, free_gib: f64, total_gib: f64 },
    #[error("the weights and the activations leave no memory for the cache")]
    NoCache,
    #[error(
        "the cache has {} blocks ({:.2} GiB), fewer than one request of max-model-len {} needs",
        .plan.blocks, gib(.plan.cache), .settings.resolved.max_model_len
    )]
    Small { plan: MemoryPlan, settings: Box<Settings> },
}
