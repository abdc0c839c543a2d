//! The phases of a start, timed by the log lines that end and begin them.

use std::time::Duration;

use crate::trial::PhaseTime;

/// What an engine does before it serves, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartPhase {
    /// Python imports the engine, up to the first word about its arguments.
    Import,
    /// The configuration is read, completed and checked.
    Configure,
    /// The engine's and its workers' own processes start; each of them imports again.
    Processes,
    /// The model is made and its weights are loaded.
    Weights,
    /// The model is traced and compiled.
    Compile,
    /// The memory is measured by a trial run, and the key/value cache is allocated; in eager mode also the warm-up.
    KvCache,
    /// Graphs are captured.
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

    /// The name in the database and in JSON.
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

/// Statement of a log line about the phases around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseMark {
    /// The phase that has ended with this line, if the line itself tells: the engine may not have said when it began.
    pub ended: Option<StartPhase>,
    pub begins: StartPhase,
}

/// The phases of one start as far as its log has told of them. Instants are since spawn and do not run backwards.
#[derive(Clone, Debug)]
pub struct Timeline {
    read: fn(&str) -> Option<PhaseMark>,
    spent: [Duration; StartPhase::ALL.len()],
    /// What has been entered, whether it took long or not.
    entered: [bool; StartPhase::ALL.len()],
    phase: StartPhase,
    last: Duration,
}

impl Timeline {
    /// A start before its first line. `read` reads a line of the engine's log; `None` if it says nothing of phases.
    #[must_use]
    pub fn new(read: fn(&str) -> Option<PhaseMark>) -> Self {
        let mut entered = [false; StartPhase::ALL.len()];
        entered[StartPhase::Import as usize] = true;
        let (spent, phase) = ([Duration::ZERO; StartPhase::ALL.len()], StartPhase::Import);
        Self { read, spent, entered, phase, last: Duration::ZERO }
    }

    /// Takes in one line of the log that was seen at this instant.
    ///
    /// Several workers write the same lines one after the other: what one of them reports as ended counts as that, but
    /// no line leads back to an earlier phase.
    pub fn see(&mut self, line: &str, at: Duration) {
        let Some(PhaseMark { ended, begins }) = (self.read)(line) else { return };
        self.spend(ended.unwrap_or(self.phase), at);
        self.enter(begins);
    }

    /// The phase that is under way.
    #[must_use]
    pub fn phase(&self) -> StartPhase {
        self.phase
    }

    /// The start is over: ready, or failed. Whatever has passed since the last line belongs to the phase under way.
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
            // What this phase is cannot be told yet: a compilation says so only when it is over.
            self.entered[phase as usize] |= phase != StartPhase::KvCache;
        }
    }
}
