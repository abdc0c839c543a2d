//! The sessions of a study's workload, generated once and shared by all virtual runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::twin::tokens;
use crate::workload::{WarmupSessions, Workload};

/// Largest number of prompt tokens that are kept, at 4 bytes each. Every run generates further sessions again.
const KEPT_TOKENS: usize = 16 << 20;

/// One request of a session. `think` is the user's pause before it.
#[derive(Clone, Debug)]
pub(super) struct ScriptTurn {
    pub(super) prompt: Arc<[u32]>,
    pub(super) output_len: u32,
    pub(super) think: Duration,
}

impl crate::load::ScheduledTurn for ScriptTurn {
    fn think(&self) -> Duration {
        self.think
    }
}

/// The sessions of a workload with their prompts as tokens. There is no tokenizer: see [`tokens`].
#[derive(Debug)]
pub(super) struct PromptScript {
    pub(super) workload: Arc<dyn Workload>,
    cache: Mutex<SessionCache>,
    /// The sessions of the warm-up ([`WarmupSessions`]). `None` in that script itself.
    warmup: Option<Box<PromptScript>>,
}

/// Generated sessions, and the number of further tokens that may be kept.
#[derive(Debug)]
struct SessionCache {
    sessions: HashMap<u64, Arc<[ScriptTurn]>>,
    room: usize,
}

impl PromptScript {
    pub(super) fn new(workload: Arc<dyn Workload>) -> Self {
        let warmup = Self::of(Arc::new(WarmupSessions(Arc::clone(&workload))));
        Self { warmup: Some(Box::new(warmup)), ..Self::of(workload) }
    }

    fn of(workload: Arc<dyn Workload>) -> Self {
        let kept = Mutex::new(SessionCache { sessions: HashMap::new(), room: KEPT_TOKENS });
        Self { workload, cache: kept, warmup: None }
    }

    pub(super) fn warmup(&self) -> &Self {
        self.warmup.as_deref().unwrap_or(self)
    }

    /// Returns the turns of a session, from the kept ones if possible.
    pub(super) fn session(&self, index: u64) -> Arc<[ScriptTurn]> {
        // A poisoned lock is safe to use: a panic cannot leave the kept sessions incomplete.
        let kept = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = kept().sessions.get(&index) {
            return Arc::clone(turns);
        }
        let turn = |turn: crate::workload::SessionTurn| ScriptTurn {
            prompt: tokens(turn.request.prompt).into(),
            output_len: turn.request.output_len,
            think: turn.think,
        };
        let turns: Arc<[ScriptTurn]> = self.workload.session(index).turns.into_iter().map(turn).collect();
        let size = turns.iter().map(|turn| turn.prompt.len()).sum::<usize>();
        let mut kept = kept();
        if size <= kept.room && kept.sessions.insert(index, Arc::clone(&turns)).is_none() {
            kept.room -= size;
        }
        turns
    }
}
