//! A minimal engine for unit tests of modules that may not use a real engine.

use std::sync::Arc;

use super::{Engine, EngineEvidence, LaunchSpec, MetricsPage, ModelNameCheck, Readiness, ReleasePage};
use crate::flag::FlagError;
use crate::trial::{CommandLine, Failure};

/// An engine that runs its command unchanged. Its server answers `/health`, and lists its model.
#[derive(Debug)]
struct PlainEngine;

impl Engine for PlainEngine {
    fn kind(&self) -> &'static str {
        "plain"
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        Ok(vec!["true".to_owned()])
    }

    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<CommandLine, FlagError> {
        Ok(CommandLine::from_words(spec.command.to_vec()))
    }

    fn diagnose(&self, evidence: &EngineEvidence<'_>) -> Failure {
        evidence.failure_from_exit(evidence.log.lines().next_back())
    }

    fn readiness(&self) -> Readiness {
        Readiness {
            health: Some("/health".to_owned()),
            log: None,
            model_name: ModelNameCheck::Required,
            release: ReleasePage::USUAL,
        }
    }

    fn dialect(&self) -> &'static str {
        "openai"
    }

    fn metrics(&self) -> Option<MetricsPage> {
        Some(MetricsPage::usual())
    }
}

pub(crate) fn engine() -> Arc<dyn Engine> {
    Arc::new(PlainEngine)
}
