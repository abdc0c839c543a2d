//! vLLM's log: the phases of a start, memory, the reported configuration, and the cause of a failure.

mod diagnose;
mod phase_marks;
mod python_text;
mod reported_config;
#[cfg(test)]
mod resolved_tests;
mod startup;

pub(super) use self::diagnose::diagnose;
use self::phase_marks::phase_mark;
use self::reported_config::{differences, read_reported_config};
use self::startup::read_memory;
use crate::config::Config;
use crate::engine::{LogReader, PhaseTimeline, ReportedConfig};
use crate::trial::{FlagDifference, MemoryObservation};

/// The reader of vLLM's own lines.
#[derive(Debug)]
pub(super) struct VllmLog;

impl LogReader for VllmLog {
    fn timeline(&self) -> PhaseTimeline {
        PhaseTimeline::new(phase_mark)
    }

    fn read_reported_config(&self, log: &str, page: &str) -> ReportedConfig {
        read_reported_config(log, page)
    }

    fn differences(&self, asked: &Config, resolved: &ReportedConfig) -> Vec<FlagDifference> {
        differences(asked, resolved)
    }

    fn read_memory(&self, log: &str) -> MemoryObservation {
        read_memory(log)
    }
}
