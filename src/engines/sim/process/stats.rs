//! The periodic log line of each engine that has worked, about its throughput and its queues.

use std::time::{Duration, Instant};

use super::log::ServedLog;
use super::metrics::SchedulerReport;
use crate::facts::EngineVersion;
use crate::stats::to_f64;

#[derive(Debug)]
pub(super) struct StatsLine {
    log: ServedLog,
    version: EngineVersion,
    /// Whether the device is a CPU.
    cpu: bool,
    /// Whether the lines are written, as without `--disable-log-stats`.
    enabled: bool,
    /// The report of each engine at the last lines, their instant, and the number of late steps then.
    last: Vec<SchedulerReport>,
    written: Instant,
    late: u64,
}

impl StatsLine {
    pub(super) const PERIOD: Duration = Duration::from_secs(10);

    pub(super) fn new(log: ServedLog, version: EngineVersion, cpu: bool, enabled: bool) -> Self {
        Self { log, version, cpu, enabled, last: Vec::new(), written: Instant::now(), late: 0 }
    }

    /// Writes a line for each engine that was not idle since the last one. `late` is the number of steps that the
    /// simulation itself has ended late by more than their own length.
    pub(super) fn write<'a>(&mut self, reports: impl Iterator<Item = &'a SchedulerReport>, late: u64) {
        let passed = self.written.elapsed().as_secs_f64().max(1e-9);
        self.written = Instant::now();
        for (at, report) in reports.enumerate() {
            if self.last.len() <= at {
                self.last.push(SchedulerReport::default());
            }
            let last = std::mem::replace(&mut self.last[at], report.clone());
            if self.enabled && report.counters.steps > last.counters.steps {
                self.line(at, report, &last, passed);
            }
        }
        let behind = late - std::mem::replace(&mut self.late, late);
        if behind > 0 {
            let what = format_args!(
                "The simulation does not keep its schedule: {behind} steps ended late by more than their length."
            );
            self.log.warning("engine.py", what);
        }
    }

    /// Writes a warning about the simulation itself.
    pub(super) fn warn(&self, what: &str) {
        self.log.warning("engine.py", what);
    }

    fn line(&self, at: usize, report: &SchedulerReport, last: &SchedulerReport, passed: f64) {
        let (now, before) = (&report.counters, &last.counters);
        let rate = |now: u64, before: u64| {
            let tokens = to_f64(now - before);
            tokens / passed
        };
        let prompt = rate(now.prompt_tokens, before.prompt_tokens);
        let generated = rate(now.generated_tokens, before.generated_tokens);
        let preempted = now.reported_preemptions - before.reported_preemptions;
        let usage = 100.0 * report.kv_usage;
        let throughput = format!(
            "Avg prompt throughput: {prompt:.1} tokens/s, Avg generation throughput: {generated:.1} tokens/s, \
             Running: {} reqs",
            report.running
        );
        let waiting = report.waiting;
        if self.version.is_v0() {
            self.log.api_info(
                "metrics.py",
                format_args!(
                    "{throughput}, Swapped: 0 reqs, Pending: {waiting} reqs, GPU KV cache usage: {usage:.1}%, CPU KV \
                     cache usage: 0.0%."
                ),
            );
            return;
        }
        let since = |minor| self.version >= EngineVersion::new(0, minor, 0);
        let preemptions =
            if since(12) && preempted > 0 { format!(", Preemptions: {preempted}") } else { String::new() };
        let device = if since(32) && self.cpu { "CPU" } else { "GPU" };
        let hits = 100.0 * report.hit_rate();
        self.log.api_info(
            "loggers.py",
            format_args!(
                "Engine {at:03}: {throughput}, Waiting: {waiting} reqs{preemptions}, {device} KV cache usage: \
                 {usage:.1}%, Prefix cache hit rate: {hits:.1}%"
            ),
        );
        self.speculation(report, last, passed);
    }

    /// Writes the line of `SpecDecodingLogging.log` in `v1/spec_decode/metrics.py`.
    fn speculation(&self, report: &SchedulerReport, last: &SchedulerReport, passed: f64) {
        let (now, before) = (&report.counters, &last.counters);
        let drafts = now.drafts - before.drafts;
        if drafts == 0 {
            return;
        }
        let drafted = now.draft_tokens - before.draft_tokens;
        let accepted = now.accepted_tokens - before.accepted_tokens;
        let before_at = last.accepted_by_position.iter().copied().chain(std::iter::repeat(0));
        let rates = report.accepted_by_position.iter().zip(before_at);
        let rates = rates.map(|(now, before)| format!("{:.3}", to_f64(now - before) / to_f64(drafts)));
        let rates = rates.collect::<Vec<_>>().join(", ");
        self.log.api_info(
            "metrics.py",
            format_args!(
                "SpecDecoding metrics: Mean acceptance length: {:.2}, Accepted throughput: {:.2} tokens/s, Drafted \
                 throughput: {:.2} tokens/s, Accepted: {accepted} tokens, Drafted: {drafted} tokens, Per-position \
                 acceptance rate: {rates}, Avg Draft acceptance rate: {:.1}%",
                1.0 + to_f64(accepted) / to_f64(drafts),
                to_f64(accepted) / passed,
                to_f64(drafted) / passed,
                100.0 * to_f64(accepted) / to_f64(drafted),
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::engines::sim::process::tests::Capture;
    use crate::twin::{RequestId, Settings, TwinEngine};

    fn line(version: &str, cpu: bool) -> String {
        let settings = Settings {
            resolved: ResolvedConfig {
                max_model_len: 64,
                max_num_seqs: 1,
                max_num_batched_tokens: 64,
                ..Settings::default().resolved
            },
            num_blocks: 8,
            ..Settings::default()
        };
        let mut engine = TwinEngine::new(settings).unwrap();
        let (version, capture) = (version.parse().unwrap(), Capture::default());
        let log = ServedLog::new(version, Box::new(capture.clone()), Box::new(capture.clone()));
        let mut stats = StatsLine::new(log, version, cpu, true);
        stats.write([SchedulerReport::of(&engine)].iter(), 0);
        assert_eq!(capture.text(), "", "idle");
        for id in 0..2 {
            engine.add(RequestId(id), &[1; 16], 4, Duration::ZERO).unwrap();
        }
        let batch = engine.step(Duration::ZERO).unwrap();
        engine.finish(&batch);
        stats.write([SchedulerReport::of(&engine)].iter(), 0);
        capture.text()
    }

    #[test]
    fn each_engine_has_its_line_and_speculation_another() {
        let (version, capture) = ("0.32.0".parse().unwrap(), Capture::default());
        let log = ServedLog::new(version, Box::new(capture.clone()), Box::new(capture.clone()));
        let mut stats = StatsLine::new(log, version, false, true);
        let mut reports = vec![SchedulerReport::default(); 2];
        reports[1].counters.steps = 8;
        reports[1].accepted_by_position = vec![3, 1];
        let counters = &mut reports[1].counters;
        (counters.drafts, counters.draft_tokens, counters.accepted_tokens) = (4, 8, 4);
        stats.write(reports.iter(), 0);
        let text = capture.text();
        assert!(text.contains("Engine 001: Avg prompt") && !text.contains("Engine 000:"), "{text}");
        assert!(text.contains("SpecDecoding metrics: Mean acceptance length: 2.00, Accepted throughput: "), "{text}");
        let end = "Accepted: 4 tokens, Drafted: 8 tokens, Per-position acceptance rate: 0.750, 0.250, Avg Draft acceptance \
                   rate: 50.0%\n";
        assert!(text.ends_with(end), "{text}");
        stats.write(reports.iter(), 5);
        assert!(capture.text().ends_with("5 steps ended late by more than their length.\n"), "{}", capture.text());
    }

    #[test]
    fn the_line_is_that_of_the_release() {
        let new = line("0.32.0", true);
        assert!(new.starts_with("(APIServer pid="), "{new}");
        assert!(new.contains("Engine 000: Avg prompt throughput: "), "{new}");
        assert!(
            new.ends_with("Running: 1 reqs, Waiting: 1 reqs, CPU KV cache usage: 12.5%, Prefix cache hit rate: 0.0%\n"),
            "{new}"
        );
        let old = line("0.6.3", false);
        assert!(old.starts_with("INFO "), "{old}");
        assert!(
            old.ends_with("Swapped: 0 reqs, Pending: 1 reqs, GPU KV cache usage: 12.5%, CPU KV cache usage: 0.0%.\n"),
            "{old}"
        );
    }
}
