//! The vLLM engine, launched by `vllm serve`.

mod compile_key;
mod config_file;
mod config_file_entries;
mod container;
mod defaults;
mod flags;
mod live;
mod log;
mod memory_launch;
mod recipe_format;
mod rules;
mod twin;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::compile_key::compile_key;
use self::config_file::{inline_config_file, passes_config_file, read_config_file};
use self::config_file_entries::config_file_entries;
use self::container::{PROJECTS, container_image};
pub use self::defaults::resolve_config;
pub use self::flags::FLAGS;
use self::log::{VllmLog, diagnose};
pub use self::rules::{VLLM_RULES, memory_launch, optional_packages};
pub use self::twin::TWIN;
use super::EngineKind;
use crate::config::Config;
use crate::engine::{
    ConfigFileEntries, ConfigFileFlags, ConfigFileProblem, Engine, EngineEvidence, FastStart, LaunchSpec, LiveHelper,
    LogReader, MetricsPage, ModelNameCheck, PreflightProgram, PythonPreflight, Readiness, RecipeFormat, ReleasePage,
    ServerStarts, ServingProjects, TwinModel, python_of,
};
use crate::facts::{Device, EngineVersion};
use crate::flag::{FlagBook, FlagError};
use crate::rule::EngineRules;
use crate::trial::{CommandLine, Failure};

/// The name in study files.
const KIND: &str = "vllm";

/// vLLM in the registry.
pub(super) static ENGINE: EngineKind =
    EngineKind { name: KIND, variables: &["VLLM_"], read: |_| Ok(engine()), built_in: Some(engine) };

pub(super) fn engine() -> Arc<dyn Engine> {
    Arc::new(VllmEngine)
}

/// The variable with vLLM's API key (`vllm/envs.py`). Unlike an argument it is not visible in a list of processes.
pub(crate) const API_KEY_VARIABLE: &str = "VLLM_API_KEY";

#[derive(Debug)]
pub(super) struct VllmEngine;

/// Python code that prints the version in the package's metadata. It takes milliseconds, while `vllm --version` imports
/// the engine first.
const PRINT_VERSION: &str = "import importlib.metadata; print(importlib.metadata.version('vllm'))";

/// The commands and images that start vLLM's server. The images' entry point was the module
/// `vllm.entrypoints.openai.api_server` first, and is `vllm serve` now (`docker/Dockerfile`). Both have the same flags.
static STARTS: ServerStarts = ServerStarts {
    program: &["vllm", "serve"],
    in_image: &["vllm", "serve"],
    // The image need not have another program for it.
    request: &["python3", "-c", "import urllib.request; urllib.request.urlopen('{url}', timeout=10)"],
    modules: &[
        &["vllm.entrypoints.openai.api_server"],
        &["vllm.entrypoints.cli.main", "serve"],
        &["vllm.entrypoints.api_server"],
        &["vllm", "serve"],
    ],
    images: &["vllm-openai", "vllm-cpu", "vllm-rocm", "vllm-tpu", "vllm-xpu"],
};

/// Flags that may change the replies: number formats, the kernels of the attention, and speculation, which is exact only
/// up to rounding. Parameters of search spaces that set a part of such a flag are among them.
const LOSSY_FLAGS: [&str; 13] = [
    "attention-backend",
    "calculate-kv-scales",
    "dtype",
    "kv-cache-dtype",
    "num-speculative-tokens",
    "quantization",
    "spec-method",
    "spec-model",
    "spec-tokens",
    "speculative-config",
    "speculative-disable-by-batch-size",
    "speculative-model",
    "quantization-param-path",
];

/// Modules that the API server, the engine's process and the workers import, at their places since 0.10.
const IMPORTED_MODULES: [&str; 15] = [
    "setproctitle",
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.core.sched.async_scheduler",
    "torch._inductor.compile_fx",
    "uvicorn.protocols.http.httptools_impl",
];

/// Wrappers that run the engine on this machine and in the same environment.
const TRANSPARENT: [&str; 6] = ["chrt", "ionice", "nice", "numactl", "stdbuf", "taskset"];

impl Engine for VllmEngine {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<CommandLine, FlagError> {
        spec.command_line(FLAGS.for_version(spec.version))
    }

