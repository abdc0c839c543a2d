//! Start-up failures that the twin predicts, most of them for lack of device memory.

use super::{IncompleteShape, MemoryPlan, Settings};
use crate::stats::gib;

/// The predicted reason why an engine fails to start on this device. The real engine detects it only during start-up,
/// not when it parses its arguments.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictedStartFailure {
    /// The model's `config.json` lacks a size that the twin needs.
    #[error(transparent)]
    Shape(#[from] IncompleteShape),
    /// The share of the device's memory that `gpu-memory-utilization` requests is not free. vLLM checks this before it
    /// loads the model, from release 0.10 on.
    #[error(
        "gpu-memory-utilization {utilization} requests {wanted_gib:.2} GiB, but {free_gib:.2} of {total_gib:.2} GiB are free on the device"
    )]
    MemoryNotFree { utilization: f64, wanted_gib: f64, free_gib: f64, total_gib: f64 },
    #[error("the weights and the activations leave no memory for the KV cache")]
    NoCache,
    #[error(
        "the KV cache has {} blocks ({:.2} GiB), fewer than one request of max-model-len {} needs",
        .plan.blocks, gib(.plan.cache), .settings.resolved.max_model_len
    )]
    CacheTooSmall { plan: MemoryPlan, settings: Box<Settings> },
}
