//! Sessions prepared on their own thread, a bounded amount ahead of their sends.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::LoadError;
use super::endpoint::ServerEndpoint;
use super::protocol::ServerProtocol;
use super::schedule::ScheduledTurn;
use super::signal::ThreadSignal;
use crate::workload::Workload;

/// Maximum bytes of prepared requests: enough for a burst of long prompts, little compared with a server's memory.
const MAX_PREPARED_BYTES: usize = 64 << 20;

/// Minimum time for the preparation of sessions before a phase begins. A small load is then prepared as a whole.
const MIN_PREPARE_TIME: Duration = Duration::from_millis(10);

/// A request that is ready to be written to a socket.
#[derive(Debug)]
pub(crate) struct PreparedRequest {
    /// HTTP head and body.
    pub(super) request: Vec<u8>,
    /// Number of requested output tokens.
    pub(super) requested_tokens: u32,
    /// Think time before this turn.
    pub(super) think: Duration,
}

impl ScheduledTurn for PreparedRequest {
    fn think(&self) -> Duration {
        self.think
    }
}

/// Progress of one user: the session and its remaining turns.
#[derive(Debug)]
pub(crate) struct UserProgress<T = PreparedRequest> {
    /// The session's index in the workload.
    pub(crate) session: u64,
    /// Index of the next turn.
    pub(crate) turn: u32,
    pub(crate) turns: VecDeque<T>,
}

/// The sessions to prepare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionRange {
    /// Index of the first session.
    pub(crate) first: u64,
    /// Number of requests. The last session is cut at this number.
    pub(crate) requests: Option<u64>,
    /// Number of sessions.
    pub(crate) sessions: Option<u64>,
}

/// Result of taking a session from the feed.
#[derive(Debug)]
pub(crate) enum TakenRequest<T = PreparedRequest> {
    Ready(UserProgress<T>),
    /// The last session.
    Last(UserProgress<T>),
    /// No session is ready yet. The feed wakes the load when it has one.
    NotYet,
    /// No session is left.
    Exhausted,
}

/// Handle of the thread that prepares the sessions of one phase.
#[derive(Debug)]
pub(super) struct RequestFeed {
    shared: Arc<SharedFeed>,
    thread: Option<JoinHandle<()>>,
}

/// State that the feed's thread and the load's thread share.
#[derive(Debug)]
struct SharedFeed {
    state: Mutex<FeedState>,
    /// Notified when there is room again, or the feed is dropped.
    room: Condvar,
    /// Notified when a session is ready, or the feed is over.
    filled: Condvar,
    signal: Arc<ThreadSignal>,
}

#[derive(Debug, Default)]
struct FeedState {
    ready: VecDeque<UserProgress>,
    /// Bytes of the requests in `ready`.
    bytes: usize,
    /// Whether no further session will be prepared.
    is_exhausted: bool,
    error: Option<LoadError>,
    /// Whether the load needs no further session.
    dropped: bool,
    /// Whether the load found no session ready and has to be woken.
    load_waits: bool,
}

impl SharedFeed {
    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestFeed {
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(
        workload: Arc<dyn Workload>,
        protocol: Arc<ServerProtocol>,
        endpoint: Arc<ServerEndpoint>,
        range: SessionRange,
        signal: Arc<ThreadSignal>,
    ) -> Result<Self, LoadError> {
        let shared =
            Arc::new(SharedFeed { state: Mutex::default(), room: Condvar::new(), filled: Condvar::new(), signal });
        let own = Arc::clone(&shared);
        let work = move || {
            // The guard also acts if the workload panics.
            let _over = ExhaustedGuard(&own);
            let prepare = |index, room| prepare(&*workload, &protocol, &endpoint, index, room);
            own.fill(range, prepare);
        };
        let thread = std::thread::Builder::new().name("load feed".to_owned()).spawn(work).map_err(LoadError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Waits until `sessions` sessions are ready, the limit of prepared bytes is reached, or the run is stopped. Also
    /// waits for at least `MIN_PREPARE_TIME`, unless the feed is over earlier.
    pub(super) fn wait(&self, sessions: usize) {
        let moment = Instant::now() + MIN_PREPARE_TIME;
        let mut state = self.shared.lock();
        while !state.is_exhausted
            && (state.ready.len() < sessions || Instant::now() < moment)
            && state.bytes < MAX_PREPARED_BYTES
            && !self.shared.signal.is_raised()
        {
            let waited = self.shared.filled.wait_timeout(state, Duration::from_millis(5));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the next session. Never blocks.
    pub(super) fn take(&self) -> TakenRequest {
        let mut state = self.shared.lock();
        if let Some(progress) = state.ready.pop_front() {
            state.bytes -= size(&progress);
            let last = state.is_exhausted && state.ready.is_empty();
            drop(state);
            self.shared.room.notify_one();
            return if last { TakenRequest::Last(progress) } else { TakenRequest::Ready(progress) };
        }
        if state.is_exhausted {
            return TakenRequest::Exhausted;
        }
        state.load_waits = true;
        TakenRequest::NotYet
    }

    /// Ends the thread. Passes a panic of the workload on.
    ///
    /// # Errors
    /// If a request could not be created.
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

impl Drop for RequestFeed {
    fn drop(&mut self) {
        self.end();
    }
}

/// Guard that marks the feed as over when it is dropped.
struct ExhaustedGuard<'a>(&'a SharedFeed);

impl Drop for ExhaustedGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().is_exhausted = true;
        self.0.filled.notify_one();
        self.0.signal.wake();
    }
}

impl SharedFeed {
    fn fill(&self, range: SessionRange, prepare: impl Fn(u64, u64) -> Result<UserProgress, LoadError>) {
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
            while state.bytes >= MAX_PREPARED_BYTES && !state.dropped {
                state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.dropped {
                return;
            }
            state.bytes += size(&progress);
            state.ready.push_back(progress);
            // Set together with the last session, so that the load does not wait for another.
            state.is_exhausted = left == 0 || index + 1 == end;
            let hungry = std::mem::take(&mut state.load_waits);
            drop(state);
            self.filled.notify_one();
            if hungry {
                self.signal.wake();
            }
        }
    }
}

fn size(progress: &UserProgress) -> usize {
    progress.turns.iter().map(|turn| turn.request.len()).sum()
}

fn prepare(
    workload: &dyn Workload,
    protocol: &ServerProtocol,
    endpoint: &ServerEndpoint,
    index: u64,
    room: u64,
) -> Result<UserProgress, LoadError> {
    let turns = workload.session(index).turns.into_iter().take(usize::try_from(room).unwrap_or(usize::MAX));
    let turns = turns.map(|turn| {
        let request = endpoint.request(&protocol.body(&turn.request)?);
        Ok(PreparedRequest { request, requested_tokens: turn.request.output_len, think: turn.think })
    });
    Ok(UserProgress { session: index, turn: 0, turns: turns.collect::<Result<_, LoadError>>()? })
}
