//! Division of one model among several devices, and the messages between them.

use crate::config::ResolvedConfig;

/// The devices among which one copy of the model is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallel {
    /// Number of devices among which every layer is divided.
    pub tensor: u32,
    /// Number of stages among which the layers are divided.
    pub pipeline: u32,
}

impl Parallel {
    /// A single device.
    pub const NONE: Self = Self { tensor: 1, pipeline: 1 };

    /// Returns the devices of a resolved configuration.
    #[must_use]
    pub fn of(resolved: &ResolvedConfig) -> Self {
        let narrow = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        Self { tensor: narrow(resolved.tensor_parallel_size), pipeline: narrow(resolved.pipeline_parallel_size) }
    }
}

/// Seconds of a step's messages between devices. An all-reduce of `b` bytes among `t` devices costs one latency and `2
/// (t - 1) / t b` bytes on the link. Each layer has two, after attention and after the feed-forward. Each stage sends
/// its output to the next one once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Communication {
    /// Seconds per step.
    pub(super) step_s: f64,
    /// Seconds per token.
    pub(super) token_s: f64,
}

impl Communication {
    /// `token_bytes` is the size of one token's hidden state, `bandwidth` is in bytes per second.
    pub(super) fn new(parallel: Parallel, layers: f64, token_bytes: f64, latency_s: f64, bandwidth: f64) -> Self {
        let tensor = f64::from(parallel.tensor.max(1));
        // The embedding is divided as well and needs one more.
        let reductions = if parallel.tensor > 1 { 2.0 * layers + 1.0 } else { 0.0 };
        let sends = f64::from(parallel.pipeline.max(1) - 1);
        Self {
            step_s: (reductions + sends) * latency_s,
            token_s: (reductions * 2.0 * (tensor - 1.0) / tensor + sends) * token_bytes / bandwidth,
        }
    }

    pub(super) fn time(self, tokens: f64) -> f64 {
        self.step_s + self.token_s * tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_needs_no_communication() {
        let alone = Communication::new(Parallel::NONE, 32.0, 8192.0, 5e-6, 1e11);
        assert!(alone.time(4096.0).abs() < 1e-15);
    }

    #[test]
    fn a_large_all_reduce_takes_what_was_measured_on_eight_h100s() {
        // `aiconfigurator`: 33.5 MB among eight H100s take 362 microseconds, 1 MB 21.
        let eight = Communication::new(Parallel { tensor: 8, pipeline: 1 }, 0.0, 1.0, 4.7e-6, 165e9);
        let (large, small) = (eight.time(33_554_432.0), eight.time(1_048_576.0));
        assert!((large / 362e-6 - 1.0).abs() < 0.05, "{large}");
        assert!((small / 21e-6 - 1.0).abs() < 0.3, "{small}");
    }
}
