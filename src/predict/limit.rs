//! The bottleneck of a configuration under a load, and advice on how to move it.

use super::setup::TwinSetup;
use super::watch::{StepShares, StepTerm, WAIT_REASONS};
use crate::twin::WaitReason;

/// Observations of a virtual run that determine its bottleneck.
#[derive(Clone, Copy, Debug)]
pub(super) struct VirtualRun {
    pub(super) shares: StepShares,
    /// Share of a request's time that is spent outside of the engine.
    pub(super) front_end: f64,
    /// Whether requests arrive independently of those under way.
    pub(super) open: bool,
}

/// The main bottleneck of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadLimit {
    /// Requests wait for more than half of the busy time, mostly for this reason.
    Queue(WaitReason),
    /// Requests wait for at most half of the busy time, so the load offers too few at the same time. This term takes
    /// the largest part of the steps' time.
    Load(StepTerm),
    /// Requests wait for at most half of the busy time, and spend most of their time outside of the engine.
    FrontEnd,
    /// The engine is idle for most of the time. Only for loads whose requests arrive independently of replies.
    Idle,
}

/// The bottlenecks of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadLimits {
    pub main: LoadLimit,
    /// Share of the main limit, 0 to 1. For a queue it is a share of the busy time, for a term of the steps' time. For
    /// the front end it is a share of the requests' time, for idle time of the window.
    pub share: f64,
    /// The term with the largest share of the steps' time.
    pub term: StepTerm,
    pub shares: StepShares,
    /// Share of a request's time that is spent outside of the engine, 0 to 1.
    pub front_end: f64,
    pub advice: String,
}

/// Busy share below which idle time is the limit, and share above which the front end is.
const LIMIT_SHARE: f64 = 0.5;

impl LoadLimit {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue(wait) => wait_name(wait),
            Self::FrontEnd => "front end",
            Self::Load(_) | Self::Idle => "offered load",
        }
    }
}

/// Returns the name of the resource that requests wait for.
#[must_use]
pub fn wait_name(wait: WaitReason) -> &'static str {
    match wait {
        WaitReason::Blocks => "KV blocks",
        WaitReason::Sequences => "sequences",
        WaitReason::Budget => "token budget",
        WaitReason::Delay => "scheduler's delay",
    }
}

/// Returns the reasons to wait with their shares of the busy time, in the order of display.
pub fn waits(shares: &StepShares) -> impl Iterator<Item = (WaitReason, f64)> {
    WAIT_REASONS.into_iter().zip(shares.waits)
}

impl LoadLimits {
    pub(super) fn find(seen: &VirtualRun, setup: &TwinSetup) -> Self {
        let VirtualRun { shares, front_end, open } = *seen;
        let waited: f64 = shares.waits.iter().sum();
        let (wait, longest) =
            waits(&shares).fold((WAIT_REASONS[0], 0.0), |most, one| if one.1 > most.1 { one } else { most });
        let (term, largest) = StepTerm::ALL
            .into_iter()
            .zip(shares.terms)
            .fold((StepTerm::ALL[0], 0.0), |most, one| if one.1 > most.1 { one } else { most });
        // The sum decides, because requests that wait for several resources in turn also wait.
        let (main, share) = if waited > 1.0 - waited {
            (LoadLimit::Queue(wait), longest)
        } else if open && shares.busy < LIMIT_SHARE {
            (LoadLimit::Idle, 1.0 - shares.busy)
        } else if front_end > LIMIT_SHARE {
            (LoadLimit::FrontEnd, front_end)
        } else {
            (LoadLimit::Load(term), largest)
        };
        Self { main, share, term, shares, front_end, advice: advice(main, setup) }
    }
}

/// Returns one line on the flag or hardware that would move the limit.
fn advice(limit: LoadLimit, setup: &TwinSetup) -> String {
    let settings = &setup.settings;
    match limit {
        LoadLimit::Queue(WaitReason::Blocks) => format!(
            "{} blocks of {} tokens are too few: raise gpu-memory-utilization, set kv-cache-dtype to fp8{}, or use a \
             device with more memory",
            setup.memory.blocks,
            settings.block_size(),
            if settings.cache_dtype_bytes.is_some() { " (already set)" } else { "" },
        ),
        LoadLimit::Queue(WaitReason::Sequences) => format!("raise max-num-seqs (now {})", settings.max_num_seqs()),
        LoadLimit::Queue(WaitReason::Budget) => {
            format!("raise max-num-batched-tokens (now {})", settings.max_num_batched_tokens())
        }
        LoadLimit::Queue(WaitReason::Delay) if settings.resolved.v0 => {
            format!("lower scheduler-delay-factor (now {})", settings.resolved.scheduler_delay_factor)
        }
        LoadLimit::Queue(WaitReason::Delay) => {
            "preempted requests wait until their last step ends: raise gpu-memory-utilization or lower max-num-seqs"
                .to_owned()
        }
        LoadLimit::Idle => "the engine is mostly idle: raise the request rate".to_owned(),
        LoadLimit::FrontEnd => "raise api-server-count, or use faster processor cores".to_owned(),
        LoadLimit::Load(term) => {
            format!("requests wait for at most half of the time: raise the load; {}", term_advice(term, setup))
        }
    }
}

fn term_advice(term: StepTerm, setup: &TwinSetup) -> &'static str {
    match term {
        StepTerm::Weights => {
            "steps become faster with quantized weights, a larger tensor-parallel-size, or more memory bandwidth"
        }
        StepTerm::Compute => {
            "steps become faster with 8-bit weights, a larger tensor-parallel-size, or a device with more compute"
        }
        StepTerm::Attention => {
            "steps become faster with kv-cache-dtype fp8, shorter contexts, or more memory bandwidth"
        }
        StepTerm::Sampling => "steps become faster with fewer concurrent sequences, or more memory bandwidth",
        StepTerm::Launch if setup.settings.eager => "steps become faster with CUDA graphs: remove enforce-eager",
        StepTerm::Launch => "steps become faster with CUDA graphs for larger batches, or faster processor cores",
        StepTerm::Communication => "steps become faster with fewer devices, or links of lower latency",
        StepTerm::Host if setup.settings.scheduling.async_scheduling => {
            "steps become faster with faster processor cores"
        }
        StepTerm::Host => "steps become faster with async-scheduling, if the release has it, or faster processor cores",
    }
}
