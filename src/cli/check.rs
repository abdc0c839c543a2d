//! `check`: validates a study, or prints one verdict for each line of a file of arguments.

mod arguments;
mod engine;
mod first_points;
mod study;
mod render;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};

use super::failure::{CommandFailure, INVALID};
use super::output::note;
use super::{GlobalOptions, OutputFormat};
use crate::engine::{environment, is_variable};
use crate::engines::{ENGINES, default_engine, variable_prefixes};
use crate::facts::{Device, EngineVersion, Gpu, HostLimits, ModelShape};
use crate::rule::{Facts, list_unchecked_of_model};
use crate::stats::gib_to_bytes;

#[derive(Debug, Args)]
pub(super) struct CheckCommand {
    /// The study file (TOML).
    #[arg(required_unless_present = "args_file", conflicts_with = "args_file")]
    study: Option<PathBuf>,
    /// Explain each parameter.
    #[arg(long)]
    explain: bool,
    /// Output format of the study's check.
    #[arg(long, value_enum, default_value_t = OutputFormat::Table, conflicts_with = "args_file")]
    format: OutputFormat,
    /// File with one list of arguments per line, `{"args": ["--max-num-seqs", "64"]}`, to print a verdict on each.
    /// `-` is standard input.
    #[arg(long, value_name = "FILE", requires = "model")]
    args_file: Option<PathBuf>,
    /// Engine of the arguments in the file.
    #[arg(long, default_value = ENGINES[0].name, requires = "args_file", value_parser = PossibleValuesParser::new(
        ENGINES.iter().filter(|kind| kind.has_rules()).map(|kind| kind.name)
    ))]
    engine: String,
    /// Release of the engine. Default: that of the preflight, else the newest known one.
    #[arg(long, value_name = "VERSION", requires = "args_file")]
    engine_version: Option<EngineVersion>,
    /// Directory with the model's config.json.
    #[arg(long, value_name = "DIR", requires = "args_file")]
    model: Option<PathBuf>,
    /// Device of the launch; it need not be present. Default: that of the preflight, else cuda.
    #[arg(long, value_enum, requires = "args_file")]
    device: Option<DeviceKind>,
    /// Python with vLLM, which then also checks each line. Its verdict counts for all that it checks.
    #[arg(long, value_name = "PYTHON", requires = "args_file")]
    preflight: Option<String>,
    /// Environment variable of the launch; repeatable. With --preflight it replaces that of this process.
    #[arg(long = "env", value_name = "NAME=VALUE", requires = "args_file", value_parser = variable)]
    variables: Vec<(String, String)>,
    /// Memory of one device in GiB.
    #[arg(long, value_name = "X", requires = "args_file", value_parser = memory_gib)]
    gpu_memory_gib: Option<f64>,
    /// Number of devices.
    #[arg(long, value_name = "N", requires = "args_file", value_parser = clap::value_parser!(u32).range(1..))]
    gpus: Option<u32>,
    /// Compute capability of the devices, such as 9.0.
    #[arg(long, value_name = "X.Y", requires = "args_file", value_parser = capability)]
    compute_capability: Option<(u8, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceKind {
    Cpu,
    Cuda,
}

impl CheckCommand {
    pub(super) async fn run(self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        match (&self.study, &self.args_file) {
            (Some(study), _) => study::check(study, self.explain, self.format, global).await,
            (None, Some(file)) => self.check_arguments(file, global).await,
            (None, None) => Ok(()),
        }
    }

    async fn check_arguments(&self, file: &Path, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let directory = self.model.as_deref().unwrap_or(Path::new("."));
        let model = ModelShape::read(directory).map_err(|error| CommandFailure::new(INVALID, error.to_string()))?;
        let name = directory.to_string_lossy();
        let engine = default_engine();
        let given: BTreeMap<_, _> = self.variables.iter().cloned().collect();
        let env = if self.preflight.is_some() { environment(&given, &variable_prefixes()) } else { given.clone() };
        let program = engine.preflight().zip(self.preflight.clone());
        let preflight = program.map(|(program, executable)| engine::start(program, executable, &name, given));
        let installed = match &preflight {
            Some(preflight) => Some(preflight.wait_until_ready().await.map_err(|error| engine::no_preflight(&error))?),
            None => None,
        };
        let reported = installed.as_ref().and_then(|installed| installed.version.parse().ok());
        let version = self.engine_version.or(reported).unwrap_or_else(|| engine.newest_release());
        let memory = self.gpu_memory_gib.map(gib_to_bytes);
        let on_cpu = installed.as_ref().is_some_and(|installed| installed.device == "cpu");
        let device = match self.device.unwrap_or(if on_cpu { DeviceKind::Cpu } else { DeviceKind::Cuda }) {
            DeviceKind::Cpu => Device::Cpu,
            DeviceKind::Cuda => Device::Cuda(Gpu::described(memory, self.gpus, self.compute_capability)),
        };
        let mut facts = Facts { env: &env, ..Facts::new(engine.rules(), &model, version, device) };
        // With a preflight, the checked engine runs on this host, so the host's limits apply.
        if let Some(installed) = &installed {
            facts = Facts { host: HostLimits::detect(), missing_packages: Some(&installed.missing_packages), ..facts };
        }
        let table =
            engine.flag_table(version).ok_or_else(|| CommandFailure::new(INVALID, "the engine's flags are unknown"))?;
        let check = arguments::ArgsFileCheck { facts: &facts, table, model: &name, preflight: preflight.as_ref() };
        for what in list_unchecked_of_model(&model) {
            note(global, &format!("not checked: {what}"));
        }
        let checked = arguments::run(file, check, global).await;
        if let Some(preflight) = preflight {
            preflight.stop().await;
        }
        checked
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if is_variable(name) => Ok((name.to_owned(), value.to_owned())),
        Some((name, _)) => Err(format!("{name:?} is not a valid name for an environment variable")),
        None => Err("expected NAME=VALUE, such as CUDA_VISIBLE_DEVICES=0".to_owned()),
    }
}

fn memory_gib(text: &str) -> Result<f64, String> {
    let gib = text.parse().ok().filter(|gib| *gib > 0.0 && *gib < 1e6);
    gib.ok_or_else(|| "expected the memory of a GPU in GiB, such as 79.2".to_owned())
}

fn capability(text: &str) -> Result<(u8, u8), String> {
    Gpu::parse_capability(text).ok_or_else(|| "expected two numbers, such as 9.0".to_owned())
}
