//! A study resolved and validated, without a server.

use crate::cli::Failure;
use crate::cli::output::print;
use crate::facts::{Device, Gpu};
use crate::job::Job;
use crate::space::Condition;
use crate::tuner::{Installed, detect};

pub(super) async fn check(file: &std::path::Path, explain: bool) -> Result<(), Failure> {
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
        let condition = |condition: &Condition| {
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
    let search = job.search(installed.version, installed.device);
    let findings = search.findings(&space.fixed);
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

fn describe(installed: &Installed) -> String {
    let device = match installed.device {
        Device::Cpu => "on the CPU".to_owned(),
        Device::Cuda(Gpu { memory: None, .. }) => "on a GPU of unknown memory".to_owned(),
        Device::Cuda(Gpu { memory: Some(memory), .. }) => format!("on a GPU of {} GiB", memory >> 30),
    };
    let assumed = if installed.assumed { " (assumed: neither the study nor the engine says it)" } else { "" };
    format!("{}{assumed} {device}", installed.version)
}
