//! The bottleneck of a configuration under a load, and advice on how to move it.

use super::setup::Setup;
use super::watch::{Shares, Term, WAITS};
use crate::twin::Wait;

/// Observations of a virtual run besides its measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) shares: Shares,
    /// Share of a request's time that is spent outside of the engine.
    pub(super) front_end: f64,
    /// Whether requests arrive independently of those under way.
    pub(super) open: bool,
}

/// The main bottleneck of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Requests wait for this reason.
    Queue(Wait),
    /// No request waits: the load offers no more at the same time. This term of a step is the longest.
    Load(Term),
    /// No request waits, and requests spend most of their time outside of the engine.
    FrontEnd,
    /// The engine is idle for most of the time.
    Idle,
}

/// The bottlenecks of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    pub main: Limit,
    /// Share of the main limit: of the busy time for a queue, of the steps' time for a term. For the front end it is a
    /// share of the requests' time, for idle time one of the window.
    pub share: f64,
    /// The largest term of a step's time.
    pub term: Term,
    pub shares: Shares,
    /// Share of a request's time that is spent outside of the engine, 0 to 1.
    pub front_end: f64,
    pub advice: String,
}

/// Share above which idle time, or time in the front end, is the limit.
const MOST: f64 = 0.5;

impl Limit {
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
pub fn wait_name(wait: Wait) -> &'static str {
    match wait {
        Wait::Blocks => "KV blocks",
        Wait::Sequences => "sequences",
        Wait::Budget => "token budget",
        Wait::Turn => "scheduler's delay",
    }
}

/// Returns the waits with their shares of the busy time, in the order of display.
pub fn waits(shares: &Shares) -> impl Iterator<Item = (Wait, f64)> {
    WAITS.into_iter().zip(shares.waits)
}

impl Limits {
    pub(super) fn find(seen: &Seen, setup: &Setup) -> Self {
        let Seen { shares, front_end, open } = *seen;
        let waited: f64 = shares.waits.iter().sum();
        let (wait, longest) = waits(&shares).fold((WAITS[0], 0.0), |most, one| if one.1 > most.1 { one } else { most });
        let (term, largest) = Term::ALL
            .into_iter()
            .zip(shares.terms)
            .fold((Term::ALL[0], 0.0), |most, one| if one.1 > most.1 { one } else { most });
        // Requests that wait for several resources in turn still wait, so the sum decides.
        let (main, share) = if waited > 1.0 - waited {
            (Limit::Queue(wait), longest)
        } else if open && shares.busy < MOST {
            (Limit::Idle, 1.0 - shares.busy)
        } else if front_end > MOST {
            (Limit::FrontEnd, front_end)
        } else {
            (Limit::Load(term), largest)
        };
        Self { main, share, term, shares, front_end, advice: advice(main, setup) }
    }
}

/// Returns one line on the flag or hardware that would move the limit.
fn advice(limit: Limit, setup: &Setup) -> String {
    let settings = &setup.settings;
    match limit {
        Limit::Queue(Wait::Blocks) => format!(
            "{} blocks of {} tokens are too few: raise gpu-memory-utilization, take kv-cache-dtype fp8{}, or a device \
             with more memory",
            setup.memory.blocks,
            settings.block_size(),
            if settings.cache_dtype_bytes.is_some() { " (it is)" } else { "" },
        ),
        Limit::Queue(Wait::Sequences) => format!("raise max-num-seqs (now {})", settings.max_num_seqs()),
        Limit::Queue(Wait::Budget) => {
            format!("raise max-num-batched-tokens (now {})", settings.max_num_batched_tokens())
        }
        Limit::Queue(Wait::Turn) if settings.resolved.v0 => {
            format!("lower scheduler-delay-factor (now {})", settings.resolved.scheduler_delay_factor)
        }
        Limit::Queue(Wait::Turn) => {
            "preempted requests come back: raise gpu-memory-utilization or lower max-num-seqs".to_owned()
        }
        Limit::Idle => "the engine has room for more: offer a higher rate".to_owned(),
        Limit::FrontEnd => "more api-server-count or faster processor cores".to_owned(),
        Limit::Load(term) => format!("nobody waits, so more at a time is served as well; {}", of_term(term, setup)),
    }
}

fn of_term(term: Term, setup: &Setup) -> &'static str {
    match term {
        Term::Weights => {
            "a step is made faster by quantized weights, a larger tensor-parallel-size, or more memory bandwidth"
        }
        Term::Compute => {
            "a step is made faster by weights in 8 bits, a larger tensor-parallel-size, or a device that computes more"
        }
        Term::Attention => "a step is made faster by kv-cache-dtype fp8, shorter contexts, or more memory bandwidth",
        Term::Sampling => "a step is made faster by fewer sequences at a time, or more memory bandwidth",
        Term::Launch if setup.settings.eager => "a step is made faster by graphs: leave enforce-eager out",
        Term::Launch => "a step is made faster by graphs for larger batches, or faster processor cores",
        Term::Communication => "a step is made faster by fewer devices, or links with less latency",
        Term::Host if setup.settings.scheduling.async_scheduling => "a step is made faster by faster processor cores",
        Term::Host => "a step is made faster by async-scheduling, where the release has it, or faster processor cores",
    }
}
