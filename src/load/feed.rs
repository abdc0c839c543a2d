//! Sessions made ready on a thread of their own, a bounded amount ahead of when they are sent.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::LoadError;
use super::endpoint::Endpoint;
use super::protocol::Protocol;
use super::signal::Signal;
use crate::workload::Workload;

/// Bytes of requests that may wait: enough for a burst of long prompts, little against the memory of a server.
const AHEAD: usize = 64 << 20;

/// How long a run may wait for more than it needs to begin.
const MOMENT: Duration = Duration::from_millis(10);

/// A request that only has to be written to a socket.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Head and body.
    pub(super) request: Vec<u8>,
    pub(super) asked: u32,
    pub(super) think: Duration,
}

/// What one user is doing: the session, and what is left of it.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) session: u64,
    /// The turn that comes next.
    pub(super) turn: u32,
    pub(super) turns: VecDeque<Prepared>,
}

/// Which sessions to make ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) first: u64,
    /// The last session is cut where it would reach beyond.
    pub(super) requests: Option<u64>,
    pub(super) sessions: Option<u64>,
}

/// What is ready.
#[derive(Debug)]
pub(super) enum Taken {
    Ready(Progress),
    /// No other comes behind it.
    Last(Progress),
    /// The thread is still at it; the signal is raised when it has one.
    NotYet,
    /// There are no more.
    Over,
}

#[derive(Debug)]
pub(super) struct Feed {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is room again, or the feed is dropped.
    room: Condvar,
    /// Something is ready, or nothing more comes.
    filled: Condvar,
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Progress>,
    bytes: usize,
    over: bool,
    error: Option<LoadError>,
    dropped: bool,
    /// Somebody found nothing ready.
    hungry: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed {
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(
        workload: Arc<dyn Workload>,
        protocol: Arc<Protocol>,
        endpoint: Arc<Endpoint>,
        range: Range,
        signal: Arc<Signal>,
    ) -> Result<Self, LoadError> {
        let shared = Arc::new(Shared { state: Mutex::default(), room: Condvar::new(), filled: Condvar::new(), signal });
        let own = Arc::clone(&shared);
        let work = move || {
            // Also when the workload panics.
            let _over = Over(&own);
            let prepare = |index, room| prepare(&*workload, &protocol, &endpoint, index, room);
            own.fill(range, prepare);
        };
        let thread = std::thread::Builder::new().name("load feed".to_owned()).spawn(work).map_err(LoadError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits until so many sessions are ready, or as many as are let ahead, or the run is stopped; and for a moment longer,
    /// in which all of a small load are ready.
    pub(super) fn wait(&self, sessions: usize) {
        let moment = Instant::now() + MOMENT;
        let mut state = self.shared.lock();
        while !state.over
            && (state.ready.len() < sessions || Instant::now() < moment)
            && state.bytes < AHEAD
            && !self.shared.signal.is_raised()
        {
            let waited = self.shared.filled.wait_timeout(state, Duration::from_millis(5));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Never blocks.
    pub(super) fn take(&self) -> Taken {
        let mut state = self.shared.lock();
        if let Some(progress) = state.ready.pop_front() {
            state.bytes -= size(&progress);
            let last = state.over && state.ready.is_empty();
            drop(state);
            self.shared.room.notify_one();
            return if last { Taken::Last(progress) } else { Taken::Ready(progress) };
        }
        if state.over {
            return Taken::Over;
        }
        state.hungry = true;
        Taken::NotYet
    }

    /// Ends the thread.
    ///
    /// # Errors
    /// When a request could not be made. A panic of the workload goes on here.
    pub(super) fn close(mut self) -> Result<(), LoadError> {
        self.end();
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        self.shared.lock().error.take().map_or(Ok(()), Err)
    }

    fn end(&self) {
        self.shared.lock().dropped = true;
        self.shared.room.notify_one();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.end();
    }
}

/// Says that nothing more comes.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.filled.notify_one();
        self.0.signal.wake();
    }
}

impl Shared {
    fn fill(&self, range: Range, prepare: impl Fn(u64, u64) -> Result<Progress, LoadError>) {
        let mut left = range.requests.unwrap_or(u64::MAX);
        let end = range.sessions.map_or(u64::MAX, |sessions| range.first.saturating_add(sessions));
        for index in range.first..end {
            if left == 0 {
                return;
            }
            let progress = match prepare(index, left) {
                Ok(progress) => progress,
                Err(error) => {
                    self.lock().error = Some(error);
                    return;
                }
            };
            left -= progress.turns.len() as u64;
            let mut state = self.lock();
            while state.bytes >= AHEAD && !state.dropped {
                state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.dropped {
                return;
            }
            state.bytes += size(&progress);
            state.ready.push_back(progress);
            // Said with the last one, so that nobody waits for another.
            state.over = left == 0 || index + 1 == end;
            let hungry = std::mem::take(&mut state.hungry);
            drop(state);
            self.filled.notify_one();
            if hungry {
                self.signal.wake();
            }
        }
    }
}

fn size(progress: &Progress) -> usize {
    progress.turns.iter().map(|turn| turn.request.len()).sum()
}

fn prepare(
    workload: &dyn Workload,
    protocol: &Protocol,
    endpoint: &Endpoint,
    index: u64,
    room: u64,
) -> Result<Progress, LoadError> {
    let turns = workload.session(index).turns.into_iter().take(usize::try_from(room).unwrap_or(usize::MAX));
    let turns = turns.map(|turn| {
        let request = endpoint.request(&protocol.body(&turn.request)?);
        Ok(Prepared { request, asked: turn.request.output_len, think: turn.think })
    });
    Ok(Progress { session: index, turn: 0, turns: turns.collect::<Result<_, LoadError>>()? })
}
