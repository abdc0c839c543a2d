//! The server's log: the phases of a start, its memory, and the reported configuration.
//!
//! Sources: `tools/server/server.cpp`, `tools/server/server-context.cpp`, `src/llama-context.cpp`, `src/llama-model.cpp`
//! and `src/llama-kv-cache.cpp` of b11434, and logs of that build.

use crate::config::{Config, Value};
use crate::engine::StartPhase::{self, Configure, FirstToken, KvCache, Server, Weights};
use crate::engine::{LogReader, PhaseMark, PhaseTimeline, ReportedConfig};
use crate::trial::{FlagDifference, MemoryObservation};

/// Texts of lines, the phase that each line ends, and the phase after it.
const MARKS: [(&str, Option<StartPhase>, StartPhase); 5] = [
    ("verbosity = ", None, Configure),
    ("loading model '", None, Weights),
    ("llama_context: constructing llama_context", Some(Weights), KvCache),
    ("initializing, n_slots = ", Some(KvCache), Server),
    ("model loaded", Some(Server), FirstToken),
];

fn phase_mark(line: &str) -> Option<PhaseMark> {
    let (_, ended, begins) = MARKS.iter().find(|(text, _, _)| line.contains(text))?;
    Some(PhaseMark { ended: *ended, begins: *begins })
}

/// The reader of the server's own lines.
#[derive(Debug)]
pub(super) struct LlamaCppLog;

/// Lines of `llama_context` with a value, and the flags that they correspond to.
const CONTEXT_LINES: [(&str, &str); 6] = [
    ("n_seq_max", "parallel"),
    ("n_ctx", "ctx-size"),
    ("n_batch", "batch-size"),
    ("n_ubatch", "ubatch-size"),
    ("flash_attn", "flash-attn"),
    ("kv_unified", "kv-unified"),
];

impl LogReader for LlamaCppLog {
    fn timeline(&self) -> PhaseTimeline {
        PhaseTimeline::new(phase_mark)
    }

    fn read_reported_config(&self, log: &str, _page: &str) -> ReportedConfig {
        let mut seen = ReportedConfig::default();
        for line in log.lines() {
            let Some((_, field)) = line.split_once("llama_context: ") else { continue };
            let Some((name, value)) = field.split_once('=') else { continue };
            // A draft model has a context of its own. The first one is that of the served model.
            if let Some((_, flag)) = CONTEXT_LINES.iter().find(|(known, _)| *known == name.trim()) {
                seen.effective.entry((*flag).to_owned()).or_insert_with(|| value.trim().to_owned());
            }
        }
        seen
    }

    /// Compares the batches and the number of slots. The context is padded, and automatic values are replaced.
    fn differences(&self, asked: &Config, resolved: &ReportedConfig) -> Vec<FlagDifference> {
        let of_flag = |(flag, value): (&str, &Value)| {
            let reported = resolved.effective.get(flag)?;
            let is_compared = ["parallel", "batch-size", "ubatch-size"].contains(&flag);
            let is_automatic = value.as_i64().is_some_and(|number| number <= 0);
            (is_compared && !is_automatic && *reported != value.to_string()).then(|| FlagDifference {
                flag: flag.to_owned(),
                asked: value.to_string(),
                resolved: reported.clone(),
            })
        };
        asked.iter().filter_map(of_flag).collect()
    }

    fn read_memory(&self, log: &str) -> MemoryObservation {
        let mib = |text: &str| {
            let sizes = log.lines().filter_map(|line| {
                let rest = line.split_once(text)?.1.trim_start().trim_start_matches('=').trim_start();
                rest.split_once(" MiB")?.0.trim().parse::<f64>().ok()
            });
            sizes.fold(None, |sum, size| Some(sum.unwrap_or(0.0) + size))
        };
        MemoryObservation {
            weights_gib: mib("model buffer size").map(|mib| mib / 1024.0),
            cache_gib: mib("KV buffer size").map(|mib| mib / 1024.0),
            ..MemoryObservation::default()
        }
    }
}
