//! What a study asks, made once for all virtual runs of it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::twin::tokens;
use crate::workload::Workload;

/// Tokens of prompts that are kept, at 4 bytes each; further sessions are made anew by every run.
const KEPT_TOKENS: usize = 16 << 20;

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) prompt: Rc<[u32]>,
    pub(super) output_len: u32,
    pub(super) think: Duration,
}

impl crate::load::Turn for Turn {
    fn think(&self) -> Duration {
        self.think
    }
}

/// The sessions of a workload. There is no tokenizer: see [`tokens`].
#[derive(Debug)]
pub(super) struct Script {
    pub(super) workload: Arc<dyn Workload>,
    kept: RefCell<HashMap<u64, Rc<[Turn]>>>,
    room: Cell<usize>,
}

impl Script {
    pub(super) fn new(workload: Arc<dyn Workload>) -> Self {
        Self { workload, kept: RefCell::default(), room: Cell::new(KEPT_TOKENS) }
    }

    pub(super) fn session(&self, index: u64) -> Rc<[Turn]> {
        if let Some(turns) = self.kept.borrow().get(&index) {
            return Rc::clone(turns);
        }
        let turn = |turn: crate::workload::Turn| Turn {
            prompt: tokens(turn.request.prompt).into(),
            output_len: turn.request.output_len,
            think: turn.think,
        };
        let turns: Rc<[Turn]> = self.workload.session(index).turns.into_iter().map(turn).collect();
        let size = turns.iter().map(|turn| turn.prompt.len()).sum::<usize>();
        if size <= self.room.get() {
            self.room.set(self.room.get() - size);
            self.kept.borrow_mut().insert(index, Rc::clone(&turns));
        }
        turns
    }
}
