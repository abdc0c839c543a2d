//! The connections of a load: one thread, one `epoll`.
//!
//! A read is handled at once: the bytes pass the readers of HTTP, events and chunks without a copy, a task or a queue.
//! The kernel timestamps their arrival. Neither a burst of a thousand chunks nor a slow machine therefore delays the
//! recorded time of a token. The lag of the loop is measured separately (`ClientUse::lags_us`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::RequestError;
use super::clock::Nanos;
use super::connection::{ExchangeStep, LoadConnection, LoopState};
use super::endpoint::ServerEndpoint;
use super::exchange::{HttpExchange, SendAttempt};
use super::signal::ThreadSignal;

/// Maximum idle time of a connection that is reused. vLLM closes a connection after five idle seconds. A request sent
/// just then would fail by the load's own fault.
const MAX_IDLE: Nanos = 3_000_000_000;

/// A kept connection that is lost within this time after a send counts as stale, and the request is sent again. The
/// server had closed the connection before the send, and the notice takes a round trip. A request that is lost later is
/// assumed to have reached the server, so it fails.
const STALE_LIMIT: Nanos = 500_000_000;

/// Maximum time from `[DONE]` to the end of the body. The connection is closed afterwards.
const DRAIN_LIMIT: Nanos = 250_000_000;

/// Maximum time that `open` waits for connections.
const OPEN_LIMIT: Nanos = 5_000_000_000;

/// Maximum number of events of one `epoll` wait.
const MAX_EVENTS: usize = 1024;

/// `epoll` marks of the descriptors that are no connections.
const TIMER_ID: u64 = u64::MAX;
const SIGNAL_ID: u64 = u64::MAX - 1;
/// Bits of a connection's mark that contain its slot. The other bits contain the connection's number.
const SLOT_MASK: u64 = u32::MAX as u64;

/// The connections of a load and the `epoll` instance that watches them.
pub(super) struct LoadReactor {
    endpoint: Arc<ServerEndpoint>,
    signal: Arc<ThreadSignal>,
    request_timeout: Duration,
    epoll: Epoll,
    timer: TimerFd,
    /// Instant that the timer is set to, or 0.
    armed: Nanos,
    events: Vec<EpollEvent>,
    pub(super) loop_state: LoopState,
    slots: Vec<Option<LoadConnection>>,
    /// Slots without a connection.
    free: Vec<usize>,
    /// Slots of connections without an exchange. The most recently used is taken first.
    idle_slots: Vec<usize>,
    /// Deadlines of exchanges, ascending.
    deadlines: VecDeque<Deadline>,
    /// Deadlines for the end of a body after `[DONE]`, ascending.
    drains: VecDeque<Deadline>,
    /// Number of connections opened so far.
    pub(super) connections: u64,
    /// Number of requests that were sent a second time.
    pub(super) resent: u64,
}

/// A timer of one exchange.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Nanos,
    slot: usize,
    /// First send of the exchange. It identifies the exchange within its slot.
    sent: Nanos,
}

/// A finished exchange, with the error that broke it, if any.
#[derive(Debug)]
pub(super) struct FinishedExchange {
    pub(super) exchange: HttpExchange,
    /// 0 if no head arrived.
    pub(super) status: u16,
    pub(super) lost: Option<RequestError>,
}

