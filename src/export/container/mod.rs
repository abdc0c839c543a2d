//! Formats that start the server in a container. All of them write one [`ExportedServer`].

mod comments;
mod compose;
mod docker;
mod kserve;
mod kubernetes;
mod llm_d;
mod pod;
mod production_stack;
mod server;
#[cfg(test)]
mod tests;
mod word;

pub(super) use compose::ComposeExporter;
pub(super) use docker::DockerExporter;
pub(super) use kserve::KserveExporter;
pub(super) use kubernetes::KubernetesExporter;
pub(super) use llm_d::LlmDExporter;
pub(super) use production_stack::ProductionStackExporter;
pub(super) use server::ContainerError;

use server::{ExportedServer, ModelPlace};

/// The port of the server within its container.
const PORT: u16 = 8000;

/// The folder of downloaded models in an image whose user is root.
const HUB_CACHE: &str = "/root/.cache/huggingface";
