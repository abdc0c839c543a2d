//! Workload presets: the traffic of common services, with lengths from published traces.

use super::limit::LatencyLimit;

/// A preset of `--workload`.
#[derive(Debug)]
pub(crate) struct WorkloadPreset {
    pub name: &'static str,
    /// One line for `--help`.
    pub summary: &'static str,
    /// The origin of the lengths.
    pub(super) source: &'static str,
    /// The keys of `[workload]`, as TOML.
    pub(super) keys: &'static str,
    /// Users in a closed loop, if neither a concurrency nor a rate is given.
    pub(super) concurrency: u32,
    /// Limits in milliseconds on the 99th percentiles of TTFT and TPOT: those of the closest scenario of `MLPerf`
    /// Inference 5.0 for Llama 2 70B (interactive: 450 and 40, server: 2000 and 200).
    pub(super) limits: Option<(f64, f64)>,
}

/// Every preset. Uniform ranges have the mean of the trace.
pub(crate) const PRESETS: [WorkloadPreset; 5] = [
    WorkloadPreset {
        name: "chat",
        summary: "a chat service: about 1150 tokens in, 210 out",
        source: "means of Azure's conversation trace of 2023 (19,366 requests; Splitwise, ISCA 2024): 1155 in, 211 out",
        keys: "kind = \"random\"\ninput_len = \"200..2100\"\noutput_len = \"50..370\"\n",
        concurrency: 32,
        limits: Some((450.0, 40.0)),
    },
    WorkloadPreset {
        name: "rag",
        summary: "answers from retrieved passages: a shared prompt of 1024 tokens, about 1920 more, 280 out",
        source: "means of the RAGPulse trace (7,106 requests; arXiv 2511.12979): 2944 in, 283 out, and its system prompt",
        keys: "kind = \"prefix\"\ngroups = 1\nprefix_len = 1024\nsuffix_len = \"900..2940\"\noutput_len = \"80..486\"\n",
        concurrency: 16,
        limits: Some((2000.0, 200.0)),
    },
    WorkloadPreset {
        name: "code",
        summary: "code completion: about 2050 tokens in, 28 out",
        source: "means of Azure's code trace of 2023 (8,819 requests; Splitwise, ISCA 2024): 2048 in, 28 out",
        keys: "kind = \"random\"\ninput_len = \"150..3950\"\noutput_len = \"8..48\"\n",
        concurrency: 16,
        limits: Some((450.0, 40.0)),
    },
    WorkloadPreset {
        name: "batch",
        summary: "offline generation without a waiting user: 1024 tokens in, 1024 out",
        source: "the scenario of InferenceMAX (SemiAnalysis) with 1k tokens in and 1k out",
        keys: "kind = \"random\"\ninput_len = 1024\noutput_len = 1024\n",
        concurrency: 256,
        limits: None,
    },
    WorkloadPreset {
        name: "agent",
        summary: "agents with tools: a shared context of 6144 tokens, about 2450 more, 180 out",
        source: "means of Mooncake's tool and agent trace (23,608 requests; FAST 2025): 8596 in, 182 out; the shared \
                 prefix is that of the example in its description",
        keys: "kind = \"prefix\"\ngroups = 8\nprefix_len = 6144\nsuffix_len = \"500..4400\"\noutput_len = \"60..304\"\n",
        concurrency: 8,
        limits: Some((2000.0, 200.0)),
    },
];

impl WorkloadPreset {
    /// Returns the limits that users of this traffic expect.
    pub(super) fn usual_limits(&self) -> Option<Vec<LatencyLimit>> {
        let (ttft, tpot) = self.limits?;
        Some(vec![LatencyLimit::p99("ttft", ttft), LatencyLimit::p99("tpot", tpot)])
    }
}