impl LoadReactor {
    /// # Errors
    /// If the kernel has no descriptor left.
    pub(super) fn new(
        endpoint: Arc<ServerEndpoint>,
        signal: Arc<ThreadSignal>,
        desk: LoopState,
        request_timeout: Duration,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        epoll.add(timer.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, TIMER_ID))?;
        epoll.add(signal.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, SIGNAL_ID))?;
        Ok(Self {
            endpoint,
            signal,
            request_timeout,
            epoll,
            timer,
            armed: 0,
            events: vec![EpollEvent::empty(); MAX_EVENTS],
            loop_state: desk,
            slots: Vec::new(),
            free: Vec::new(),
            idle_slots: Vec::new(),
            deadlines: VecDeque::new(),
            drains: VecDeque::new(),
            connections: 0,
            resent: 0,
        })
    }

    /// Opens connections ahead of the requests, and waits until they are established or have failed. Failures are not
    /// reported: the request that needs a connection tries again and reports its own failure.
    ///
    /// # Errors
    /// If the kernel refuses a resource that the loop needs.
    pub(super) fn open(&mut self, connections: usize) -> io::Result<()> {
        let deadline = self.loop_state.clock.now() + OPEN_LIMIT;
        for _ in 0..connections {
            let Ok(connection) = LoadConnection::open(&self.endpoint) else { break };
            self.insert(connection)?;
        }
        while self.idle_slots.len() < self.slots.len() - self.free.len()
            && self.loop_state.clock.now() < deadline
            && !self.signal.is_raised()
        {
            for event in 0..self.wait(deadline)? {
                self.handle(event)?;
            }
        }
        Ok(())
    }

    /// Sends a request, on an idle connection if there is one. Returns the exchange if it has ended at once.
    ///
    /// # Errors
    /// If the kernel refuses a resource that the loop needs.
    pub(super) fn begin(&mut self, mut exchange: HttpExchange) -> io::Result<Option<FinishedExchange>> {
        let deadline = Deadline { at: exchange.deadline, slot: 0, sent: exchange.first_sent };
        while let Some(slot) = self.idle_slots.pop() {
            let Some(connection) = self.slots[slot].as_mut() else { continue };
            if connection.has_carried_exchange && exchange.first_sent.saturating_sub(connection.idle_since) > MAX_IDLE {
                self.close(slot);
                continue;
            }
            exchange.attempt = SendAttempt::Kept;
            let step = connection.begin(exchange);
            self.deadlines.push_back(Deadline { slot, ..deadline });
            return self.apply_step(slot, step);
        }
        exchange.attempt = SendAttempt::Fresh;
        match LoadConnection::open(&self.endpoint) {
            Err(error) => Ok(Some(FinishedExchange { exchange, status: 0, lost: Some(error) })),
            Ok(mut connection) => {
                let step = connection.begin(exchange);
                let slot = self.insert(connection)?;
                self.deadlines.push_back(Deadline { slot, ..deadline });
                self.apply_step(slot, step)
            }
        }
    }

    /// Waits for events, until the instant `until` at the latest. Returns the number of events to handle.
    ///
    /// # Errors
    /// If the kernel refuses the wait.
    pub(super) fn wait(&mut self, until: Nanos) -> io::Result<usize> {
        self.drop_finished_timers();
        let timers = [self.deadlines.front(), self.drains.front()];
        let until = timers.into_iter().flatten().map(|timer| timer.at).fold(until, Nanos::min);
        let now = self.loop_state.clock.now();
        let timeout = if until <= now { EpollTimeout::ZERO } else { EpollTimeout::NONE };
        if until > now && until != self.armed {
            // A timeout of `epoll` itself has a resolution of one millisecond.
            let after = TimeSpec::from(Duration::from_nanos(until - now));
            self.timer.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())?;
            self.armed = until;
        }
        let events = match self.epoll.wait(&mut self.events, timeout) {
            Ok(events) => events,
            Err(Errno::EINTR) => 0,
            Err(error) => return Err(error.into()),
        };
        self.loop_state.clock.adjust();
        self.loop_state.woken = self.loop_state.clock.now();
        Ok(events)
    }

    /// Handles an event of the last [`wait`](Self::wait).
    ///
    /// # Errors
    /// If the kernel refuses a resource that the loop needs.
    pub(super) fn handle(&mut self, event: usize) -> io::Result<Option<FinishedExchange>> {
        let (mark, ready) = (self.events[event].data(), self.events[event].events());
        match mark {
            TIMER_ID => {
                self.armed = 0;
                // Reading the timer clears its readiness.
                let _ = self.timer.wait();
                return Ok(None);
            }
            SIGNAL_ID => {
                self.signal.clear();
                return Ok(None);
            }
            _ => {}
        }
        let slot = usize::try_from(mark & SLOT_MASK).unwrap_or(usize::MAX);
        // An earlier event may have closed the connection, and another may have taken its slot.
        let connection = self.slots.get_mut(slot).and_then(Option::as_mut);
        let Some(connection) = connection.filter(|connection| connection.mark == mark) else { return Ok(None) };
        let was_ready = connection.is_ready();
        let failed = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        let mut step = ExchangeStep::Pending;
        if connection.is_connected() {
            if ready.contains(EpollFlags::EPOLLOUT) {
                connection.write();
            }
            if ready.intersects(failed | EpollFlags::EPOLLIN) {
                step = connection.read(&mut self.loop_state);
            }
        } else if ready.intersects(failed | EpollFlags::EPOLLOUT) {
            step = connection.finish_connect();
        }
        if !was_ready && connection.is_ready() && connection.exchange.is_none() {
            self.idle_slots.push(slot);
        }
        self.apply_step(slot, step)
    }

    /// Returns the next exchange whose deadline has passed.
    pub(super) fn expired(&mut self) -> Option<FinishedExchange> {
        let now = self.loop_state.clock.now();
        while let Some(drain) = self.drains.pop_front_if(|drain| drain.at <= now) {
            if self.is_in_flight(drain) {
                return self.finish(drain.slot, None, false);
            }
        }
        while let Some(deadline) = self.deadlines.pop_front_if(|deadline| deadline.at <= now) {
            if self.is_in_flight(deadline)
                && let Some(exchange) = self.slots[deadline.slot].as_ref().and_then(|slot| slot.exchange.as_ref())
            {
                let lost = exchange.timeout(self.request_timeout);
                return self.finish(deadline.slot, Some(lost), false);
            }
        }
        None
    }

    /// Drops the leading timers of finished exchanges. With a timeout of minutes there would be thousands, and each
    /// would wake the loop.
    fn drop_finished_timers(&mut self) {
        while self.deadlines.front().is_some_and(|timer| !self.is_in_flight(*timer)) {
            self.deadlines.pop_front();
        }
        while self.drains.front().is_some_and(|timer| !self.is_in_flight(*timer)) {
            self.drains.pop_front();
        }
    }

    /// Returns whether the exchange that a timer was set for is still in flight.
    fn is_in_flight(&self, timer: Deadline) -> bool {
        let exchange = self.slots[timer.slot].as_ref().and_then(|connection| connection.exchange.as_ref());
        exchange.is_some_and(|exchange| exchange.first_sent == timer.sent)
    }

    /// Acts on the new state of a connection.
    fn apply_step(&mut self, slot: usize, step: ExchangeStep) -> io::Result<Option<FinishedExchange>> {
        let Some(connection) = self.slots[slot].as_mut() else { return Ok(None) };
        match step {
            ExchangeStep::Pending => {
                let interest = connection.interest();
                if interest != connection.watched {
                    let mut event = EpollEvent::new(interest, connection.mark);
                    self.epoll.modify(&connection.socket, &mut event)?;
                    connection.watched = interest;
                }
                if let Some(exchange) = connection.exchange.as_mut()
                    && exchange.starts_draining()
                {
                    let timer = Deadline { at: self.loop_state.woken + DRAIN_LIMIT, slot, sent: exchange.first_sent };
                    self.drains.push_back(timer);
                }
                Ok(None)
            }
            ExchangeStep::Complete => {
                let keeps = connection.is_reusable();
                Ok(self.finish(slot, None, keeps))
            }
            ExchangeStep::Broken(error) => self.broken(slot, error),
        }
    }

    /// Handles a broken connection. Sends the request again if the connection was stale, and otherwise ends the
    /// exchange.
    fn broken(&mut self, slot: usize, error: RequestError) -> io::Result<Option<FinishedExchange>> {
        let Some(connection) = self.slots[slot].as_mut() else { return Ok(None) };
        let now = self.loop_state.clock.now();
        let stale = matches!(error, RequestError::Reset(_)) && !connection.response.started;
        let again = connection.exchange.take_if(|exchange| {
            stale && exchange.attempt == SendAttempt::Kept && now.saturating_sub(exchange.first_sent) < STALE_LIMIT
        });
        let Some(mut exchange) = again else { return Ok(self.finish(slot, Some(error), false)) };
        // The server had closed the kept connection, so the request never reached it.
        self.close(slot);
        self.resent += 1;
        exchange.prepare_resend(now);
        // A new connection is opened, because other kept ones may be stale too.
        let mut connection = match LoadConnection::open(&self.endpoint) {
            Ok(connection) => connection,
            Err(error) => return Ok(Some(FinishedExchange { exchange, status: 0, lost: Some(error) })),
        };
        let (at, sent) = (exchange.deadline, exchange.first_sent);
        let step = connection.begin(exchange);
        let slot = self.insert(connection)?;
        let place = self.deadlines.partition_point(|deadline| deadline.at <= at);
        self.deadlines.insert(place, Deadline { at, slot, sent });
        self.apply_step(slot, step)
    }

    /// Ends a connection's exchange, and closes the connection unless `keeps`.
    fn finish(&mut self, slot: usize, lost: Option<RequestError>, keeps: bool) -> Option<FinishedExchange> {
        let connection = self.slots[slot].as_mut()?;
        let (exchange, status) = (connection.exchange.take(), connection.response.status);
        if keeps {
            connection.idle_since = self.loop_state.clock.now();
            connection.has_carried_exchange = true;
            self.idle_slots.push(slot);
        } else {
            self.close(slot);
        }
        exchange.map(|exchange| FinishedExchange { exchange, status, lost })
    }

    fn insert(&mut self, mut connection: LoadConnection) -> io::Result<usize> {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        connection.watched = connection.interest();
        self.connections += 1;
        connection.mark = self.connections << 32 | slot as u64;
        self.epoll.add(&connection.socket, EpollEvent::new(connection.watched, connection.mark))?;
        if slot == self.slots.len() {
            self.slots.push(Some(connection));
        } else {
            self.slots[slot] = Some(connection);
        }
        Ok(slot)
    }

    /// Closes a connection. Its socket thereby leaves `epoll`.
    fn close(&mut self, slot: usize) {
        if self.slots[slot].take().is_some() {
            self.idle_slots.retain(|idle| *idle != slot);
            self.free.push(slot);
        }
    }
}
