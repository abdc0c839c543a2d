//! The phases of a start, timed by the log lines that end and begin them.

use std::time::Duration;

use crate::trial::PhaseTime;

/// A phase of an engine's start, in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartPhase {
    /// Python imports the engine, up to the first log line about its arguments.
    Import,
    /// The configuration is read, completed and checked.
    Configure,
    /// The engine's and its workers' own processes start. Each of them imports the engine again.
    Processes,
    /// The model is constructed and its weights are loaded.
    Weights,
    /// The model is traced and compiled.
    Compile,
    /// A trial run measures the memory, and the KV cache is allocated. In eager mode this includes the warm-up.
    KvCache,
    /// CUDA graphs are captured.
    Graphs,
    /// The HTTP server starts.
    Server,
    /// The server answers, and generates its first token.
    FirstToken,
}

impl StartPhase {
    pub const ALL: [Self; 9] = [
        Self::Import,
        Self::Configure,
        Self::Processes,
        Self::Weights,
        Self::Compile,
        Self::KvCache,
        Self::Graphs,
        Self::Server,
        Self::FirstToken,
    ];

    /// Returns the name in the database and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Import => "import",
            Self::Configure => "configure",
            Self::Processes => "processes",
            Self::Weights => "weights",
            Self::Compile => "compile",
            Self::KvCache => "kv_cache",
            Self::Graphs => "graphs",
            Self::Server => "server",
            Self::FirstToken => "first_token",
        }
    }
}

/// The information of a log line about the phases around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseMark {
    /// The phase that ended with this line, if the line names it. The log may not contain that phase's begin.
    pub ended: Option<StartPhase>,
    pub begins: StartPhase,
}

/// The phases of one start, as far as its log has reported them. Instants are relative to the spawn and do not
/// decrease.
#[derive(Clone, Debug)]
pub struct PhaseTimeline {
    read: fn(&str) -> Option<PhaseMark>,
    spent: [Duration; StartPhase::ALL.len()],
    /// The phases that were entered, even if they took no time.
    entered: [bool; StartPhase::ALL.len()],
    phase: StartPhase,
    last: Duration,
}

impl PhaseTimeline {
    /// Creates the phases of a start before its first line. `read` reads a line of the engine's log. It returns `None`
    /// for a line without information about phases.
    #[must_use]
    pub fn new(read: fn(&str) -> Option<PhaseMark>) -> Self {
        let mut entered = [false; StartPhase::ALL.len()];
        entered[StartPhase::Import as usize] = true;
        let (spent, phase) = ([Duration::ZERO; StartPhase::ALL.len()], StartPhase::Import);
        Self { read, spent, entered, phase, last: Duration::ZERO }
    }

    /// Processes one log line that appeared at this instant.
    ///
    /// Several workers write the same lines one after the other. Time is added to the phase that a line reports as
    /// ended, but no line leads back to an earlier phase.
    pub fn see(&mut self, line: &str, at: Duration) {
        let Some(PhaseMark { ended, begins }) = (self.read)(line) else { return };
        self.spend(ended.unwrap_or(self.phase), at);
        self.enter(begins);
    }

    /// Returns the current phase.
    #[must_use]
    pub fn phase(&self) -> StartPhase {
        self.phase
    }

    /// Ends the start, successful or not. The time since the last line belongs to the current phase.
    #[must_use]
    pub fn end(mut self, at: Duration) -> Vec<PhaseTime> {
        self.spend(self.phase, at);
        let entered = StartPhase::ALL.into_iter().filter(|phase| self.entered[*phase as usize]);
        entered
            .map(|phase| PhaseTime {
                phase: phase.name().to_owned(),
                duration_s: self.spent[phase as usize].as_secs_f64(),
            })
            .collect()
    }

    fn spend(&mut self, phase: StartPhase, at: Duration) {
        self.spent[phase as usize] += at.saturating_sub(self.last);
        self.entered[phase as usize] = true;
        self.last = self.last.max(at);
    }

    fn enter(&mut self, phase: StartPhase) {
        if phase > self.phase {
            self.phase = phase;
            // `KvCache` is not entered yet: a compilation may come first, which the log only reports at its end.
            self.entered[phase as usize] |= phase != StartPhase::KvCache;
        }
    }
}
