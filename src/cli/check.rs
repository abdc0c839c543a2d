//! `check`: a study resolved and validated, or one verdict for each line of a file of arguments.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Global;
use super::failure::{Failure, INVALID};
use super::output::print;
use crate::engine::ENGINES;
use crate::facts::{Device, EngineVersion, Gpu, ModelShape};
use crate::flag::FlagTable;
use crate::job::Job;
use crate::rule::{self, Facts};
use crate::tuner::detect;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The study file.
    #[arg(required_unless_present = "args_file", conflicts_with = "args_file")]
    study: Option<PathBuf>,
    /// Show what each parameter does and when it matters.
    #[arg(long)]
    explain: bool,
    /// One verdict for each line `{"args": ["--max-num-seqs", "64"]}` of this file.
    #[arg(long, value_name = "FILE", requires = "model")]
    args_file: Option<PathBuf>,
    /// The engine whose arguments the file holds.
    #[arg(long, default_value = "vllm", requires = "args_file", value_parser = PossibleValuesParser::new(
        ENGINES.iter().map(|engine| engine.kind())
    ))]
    engine: String,
    /// Its release; the newest known one where this is absent.
    #[arg(long, value_name = "VERSION", requires = "args_file")]
    engine_version: Option<EngineVersion>,
    /// The directory that holds the model's config.json.
    #[arg(long, value_name = "DIR", requires = "args_file")]
    model: Option<PathBuf>,
    /// The device of hardware that need not be present.
    #[arg(long, value_enum, default_value_t = DeviceKind::Cuda, requires = "args_file")]
    device: DeviceKind,
    /// Memory of one device.
    #[arg(long, value_name = "X", requires = "args_file")]
    gpu_memory_gib: Option<f64>,
    /// Number of devices.
    #[arg(long, value_name = "N", requires = "args_file")]
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

impl Check {
    pub(super) async fn run(self, _: &Global) -> Result<(), Failure> {
        match (&self.study, &self.args_file) {
            (Some(study), _) => check_study(study, self.explain).await,
            (None, Some(file)) => self.check_arguments(file),
            (None, None) => Ok(()),
        }
    }

    fn check_arguments(&self, file: &PathBuf) -> Result<(), Failure> {
        let model = ModelShape::read(self.model.as_deref().unwrap_or(std::path::Path::new(".")))
            .map_err(|error| Failure::new(INVALID, error.to_string()))?;
        let version = self.engine_version.unwrap_or_else(FlagTable::newest_release);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size in bytes")]
        let memory = self.gpu_memory_gib.map(|gib| (gib.max(0.0) * f64::from(1 << 30)) as u64);
        let device = match self.device {
            DeviceKind::Cpu => Device::Cpu,
            DeviceKind::Cuda => Device::Cuda(Gpu::described(memory, self.gpus, self.compute_capability)),
        };
        let facts = Facts::new(&model, version, device);
        let unreadable =
            |error: std::io::Error| Failure::new(INVALID, format!("cannot read {}: {error}", file.display()));
        for (index, line) in BufReader::new(std::fs::File::open(file).map_err(unreadable)?).lines().enumerate() {
            let line = line.map_err(unreadable)?;
            if line.trim().is_empty() {
                continue;
            }
            let arguments: Arguments = serde_json::from_str(&line).map_err(|error| {
                Failure::new(INVALID, format!("{}:{}: {error}", file.display(), index + 1))
                    .with_hint(r#"each line is an object such as {"args": ["--max-num-seqs", "64"]}"#)
            })?;
            print(&verdict(&arguments.args, &facts).to_string())?;
        }
        Ok(())
    }
}

fn capability(text: &str) -> Result<(u8, u8), String> {
    Gpu::parse_capability(text).ok_or_else(|| "two numbers are expected, such as 9.0".to_owned())
}

#[derive(serde::Deserialize)]
struct Arguments {
    args: Vec<String>,
}

fn verdict(arguments: &[String], facts: &Facts<'_>) -> serde_json::Value {
    let config = match FlagTable::for_version(facts.version).parse(arguments) {
        Ok(config) => config,
        Err(error) => {
            return json!({"verdict": "reject", "rule": "A1", "message": error.to_string(), "repair": null});
        }
    };
    match rule::check(&config, facts).into_iter().next() {
        None => json!({"verdict": "accept", "rule": null, "message": null, "repair": null}),
        Some(finding) => {
            let verdict = if finding.severity.rejects() { "reject" } else { "warn" };
            let repair = if finding.severity.rejects() { rule::repair(&config, facts) } else { None };
            json!({
                "verdict": verdict, "rule": finding.rule, "severity": finding.severity.name(),
                "message": finding.message, "repair": repair,
            })
        }
    }
}

async fn check_study(file: &std::path::Path, explain: bool) -> Result<(), Failure> {
    let job = Job::read(file)?;
    let installed = detect(&job).await;
    job.check_release(installed.version)?;
    let space = job.parameters();
    let mut lines = vec![
        format!("study         {}", job.name),
        format!("engine        {} {}", job.engine.engine.kind(), describe(&installed)),
        format!("model         {} (length {})", job.model.argument, job.model.shape.max_model_len(installed.version)),
        format!(
            "fixed         {}",
            if space.fixed.is_empty() { "nothing".to_owned() } else { space.fixed.to_string() }
        ),
    ];
    for parameter in &space.parameters {
        let condition = |condition: &crate::space::Condition| {
            let values: Vec<_> = condition.values.iter().map(ToString::to_string).collect();
            format!(", only while {} is {}", condition.parameter, values.join(" or "))
        };
        let when: String = parameter.when.iter().map(condition).collect();
        lines.push(format!("parameter     {}: {}{when}", parameter.name, parameter.domain));
        if explain && let Some(help) = &parameter.help {
            lines.push(format!("              {help}"));
        }
    }
    if let Some(configs) = space.enumerate(1_000_000) {
        lines.push(format!("configurations {}", configs.len()));
    }
    let facts = job.facts(installed.version, installed.device, installed.host_memory);
    let findings = rule::check(&job.with_arguments(&space.fixed, installed.version), &facts);
    lines.push(match findings.first() {
        None => "defaults      accepted".to_owned(),
        Some(finding) if !finding.severity.rejects() => {
            format!("defaults      warning {}: {}", finding.rule, finding.message)
        }
        Some(finding) => format!("defaults      rejected by {}: {}", finding.rule, finding.message),
    });
    print(&lines.join("\n"))?;
    match job.engine.missing_program(file) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

fn describe(installed: &crate::tuner::Installed) -> String {
    let device = match installed.device {
        Device::Cpu => "on the CPU".to_owned(),
        Device::Cuda(gpu) => {
            let what = match gpu.count {
                None => "a GPU".to_owned(),
                Some(1) => "1 GPU".to_owned(),
                Some(count) => format!("{count} GPUs"),
            };
            let memory = gpu.memory.map_or("unknown memory".to_owned(), |memory| format!("{} GiB", memory >> 30));
            let capability = gpu.capability.map(|(major, minor)| format!(", compute capability {major}.{minor}"));
            let reason = installed.undetected.as_ref().map(|reason| format!(" ({reason})"));
            format!("on {what} of {memory}{}{}", capability.unwrap_or_default(), reason.unwrap_or_default())
        }
    };
    let assumed = if installed.assumed { " (assumed: neither the study nor the engine says it)" } else { "" };
    format!("{}{assumed} {device}", installed.version)
}
