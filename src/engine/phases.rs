//! The phases of an engine's start. Log lines mark when each phase begins and ends.

use std::time::Duration;

use crate::trial::PhaseTime;

/// A phase of an engine's start. The variants are declared and compare in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StartPhase {
    /// Python imports the engine. Ends with the first log line about the engine's arguments.
    Import,
    /// The configuration is read, completed and checked.
    Configure,
    /// The processes of the engine and of its workers start. Each of them imports the engine again.
    Processes,
    /// The model is constructed and its weights are loaded.
    Weights,
    /// The model is traced and compiled.
    Compile,
    /// The engine profiles the model's memory use and allocates the KV cache. In eager mode this includes the warm-up.
    KvCache,
    /// CUDA graphs are captured.
    Graphs,
    /// The HTTP server starts.
    Server,
    /// The HTTP server is up, and the engine generates its first token.
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

/// The phase that one log line ends, and the phase that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseMark {
    /// The phase that ended with this line, or `None` for the current phase. The log may have no line for the begin of
    /// that phase.
    pub ended: Option<StartPhase>,
    /// The phase after this line. Equal to `ended` if that phase continues.
    pub begins: StartPhase,
}

/// The time in each phase of one start, from the log lines read so far. Instants are durations since the spawn of the
/// engine's process, in ascending order.
#[derive(Clone, Debug)]
pub struct PhaseTimeline {
    read: fn(&str) -> Option<PhaseMark>,
    durations: [Duration; StartPhase::ALL.len()],
    /// The phases that [`end`](Self::end) returns, even if they took no time.
    entered: [bool; StartPhase::ALL.len()],
    phase: StartPhase,
    /// Instant of the last line with a mark. Earlier time is already in `spent`.
    last: Duration,
}

impl PhaseTimeline {
    /// Creates a timeline in phase `Import`. `read` returns the mark of a log line, or `None` if the line is not about
    /// phases.
    #[must_use]
    pub fn new(read: fn(&str) -> Option<PhaseMark>) -> Self {
        let mut entered = [false; StartPhase::ALL.len()];
        entered[StartPhase::Import as usize] = true;
        let (spent, phase) = ([Duration::ZERO; StartPhase::ALL.len()], StartPhase::Import);
        Self { read, durations: spent, entered, phase, last: Duration::ZERO }
    }

    /// Processes one log line that appeared at this instant.
    ///
    /// The time since the last mark is added to the phase that the line ends. The current phase never moves back,
    /// because several workers write the same lines one after the other.
    pub fn process_line(&mut self, line: &str, at: Duration) {
        let Some(PhaseMark { ended, begins }) = (self.read)(line) else { return };
        self.add_time(ended.unwrap_or(self.phase), at);
        self.enter(begins);
    }

    /// Returns the current phase.
    #[must_use]
    pub fn phase(&self) -> StartPhase {
        self.phase
    }

    /// Closes the timeline when the start has succeeded or failed. Returns the duration of each phase. The time since
    /// the last mark is added to the current phase.
    #[must_use]
    pub fn end(mut self, at: Duration) -> Vec<PhaseTime> {
        self.add_time(self.phase, at);
        let entered = StartPhase::ALL.into_iter().filter(|phase| self.entered[*phase as usize]);
        entered
            .map(|phase| PhaseTime {
                phase: phase.name().to_owned(),
                duration_s: self.durations[phase as usize].as_secs_f64(),
            })
            .collect()
    }

    fn add_time(&mut self, phase: StartPhase, at: Duration) {
        self.durations[phase as usize] += at.saturating_sub(self.last);
        self.entered[phase as usize] = true;
        self.last = self.last.max(at);
    }

    fn enter(&mut self, phase: StartPhase) {
        if phase > self.phase {
            self.phase = phase;
            // After the weights, the phase may be `Compile` and not `KvCache`. The log reports a compilation only at
            // its end. `add_time` therefore marks `KvCache` as entered when time is added to it.
            self.entered[phase as usize] |= phase != StartPhase::KvCache;
        }
    }
}
