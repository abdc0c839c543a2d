//! vLLM's log: the phases of a start, memory, the reported configuration, and the cause of a failure.

mod diagnose;
mod phase_marks;
mod python_text;
mod resolved;
#[cfg(test)]
mod resolved_tests;
mod startup;

pub(super) use self::diagnose::diagnose;
use self::phase_marks::phase_mark;
use self::resolved::{differences, resolved};
use self::startup::observe;
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

    fn resolved(&self, log: &str, page: &str) -> ReportedConfig {
        resolved(log, page)
    }

    fn differences(&self, asked: &Config, resolved: &ReportedConfig) -> Vec<FlagDifference> {
        differences(asked, resolved)
    }

    fn observe(&self, log: &str) -> MemoryObservation {
        observe(log)
    }
}
