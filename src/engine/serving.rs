//! Names that projects for serving on Kubernetes give to an engine's arguments.

use crate::facts::EngineVersion;

/// Names that projects for serving on Kubernetes give to an engine's arguments.
#[derive(Clone, Copy, Debug)]
pub struct ServingProjects {
    /// The variable with further arguments in the template of KServe's `LLMInferenceService`. Its value is a part of a
    /// shell command.
    pub arguments_variable: &'static str,
    /// The group of the Helm values of the engine's own chart that contains [`ChartKey::key`].
    pub chart_group: &'static str,
    /// Flags with a key of their own in that group.
    pub chart_keys: &'static [ChartKey],
}

/// A flag with a key of its own in the values of a Helm chart.
#[derive(Clone, Copy, Debug)]
pub struct ChartKey {
    pub flag: &'static str,
    pub key: &'static str,
    /// The value to state if the flag is not set, because the chart replaces the engine's default otherwise.
    pub stated_default: Option<fn(EngineVersion) -> bool>,
}
