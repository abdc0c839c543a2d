//! The simulated engine: `setpoint sim serve`, a process of its own with vLLM's flags.

use super::{Engine, Simulated};
use crate::config::Config;
use crate::facts::{Device, EngineVersion};
use crate::twin::DevicePreset;

pub(super) struct Sim;

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

    fn has_preflight(&self) -> bool {
        false
    }

    fn preflight_python(&self, _: &[String]) -> Option<String> {
        None
    }

    fn port_variable(&self, config: &Config) -> Option<&'static str> {
        super::vllm::Vllm.port_variable(config)
    }

    fn device(&self, args: &[String], _: Option<&str>) -> Option<Device> {
        let mut name = DevicePreset::DEFAULT;
        let mut args = args.iter().map(String::as_str);
        while let Some(argument) = args.next() {
            let (flag, value) = argument.split_once('=').map_or((argument, None), |(flag, value)| (flag, Some(value)));
            if flag == "--sim-device" || flag == "--sim_device" {
                name = value.or_else(|| args.next())?;
            }
        }
        DevicePreset::find(name).map(DevicePreset::device)
    }

    fn computes(&self) -> bool {
        false
    }

    fn simulated(&self, args: &[String]) -> Option<Simulated> {
        Simulated::read(args)
    }

    /// It has vLLM's flags.
    fn takes_space_of(&self, kind: &str) -> bool {
        kind == self.kind() || super::vllm::Vllm.takes_space_of(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_read_as_the_simulated_engine_reads_it() {
        let device = |line: &str| {
            let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            Sim.device(&args, None)
        };
        let preset = |name| DevicePreset::find(name).map(DevicePreset::device);
        assert_eq!(device(""), preset(DevicePreset::DEFAULT));
        assert_eq!(device("--sim-seed 1 --sim-device l4"), preset("l4"));
        assert_eq!(device("--sim-device=l4"), preset("l4"));
        assert_eq!(device("--sim-device l4 --sim_device=cpu"), Some(Device::Cpu), "the last one wins");
        assert_eq!(device("--sim-device"), None);
    }
}
