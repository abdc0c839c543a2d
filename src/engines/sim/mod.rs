//! The simulated engine: `setpoint sim serve`, a process of its own with vLLM's flags.

pub(crate) mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::EngineKind;
use super::vllm::VllmEngine;
use crate::config::Config;
use crate::engine::{
    ConfigFileEntries, ConfigFileFlags, ConfigFileProblem, Engine, EngineEvidence, LaunchSpec, LiveHelper, LogReader,
    MetricsPage, Readiness, RecipeFormat, ServerStarts, ServingProjects, SimulatedLaunch, TwinModel,
};
use crate::facts::{Device, EngineVersion};
use crate::flag::{FlagBook, FlagError};
use crate::rule::EngineRules;
use crate::trial::{CommandLine, Failure, LiveKnob, LiveRange};
use crate::twin::LaunchDraw;

/// The name in study files.
const KIND: &str = "sim";

/// The registry entry of the simulated engine.
pub(super) static ENGINE: EngineKind =
    EngineKind { name: KIND, variables: &[], read: |_| Ok(engine()), built_in: Some(engine) };

/// The simulated engine reads the files of live knobs itself.
static LIVE_HELPER: LiveHelper = LiveHelper {
    knobs: &[
        LiveKnob { flag: "max-num-seqs", range: LiveRange::UpToLaunched },
        LiveKnob { flag: "max-num-batched-tokens", range: LiveRange::UpToLaunched },
        LiveKnob { flag: "long-prefill-token-threshold", range: LiveRange::Any },
        LiveKnob { flag: "enable-prefix-caching", range: LiveRange::Off },
    ],
    files: &[],
    arguments: &["--sim-live-folder", "{folder}"],
    search_path: None,
    accepts: |config| config.get_i64("data-parallel-size").unwrap_or(1) <= 1,
};

#[derive(Debug)]
pub(super) struct SimEngine;

fn engine() -> Arc<dyn Engine> {
    Arc::new(SimEngine)
}

/// Most methods delegate to `VllmEngine`, because the simulated engine has vLLM's flags, log lines, pages and
/// processes.
impl Engine for SimEngine {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        Ok(vec![program, "sim".to_owned(), "serve".to_owned()])
    }

    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<CommandLine, FlagError> {
        VllmEngine.command_line(spec)
    }

    fn flags(&self) -> Option<&'static FlagBook> {
        VllmEngine.flags()
    }

    fn inline_config_file(
        &self,
        words: Vec<String>,
        version: EngineVersion,
        find: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<Vec<String>, String> {
        VllmEngine.inline_config_file(words, version, find)
    }

    fn read_config_file(
        &self,
        text: &str,
        version: EngineVersion,
    ) -> Option<Result<ConfigFileFlags, ConfigFileProblem>> {
        VllmEngine.read_config_file(text, version)
    }

    fn config_file_entries(
        &self,
        arguments: &[String],
        version: EngineVersion,
    ) -> Option<Result<ConfigFileEntries, String>> {
        VllmEngine.config_file_entries(arguments, version)
    }

    fn server_starts(&self) -> Option<&'static ServerStarts> {
        VllmEngine.server_starts()
    }

    fn recipes(&self) -> Option<&'static RecipeFormat> {
        VllmEngine.recipes()
    }

    fn deployed_arguments(&self, arguments: &[String]) -> Vec<String> {
        process::SimOptions::without_simulation(arguments)
    }

    fn serving_projects(&self) -> Option<&'static ServingProjects> {
        VllmEngine.serving_projects()
    }

    fn passes_config_file(&self, command: &[String]) -> bool {
        VllmEngine.passes_config_file(command)
    }

    fn lossy_flags(&self) -> &'static [&'static str] {
        VllmEngine.lossy_flags()
    }

    fn rules(&self) -> Option<&'static dyn EngineRules> {
        VllmEngine.rules()
    }

    fn twin(&self) -> Option<&'static dyn TwinModel> {
        VllmEngine.twin()
    }

    fn log_reader(&self) -> Option<&dyn LogReader> {
        VllmEngine.log_reader()
    }

    fn diagnose(&self, evidence: &EngineEvidence<'_>) -> Failure {
        VllmEngine.diagnose(evidence)
    }

    fn readiness(&self) -> Readiness {
        VllmEngine.readiness()
    }

    fn dialect(&self) -> &'static str {
        VllmEngine.dialect()
    }

    fn metrics(&self) -> Option<MetricsPage> {
        VllmEngine.metrics()
    }

    fn api_key_variable(&self) -> Option<&str> {
        VllmEngine.api_key_variable()
    }

    fn memory_variables(&self) -> &'static [&'static str] {
        VllmEngine.memory_variables()
    }

    fn process_title(&self) -> Option<&'static str> {
        VllmEngine.process_title()
    }

    fn version_args(&self, version: EngineVersion) -> Vec<String> {
        vec!["--sim-vllm-version".to_owned(), version.to_string()]
    }

    /// Returns the helper if the study's arguments have `--sim-live-looks yes`.
    fn live_helper(&self, _: &[String], arguments: &[String], _: EngineVersion) -> Option<&'static LiveHelper> {
        let is_on = |pair: &[String]| pair[0] == "--sim-live-looks" && pair[1] == "yes";
        arguments.windows(2).any(is_on).then_some(&LIVE_HELPER)
    }

    fn port_variable(&self, config: &Config) -> Option<&'static str> {
        VllmEngine.port_variable(config)
    }

    fn device(&self, args: &[String], _: Option<&str>) -> Option<Device> {
        process::SimOptions::simulated(args).map(|simulated| simulated.device.device())
    }

    fn runs_model(&self) -> bool {
        false
    }

    fn simulated(&self, args: &[String]) -> Option<SimulatedLaunch> {
        process::SimOptions::simulated(args)
    }

    fn launch_variables(&self, launch: LaunchDraw, study_age: Duration) -> BTreeMap<String, String> {
        let value = process::StudyLaunch { draw: launch, study_age }.to_string();
        BTreeMap::from([(process::StudyLaunch::VARIABLE.to_owned(), value)])
    }

    fn first_space(&self, _device: Device, _has_experts: bool) -> Option<&'static str> {
        Some("search_spaces/sim/core.toml")
    }

    /// Also accepts search spaces for vLLM, because the flags are vLLM's.
    fn takes_space_of(&self, kind: &str) -> bool {
        kind == self.kind() || VllmEngine.takes_space_of(kind)
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
            SimEngine.device(&args, None)
        };
        let preset = |name| DevicePreset::find(name).map(DevicePreset::device);
        assert_eq!(device(""), preset(DevicePreset::DEFAULT));
        assert_eq!(device("--sim-seed 1 --sim-device l4"), preset("l4"));
        assert_eq!(device("--sim-device=l4"), preset("l4"));
        assert_eq!(device("--sim-device l4 --sim_device=cpu"), Some(Device::Cpu), "the last one wins");
        assert_eq!(device("--sim-device"), None);
    }
}