    fn flags(&self) -> Option<&'static FlagBook> {
        Some(&FLAGS)
    }

    fn inline_config_file(
        &self,
        words: Vec<String>,
        version: EngineVersion,
        find: &dyn Fn(&str) -> Option<PathBuf>,
    ) -> Result<Vec<String>, String> {
        inline_config_file(words, FLAGS.for_version(version), find).map_err(|error| error.to_string())
    }

    fn read_config_file(
        &self,
        text: &str,
        version: EngineVersion,
    ) -> Option<Result<ConfigFileFlags, ConfigFileProblem>> {
        Some(read_config_file(text, FLAGS.for_version(version)))
    }

    fn config_file_entries(
        &self,
        arguments: &[String],
        version: EngineVersion,
    ) -> Option<Result<ConfigFileEntries, String>> {
        Some(config_file_entries(arguments, FLAGS.for_version(version)))
    }

    fn server_starts(&self) -> Option<&'static ServerStarts> {
        Some(&STARTS)
    }

    fn lossy_flags(&self) -> &'static [&'static str] {
        &LOSSY_FLAGS
    }

    fn recipes(&self) -> Option<&'static RecipeFormat> {
        Some(&recipe_format::RECIPES)
    }

    fn container_image(&self, reported: &str, _has_gpu: bool) -> Option<String> {
        container_image(reported)
    }

    fn serving_projects(&self) -> Option<&'static ServingProjects> {
        Some(&PROJECTS)
    }

    fn passes_config_file(&self, command: &[String]) -> bool {
        passes_config_file(command)
    }

    fn rules(&self) -> Option<&'static dyn EngineRules> {
        Some(VLLM_RULES)
    }

    fn twin(&self) -> Option<&'static dyn TwinModel> {
        Some(TWIN)
    }

    fn log_reader(&self) -> Option<&dyn LogReader> {
        Some(&VllmLog)
    }

    fn diagnose(&self, evidence: &EngineEvidence<'_>) -> Failure {
        diagnose(evidence)
    }

    /// Returns `/health`, which answers as soon as the HTTP server is up.
    fn readiness(&self) -> Readiness {
        Readiness {
            health: Some("/health".to_owned()),
            log: None,
            model_name: ModelNameCheck::Required,
            release: ReleasePage::USUAL,
        }
    }

    fn dialect(&self) -> &'static str {
        KIND
    }

    fn metrics(&self) -> Option<MetricsPage> {
        Some(MetricsPage::usual())
    }

    fn api_key_variable(&self) -> Option<&str> {
        Some(API_KEY_VARIABLE)
    }

    fn memory_variables(&self) -> &'static [&'static str] {
        &["VLLM_CPU_KVCACHE_SPACE", "VLLM_USE_V1", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"]
    }

    /// Returns the prefix that `set_process_title` of `vllm/utils/system_utils.py` uses since 0.10.
    fn process_title(&self) -> Option<&'static str> {
        Some("VLLM::")
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        Ok(vec!["vllm".to_owned(), "serve".to_owned()])
    }

    fn first_space(&self, device: Device, has_experts: bool) -> Option<&'static str> {
        let has_several = device.gpu().and_then(|gpu| gpu.count).is_some_and(|count| count > 1);
        Some(match device {
            Device::Cpu => "search_spaces/vllm/cpu.toml",
            Device::Cuda(_) if has_experts => "search_spaces/vllm/moe.toml",
            Device::Cuda(_) if has_several => "search_spaces/vllm/multi-gpu.toml",
            Device::Cuda(_) => "search_spaces/vllm/core.toml",
        })
    }

    fn version_probe(&self, command: &[String]) -> Option<Vec<String>> {
        Some(vec![python_of(command, "vllm")?, "-c".to_owned(), PRINT_VERSION.to_owned()])
    }

    fn preflight(&self) -> Option<PreflightProgram> {
        Some(PreflightProgram::Python(PythonPreflight {
            engine: "vLLM",
            source: include_str!("preflight.py"),
            packages: optional_packages().collect(),
            // Otherwise the engine would send a usage report for each configuration that it creates.
            variables: &[("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")],
        }))
    }

    /// Returns the Python of a direct command only. Other wrappers may run the engine elsewhere, or in another
    /// environment.
    fn preflight_executable(&self, command: &[String]) -> Option<String> {
        let name = |word: &str| Path::new(word).file_name()?.to_str().map(str::to_owned);
        let is_python = |word: &str| name(word).is_some_and(|name| name.starts_with("python"));
        let first = command.first()?;
        let direct =
            is_python(first) || name(first).is_some_and(|name| name == "vllm" || TRANSPARENT.contains(&&*name));
        python_of(command, "vllm").filter(|python| direct && is_python(python))
    }

    /// Returns the helper for a direct command only, because its files must be where the server runs.
    fn live_helper(
        &self,
        command: &[String],
        arguments: &[String],
        version: EngineVersion,
    ) -> Option<&'static LiveHelper> {
        self.preflight_executable(command)?;
        live::helper(arguments, version)
    }

    fn fast_start(&self, command: &[String]) -> Option<FastStart> {
        FastStart::of_command(command, "vllm", &IMPORTED_MODULES)
    }

    /// Returns `VLLM_PORT`, or `None` for several data-parallel engines. `get_open_port` of
    /// `vllm/utils/network_utils.py` chooses the first free port from `VLLM_PORT` on. Data-parallel engines choose at
    /// the same time, before any of them has bound its port.
    fn port_variable(&self, config: &Config) -> Option<&'static str> {
        let engines = config.get_i64("data-parallel-size").unwrap_or(1);
        (engines <= 1).then_some("VLLM_PORT")
    }

    fn device(&self, _: &[String], version: Option<&str>) -> Option<Device> {
        version.is_some_and(|version| version.ends_with("+cpu")).then_some(Device::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_search_ports_at_the_same_time_get_no_port_variable() {
        assert_eq!(VllmEngine.port_variable(&Config::new().with("tensor-parallel-size", 4_i64)), Some("VLLM_PORT"));
        assert_eq!(VllmEngine.port_variable(&Config::new().with("data-parallel-size", 2_i64)), None);
    }

    #[test]
    fn only_an_engine_that_is_run_directly_has_a_python_to_ask() {
        let directory = tempfile::tempdir().unwrap();
        let script = |name: &str, first: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, first).unwrap();
            path.to_string_lossy().into_owned()
        };
        let vllm = script("a/vllm", "#!/opt/venv/bin/python3\n");
        let shell = script("b/vllm", "#!/bin/sh\nexec docker run vllm serve\n");
        for (command, expected) in [
            (format!("{vllm} serve"), Some("/opt/venv/bin/python3")),
            ("/usr/bin/python3.11 -m vllm.entrypoints.cli.main serve".to_owned(), Some("/usr/bin/python3.11")),
            (format!("numactl -N 0 {vllm} serve"), Some("/opt/venv/bin/python3")),
            (format!("srun {vllm} serve"), None),
            (format!("{shell} serve"), None),
            ("docker run image".to_owned(), None),
        ] {
            let words: Vec<_> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(VllmEngine.preflight_executable(&words).as_deref(), expected, "{command}");
        }
    }
}
