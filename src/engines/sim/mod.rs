//! The simulated engine: `setpoint sim serve`, a process of its own with vLLM's flags.

pub(crate) mod process;

use std::path::PathBuf;
use std::sync::Arc;

use super::EngineKind;
use super::vllm::Vllm;
use crate::config::Config;
use crate::engine::{Engine, Evidence, LaunchSpec, LogReader, MetricsPage, Readiness, Simulated, TwinModel};
use crate::facts::{Device, EngineVersion};
use crate::flag::{FlagBook, FlagError};
use crate::rule::EngineRules;
use crate::trial::Failure;

/// The name in study files.
const KIND: &str = "sim";

/// The registry entry of the simulated engine.
pub(super) static ENGINE: EngineKind =
    EngineKind { name: KIND, variables: &[], read: |_| Ok(engine()), built_in: Some(engine) };

#[derive(Debug)]
pub(super) struct Sim;

fn engine() -> Arc<dyn Engine> {
    Arc::new(Sim)
}

/// Most methods delegate to `Vllm`, because the simulated engine has vLLM's flags, log lines, pages and processes.
impl Engine for Sim {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        Ok(vec![program, "sim".to_owned(), "serve".to_owned()])
    }

    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<Vec<String>, FlagError> {
        Vllm.command_line(spec)
    }

    fn flags(&self) -> Option<&'static FlagBook> {
        Vllm.flags()
    }

    fn inline_config_file(
        &self,
        words: Vec<String>,
        version: EngineVersion,
        find: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<Vec<String>, String> {
        Vllm.inline_config_file(words, version, find)
    }

    fn passes_config_file(&self, command: &[String]) -> bool {
        Vllm.passes_config_file(command)
    }

    fn rules(&self) -> Option<&'static dyn EngineRules> {
        Vllm.rules()
    }

    fn twin(&self) -> Option<&'static dyn TwinModel> {
        Vllm.twin()
    }

    fn log_reader(&self) -> Option<&dyn LogReader> {
        Vllm.log_reader()
    }

    fn diagnose(&self, evidence: &Evidence<'_>) -> Failure {
        Vllm.diagnose(evidence)
    }

    fn readiness(&self) -> Readiness {
        Vllm.readiness()
    }

    fn dialect(&self) -> &'static str {
        Vllm.dialect()
    }

    fn metrics(&self) -> Option<MetricsPage> {
        Vllm.metrics()
    }

    fn api_key_variable(&self) -> Option<&str> {
        Vllm.api_key_variable()
    }

    fn memory_variables(&self) -> &'static [&'static str] {
        Vllm.memory_variables()
    }

    fn process_title(&self) -> Option<&'static str> {
        Vllm.process_title()
    }

    fn version_args(&self, version: EngineVersion) -> Vec<String> {
        vec!["--sim-vllm-version".to_owned(), version.to_string()]
    }

    fn port_variable(&self, config: &Config) -> Option<&'static str> {
        Vllm.port_variable(config)
    }

    fn device(&self, args: &[String], _: Option<&str>) -> Option<Device> {
        process::Options::simulated(args).map(|simulated| simulated.device.device())
    }

    fn computes(&self) -> bool {
        false
    }

    fn simulated(&self, args: &[String]) -> Option<Simulated> {
        process::Options::simulated(args)
    }

    /// Returns whether a space of this engine fits; those for vLLM do, because the flags are vLLM's.
    fn takes_space_of(&self, kind: &str) -> bool {
        kind == self.kind() || Vllm.takes_space_of(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::DevicePreset;

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
