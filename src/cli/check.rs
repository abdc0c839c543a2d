//! `check`: a study resolved and validated, or one verdict for each line of a file of arguments.

mod study;
mod tell;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::failure::{Failure, INVALID};
use super::output::print;
use super::{Format, Global};
use crate::engine::ENGINES;
use crate::facts::{Device, EngineVersion, Gpu, ModelShape};
use crate::flag::FlagTable;
use crate::rule::{self, Facts};

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The study file.
    #[arg(required_unless_present = "args_file", conflicts_with = "args_file")]
    study: Option<PathBuf>,
    /// Show what each parameter does and when it matters.
    #[arg(long)]
    explain: bool,
    /// How the study's check is printed.
    #[arg(long, value_enum, default_value_t = Format::Table, conflicts_with = "args_file")]
    format: Format,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceKind {
    Cpu,
    Cuda,
}

impl Check {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        match (&self.study, &self.args_file) {
            (Some(study), _) => study::check(study, self.explain, self.format, global).await,
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
            DeviceKind::Cuda => Device::Cuda(Gpu { memory, ..Gpu::default() }),
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
