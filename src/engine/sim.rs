//! The simulated engine: `setpoint sim serve`, a process of its own with vLLM's flags.

use super::Engine;
use crate::facts::{Device, EngineVersion};
use crate::twin::DevicePreset;

pub(super) struct Sim;

/// What `--sim-device` is where it is not given.
const DEFAULT_DEVICE: &str = "h100";

impl Engine for Sim {
    fn kind(&self) -> &'static str {
        "sim"
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        Ok(vec![program, "sim".to_owned(), "serve".to_owned()])
    }

    fn version_args(&self, version: EngineVersion) -> Vec<String> {
        vec!["--sim-vllm-version".to_owned(), version.to_string()]
    }

    fn version_probe(&self, _: &[String]) -> Option<Vec<String>> {
        None
    }

    fn device(&self, args: &[String], _: Option<&str>) -> Option<Device> {
        let given = args.iter().position(|argument| argument == "--sim-device");
        let name = given.and_then(|index| args.get(index + 1)).map_or(DEFAULT_DEVICE, String::as_str);
        DevicePreset::find(name).map(DevicePreset::device)
    }
}
