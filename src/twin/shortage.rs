//! Reasons for which an engine would not start, as it finds out after its start only.

use super::{IncompleteShape, MemoryPlan, Settings};
use crate::stats::gib;

/// Why an engine would not start on this device, as it finds out after its start only.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Shortage {
    #[error(transparent)]
    Shape(#[from] IncompleteShape),
    /// Since 0.10 the share that is asked for must be free before anything is loaded.
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
