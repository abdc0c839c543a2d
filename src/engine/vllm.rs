//! vLLM: `vllm serve`.

use super::{Engine, python_of};
use crate::facts::{Device, EngineVersion};

pub(super) struct Vllm;

/// Asks the package's metadata, which takes milliseconds; `vllm --version` imports the engine first.
const PRINT_VERSION: &str = "import importlib.metadata; print(importlib.metadata.version('vllm'))";

impl Engine for Vllm {
    fn kind(&self) -> &'static str {
        "vllm"
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        Ok(vec!["vllm".to_owned(), "serve".to_owned()])
    }

    fn version_args(&self, _: EngineVersion) -> Vec<String> {
        Vec::new()
    }

    fn version_probe(&self, command: &[String]) -> Option<Vec<String>> {
        Some(vec![python_of(command, "vllm")?, "-c".to_owned(), PRINT_VERSION.to_owned()])
    }

    fn device(&self, _: &[String], version: Option<&str>) -> Option<Device> {
        version.is_some_and(|version| version.ends_with("+cpu")).then_some(Device::Cpu)
    }
}
