//! A thread that owns a foreign interface whose calls may hang. Its callers wait no longer than their limit.

use std::collections::VecDeque;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// The reason for which a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeadlineError {
    /// The call in progress and its duration so far.
    Hangs { call: &'static str, since: Duration },
    /// The thread could not be started, or has panicked.
    Gone,
}

type Work<I> = Box<dyn FnOnce(&mut I) + Send>;

/// A call in the queue. Its caller may have stopped waiting.
struct QueuedCall<I> {
    id: u64,
    call: &'static str,
    work: Work<I>,
}

/// The state that callers and the thread share.
struct State<I> {
    queue: VecDeque<QueuedCall<I>>,
    running: Option<(u64, &'static str, Instant)>,
    /// Whether a caller's limit has passed during the running call. New calls then fail at once.
    is_overdue: bool,
    is_started: bool,
    is_gone: bool,
    next: u64,
}

/// The thread's handle. Calls run one after the other.
pub(super) struct DeadlineThread<I> {
    shared: Arc<(Mutex<State<I>>, Condvar)>,
    open: fn() -> I,
    name: &'static str,
}

impl<I: 'static> DeadlineThread<I> {
    /// Creates the handle. The first call starts the thread. It is never joined: the process can end while a call
    /// hangs.
    pub(super) fn new(name: &'static str, open: fn() -> I) -> Self {
        let state = State {
            queue: VecDeque::new(),
            running: None,
            is_overdue: false,
            is_started: false,
            is_gone: false,
            next: 0,
        };
        Self { shared: Arc::new((Mutex::new(state), Condvar::new())), open, name }
    }

    /// Blocks until the answer arrives, for `limit` at most. The error names `call` if it hangs.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        call: &'static str,
        work: impl FnOnce(&mut I) -> T + Send + 'static,
    ) -> Result<T, DeadlineError> {
        let (sender, answer) = std::sync::mpsc::channel();
        let id = self.enqueue(call, Box::new(move |interface| drop(sender.send(work(interface)))))?;
        answer.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.give_up(id),
            // The sender is dropped without an answer only if the thread has ended.
            RecvTimeoutError::Disconnected => DeadlineError::Gone,
        })
    }

    /// Like [`ask`](Self::ask), without blocking. If the future is dropped, the thread still runs the call.
    pub(super) async fn ask_async<T: Send + 'static>(
        &self,
        limit: Duration,
        call: &'static str,
        work: impl FnOnce(&mut I) -> T + Send + 'static,
    ) -> Result<T, DeadlineError> {
        let (sender, answer) = oneshot::channel();
        let id = self.enqueue(call, Box::new(move |interface| drop(sender.send(work(interface)))))?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(DeadlineError::Gone),
            Err(_) => Err(self.give_up(id)),
        }
    }

    fn enqueue(&self, call: &'static str, work: Work<I>) -> Result<u64, DeadlineError> {
        let mut state = self.lock();
        if state.is_overdue
            && let Some((_, call, began)) = state.running
        {
            return Err(DeadlineError::Hangs { call, since: began.elapsed() });
        }
        if !state.is_started {
            state.is_started = true;
            let (shared, open) = (Arc::clone(&self.shared), self.open);
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            state.is_gone = thread.spawn(move || run(&shared, open)).is_err();
        }
        if state.is_gone {
            return Err(DeadlineError::Gone);
        }
        state.next += 1;
        let id = state.next;
        state.queue.push_back(QueuedCall { id, call, work });
        self.shared.1.notify_one();
        Ok(id)
    }

    /// Removes a call from the queue after its caller's limit, and returns the caller's error.
    fn give_up(&self, id: u64) -> DeadlineError {
        let mut state = self.lock();
        state.queue.retain(|question| question.id != id);
        if state.is_gone {
            return DeadlineError::Gone;
        }
        match state.running {
            Some((_, call, began)) => {
                state.is_overdue = true;
                DeadlineError::Hangs { call, since: began.elapsed() }
            }
            // The call has ended at this very moment.
            None => DeadlineError::Hangs { call: "a call", since: Duration::ZERO },
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<I>> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks the thread as gone when a call panics.
struct PanicGuard<'a, I>(&'a (Mutex<State<I>>, Condvar));

impl<I> Drop for PanicGuard<'_, I> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_gone = true;
        state.queue.clear();
    }
}

fn run<I>(shared: &(Mutex<State<I>>, Condvar), open: fn() -> I) {
    let _guard = PanicGuard(shared);
    let mut interface = open();
    loop {
        let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.running, state.is_overdue) = (None, false);
        let question = loop {
            match state.queue.pop_front() {
                Some(question) => break question,
                None => state = shared.1.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        state.running = Some((question.id, question.call, Instant::now()));
        drop(state);
        (question.work)(&mut interface);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_call_that_hangs_is_named_and_later_ones_fail_at_once_until_it_returns() {
        let thread = DeadlineThread::new("test", || 7_u64);
        assert_eq!(thread.ask(LONG, "first", |value| *value), Ok(7));
        let (release, hang) = channel::<()>();
        let named = |result: Result<(), DeadlineError>| match result {
            Err(DeadlineError::Hangs { call, .. }) => call,
            other => panic!("{other:?}"),
        };
        let hung = thread.ask(SHORT, "memory", move |_| hang.recv().is_ok()).map(drop);
        assert_eq!(named(hung), "memory");
        let begin = Instant::now();
        for _ in 0..100 {
            assert_eq!(named(thread.ask(LONG, "clocks", |_| ())), "memory");
        }
        assert!(begin.elapsed() < LONG / 4, "nobody waited");
        release.send(()).unwrap();
        // The thread notices a moment later.
        let answered = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            thread.ask(LONG, "clocks", |value| *value).ok()
        });
        assert_eq!(answered, Some(7));
    }

    #[test]
    fn a_question_that_was_given_up_is_not_asked_later() {
        let thread = DeadlineThread::new("test", Vec::<u8>::new);
        let (release, hang) = channel::<()>();
        let (began, begun) = channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let wait = move |_: &mut Vec<u8>| {
                    began.send(()).unwrap();
                    let _ = hang.recv();
                };
                thread.ask(LONG, "first", wait)
            });
            begun.recv().unwrap();
            let late = thread.ask(SHORT, "second", |seen| seen.push(2));
            assert!(matches!(late, Err(DeadlineError::Hangs { call: "first", .. })), "{late:?}");
            release.send(()).unwrap();
            assert_eq!(first.join().unwrap(), Ok(()));
        });
        let seen = (0..2000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            thread.ask(LONG, "third", |seen| seen.clone()).ok()
        });
        assert_eq!(seen, Some(Vec::new()));
    }

    #[tokio::test]
    async fn a_hung_call_does_not_hold_the_runtime() {
        let thread = DeadlineThread::new("test", || ());
        let (release, hang) = channel::<()>();
        let hung = thread.ask_async(LONG, "memory", move |()| hang.recv().is_ok());
        let dropped = tokio::time::timeout(SHORT, hung).await;
        assert!(dropped.is_err(), "the caller goes away");
        let late = thread.ask_async(SHORT, "clocks", |()| ()).await;
        assert!(matches!(late, Err(DeadlineError::Hangs { call: "memory", .. })), "{late:?}");
        drop(release);
    }

    #[test]
    fn a_panic_is_no_hang() {
        let thread = DeadlineThread::new("test", || ());
        assert_eq!(thread.ask(LONG, "first", |()| -> () { panic!("on purpose") }), Err(DeadlineError::Gone));
        assert_eq!(thread.ask(LONG, "second", |()| ()), Err(DeadlineError::Gone));
    }
}
