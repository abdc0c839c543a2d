//! Order and times of the sends: arrivals, concurrency limit and thinking users, without a clock or a socket.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::clock::{Nanos, nanos};
use super::feed::{PreparedRequest, TakenRequest, UserProgress};

/// The instants at which sessions are due, counted from the window's start; never descending.
pub(crate) type RequestInstants = Box<dyn Iterator<Item = Duration>>;

/// One request of a session, real or simulated.
pub(crate) trait ScheduledTurn {
    /// Returns the user's think time before this turn, counted from the reply to the previous turn.
    fn think(&self) -> Duration;
}

/// State of one phase: sessions that are due, users that think and free places.
pub(crate) struct LoadSchedule<T = PreparedRequest> {
    /// Origin of the instants.
    zero: Nanos,
    /// `None` if a session is due as soon as a place is free.
    instants: Option<RequestInstants>,
    /// The first instant that has not come yet.
    next: Option<Nanos>,
    /// Due times of sessions that have not begun, for lack of a place or of a prepared session.
    due: VecDeque<Nanos>,
    /// Later turns of users that still think.
    thinking: BinaryHeap<Reverse<ThinkingUser<T>>>,
    /// Maximum number of users in a closed loop, otherwise of requests in flight.
    places: usize,
    /// Sessions that have begun and not ended.
    sessions: usize,
    pub(crate) in_flight: usize,
    /// When a place last became free after all had been taken.
    place_freed_at: Nanos,
    /// End of the phase: nothing is sent from here on.
    end: Option<Nanos>,
    /// Whether no further session begins.
    over: bool,
    /// Number of times that a session could have begun but was not ready.
    pub(super) starved: u64,
    /// Whether the current wait for a ready session has been counted.
    starving: bool,
}

/// A user between two turns.
struct ThinkingUser<T> {
    /// End of the think time.
    due: Nanos,
    progress: UserProgress<T>,
}

/// The next action of the load.
#[derive(Debug)]
pub(crate) enum NextSend<T = PreparedRequest> {
    /// A request to send now.
    Send {
        turn: T,
        /// The session's further turns.
        rest: UserProgress<T>,
        /// `None` if the request is due when it is sent.
        due: Option<Nanos>,
        /// Whether the request waited for a place.
        queued: bool,
    },
    /// Nothing to do before this instant, unless an exchange ends.
    WaitUntil(Nanos),
    /// Nothing to do until an exchange ends, or the feed has a session.
    WaitForEvent,
    /// Nothing left to send. Exchanges may still be in flight.
    Finished,
}

impl<T: ScheduledTurn> LoadSchedule<T> {
    /// Creates a phase that begins at `zero`. `places` limits the users of a closed loop (no `instants`), otherwise the
    /// requests in flight.
    pub(crate) fn new(
        zero: Nanos,
        instants: Option<RequestInstants>,
        places: Option<usize>,
        length: Option<Duration>,
    ) -> Self {
        Self {
            zero,
            instants,
            next: None,
            due: VecDeque::new(),
            thinking: BinaryHeap::new(),
            places: places.unwrap_or(usize::MAX),
            sessions: 0,
            in_flight: 0,
            place_freed_at: 0,
            end: length.map(|length| zero.saturating_add(nanos(length))),
            over: false,
            starved: 0,
            starving: false,
        }
        .advanced()
    }

    fn advanced(mut self) -> Self {
        self.advance();
        self
    }

    fn advance(&mut self) {
        let instant = self.instants.as_mut().and_then(Iterator::next);
        self.next = instant.map(|at| self.zero.saturating_add(nanos(at)));
    }

    /// Returns whether a session begins as soon as another has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.instants.is_none()
    }

    /// Returns the number of sessions that are due and have not begun.
    pub(crate) fn waiting(&self) -> usize {
        self.due.len()
    }

    /// Returns the next action at `now`. `take` returns the next session.
    pub(crate) fn next(&mut self, now: Nanos, take: impl FnMut() -> TakenRequest<T>) -> NextSend<T> {
        if self.end.is_some_and(|end| now >= end) {
            self.over = true;
            self.thinking.clear();
        }
        while !self.over && self.next.is_some_and(|next| next <= now) {
            self.due.extend(self.next);
            self.advance();
        }
        // If the instants have ended, no further session begins.
        self.over |= self.instants.is_some() && self.next.is_none() && self.due.is_empty();
        let has_place = self.in_flight < self.places;
        // In a closed loop a thinking user keeps its place.
        let may_go_on = has_place || self.instants.is_none();
        if self.thinking.peek().is_some_and(|turn| may_go_on && turn.0.due <= now)
            && let Some(Reverse(thinking)) = self.thinking.pop()
        {
            let queued = thinking.due < self.place_freed_at;
            // A turn that did not wait for a place is due when it is sent.
            let due = (self.instants.is_some() && queued).then_some(thinking.due);
            if let Some(next) = self.send(thinking.progress, due, queued) {
                return next;
            }
        }
        if let Some(next) = self.begin(has_place, take) {
            return next;
        }
        let thinking = self.thinking.peek().map(|turn| turn.0.due).filter(|_| may_go_on);
        match [thinking, self.next.filter(|_| !self.over)].into_iter().flatten().min() {
            Some(at) => NextSend::WaitUntil(self.end.map_or(at, |end| at.min(end))),
            None if self.over && self.thinking.is_empty() => NextSend::Finished,
            None => self.end.map_or(NextSend::WaitForEvent, NextSend::WaitUntil),
        }
    }

    /// Begins a session, if one is due and a place is free.
    fn begin(&mut self, has_place: bool, mut take: impl FnMut() -> TakenRequest<T>) -> Option<NextSend<T>> {
        let due = if self.instants.is_some() { Some(*self.due.front()?) } else { None };
        let held = if self.instants.is_some() { !has_place } else { self.sessions >= self.places };
        if self.over || held {
            return None;
        }
        let (progress, last) = match take() {
            TakenRequest::Ready(progress) => (progress, false),
            TakenRequest::Last(progress) => (progress, true),
            TakenRequest::NotYet => {
                self.starved += u64::from(!std::mem::replace(&mut self.starving, true));
                return None;
            }
            TakenRequest::Exhausted => {
                self.over = true;
                self.due.clear();
                return None;
            }
        };
        self.starving = false;
        self.due.pop_front();
        if last {
            // Recorded at once, so that the phase does not wait for the next instant to end.
            self.over = true;
            self.due.clear();
        }
        self.sessions += 1;
        self.send(progress, due, due.is_some_and(|due| due < self.place_freed_at))
    }

    fn send(&mut self, mut progress: UserProgress<T>, due: Option<Nanos>, queued: bool) -> Option<NextSend<T>> {
        let Some(turn) = progress.turns.pop_front() else {
            // A session without turns sends nothing.
            self.sessions -= 1;
            return None;
        };
        progress.turn += 1;
        self.in_flight += 1;
        Some(NextSend::Send { turn, rest: progress, due, queued })
    }

    /// Records the end of an exchange. A user whose request failed continues with the next turn.
    pub(crate) fn record_end(&mut self, rest: UserProgress<T>, now: Nanos) {
        if self.in_flight >= self.places {
            self.place_freed_at = now;
        }
        self.in_flight -= 1;
        match rest.turns.front() {
            Some(next) if self.end.is_none_or(|end| now < end) => {
                let due = now.saturating_add(nanos(next.think()));
                self.thinking.push(Reverse(ThinkingUser { due, progress: rest }));
            }
            _ => self.sessions -= 1,
        }
    }
}

impl<T> Ord for ThinkingUser<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.progress.session).cmp(&(other.due, other.progress.session))
    }
}

impl<T> PartialOrd for ThinkingUser<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Eq for ThinkingUser<T> {}

impl<T> PartialEq for ThinkingUser<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    /// Returns a feed of `sessions` sessions with `turns` turns each. The users think for 5 ms.
    fn feed(sessions: u64, turns: usize) -> impl FnMut() -> TakenRequest {
        let mut session = 0;
        move || {
            if session == sessions {
                return TakenRequest::Exhausted;
            }
            session += 1;
            let think = Duration::from_millis(5);
            let turns =
                (0..turns).map(|_| PreparedRequest { request: Vec::new(), requested_tokens: 1, think }).collect();
            TakenRequest::Ready(UserProgress { session: session - 1, turn: 0, turns })
        }
    }

    fn sent(next: NextSend) -> (UserProgress, Option<Nanos>, bool) {
        match next {
            NextSend::Send { rest, due, queued, .. } => (rest, due, queued),
            other => panic!("{other:?}"),
        }
    }

    fn every_10_ms() -> RequestInstants {
        Box::new((0..).map(|i| Duration::from_millis(10 * i)))
    }

    #[test]
    fn a_closed_loop_keeps_its_users_busy_until_there_is_nothing_left() {
        let (mut schedule, mut feed) = (LoadSchedule::new(0, None, Some(2), None), feed(3, 1));
        let first = sent(schedule.next(0, &mut feed)).0;
        sent(schedule.next(0, &mut feed));
        assert!(matches!(schedule.next(0, &mut feed), NextSend::WaitForEvent));
        schedule.record_end(first, 7 * MS);
        let (third, due, queued) = sent(schedule.next(7 * MS, &mut feed));
        assert_eq!((third.session, due, queued), (2, None, false));
        schedule.record_end(third, 8 * MS);
        assert!(matches!(schedule.next(8 * MS, &mut feed), NextSend::Finished));
        assert_eq!(schedule.in_flight, 1);
    }

    #[test]
    fn a_thinking_user_keeps_the_place_in_a_closed_loop() {
        let (mut schedule, mut feed) = (LoadSchedule::new(0, None, Some(1), None), feed(2, 2));
        let first = sent(schedule.next(0, &mut feed)).0;
        schedule.record_end(first, MS);
        assert!(matches!(schedule.next(MS, &mut feed), NextSend::WaitUntil(at) if at == 6 * MS));
        let again = sent(schedule.next(6 * MS, &mut feed)).0;
        assert_eq!((again.session, again.turn), (0, 2));
        schedule.record_end(again, 7 * MS);
        assert_eq!(sent(schedule.next(7 * MS, &mut feed)).0.session, 1);
    }

    #[test]
    fn an_open_loop_sends_when_due_with_any_number_of_requests_in_flight() {
        let (mut schedule, mut feed) = (LoadSchedule::new(MS, Some(every_10_ms()), None, None), feed(3, 1));
        assert_eq!(sent(schedule.next(MS, &mut feed)).1, Some(MS));
        assert!(matches!(schedule.next(MS, &mut feed), NextSend::WaitUntil(at) if at == 11 * MS));
        // This call is late: both sessions are sent, and keep their due times.
        assert_eq!(sent(schedule.next(25 * MS, &mut feed)).1, Some(11 * MS));
        let (_, due, queued) = sent(schedule.next(25 * MS, &mut feed));
        assert_eq!((due, queued), (Some(21 * MS), false));
        assert!(matches!(schedule.next(31 * MS, &mut feed), NextSend::Finished));
    }

    #[test]
    fn a_session_that_waits_for_a_place_is_queued_and_counts_from_its_due_time() {
        let (mut schedule, mut feed) = (LoadSchedule::new(0, Some(every_10_ms()), Some(1), None), feed(3, 1));
        let first = sent(schedule.next(0, &mut feed)).0;
        assert!(matches!(schedule.next(10 * MS, &mut feed), NextSend::WaitUntil(at) if at == 20 * MS));
        assert_eq!(schedule.waiting(), 1);
        schedule.record_end(first, 15 * MS);
        let (_, due, queued) = sent(schedule.next(15 * MS, &mut feed));
        assert_eq!((due, queued), (Some(10 * MS), true));
    }

    #[test]
    fn after_the_duration_nothing_is_sent_and_due_sessions_are_counted() {
        let (mut schedule, mut feed) =
            (LoadSchedule::new(0, Some(every_10_ms()), Some(1), Some(Duration::from_millis(25))), feed(9, 2));
        let first = sent(schedule.next(0, &mut feed)).0;
        assert!(matches!(schedule.next(21 * MS, &mut feed), NextSend::WaitUntil(at) if at == 25 * MS));
        schedule.record_end(first, 24 * MS);
        assert!(matches!(schedule.next(25 * MS, &mut feed), NextSend::Finished));
        assert_eq!((schedule.waiting(), schedule.in_flight), (2, 0));
    }

    #[test]
    fn instants_that_end_are_the_end_of_the_sessions() {
        let instants: RequestInstants = Box::new([Duration::ZERO].into_iter());
        let (mut schedule, mut feed) = (LoadSchedule::new(0, Some(instants), None, None), feed(9, 1));
        assert_eq!(sent(schedule.next(0, &mut feed)).0.session, 0);
        assert!(matches!(schedule.next(0, &mut feed), NextSend::Finished));
    }

    #[test]
    fn the_last_session_ends_the_schedule_despite_later_instants() {
        let (mut schedule, mut feed) = (LoadSchedule::new(0, Some(every_10_ms()), None, None), feed(1, 1));
        let last = || match feed() {
            TakenRequest::Ready(progress) => TakenRequest::Last(progress),
            other => other,
        };
        sent(schedule.next(25 * MS, last));
        assert!(matches!(schedule.next(25 * MS, || panic!("asked again")), NextSend::Finished));
        assert_eq!(schedule.waiting(), 0);
    }

    #[test]
    fn a_feed_that_is_behind_is_noticed_once_and_waited_for() {
        let mut schedule: LoadSchedule = LoadSchedule::new(0, None, Some(1), None);
        assert!(matches!(schedule.next(0, || TakenRequest::NotYet), NextSend::WaitForEvent));
        assert!(matches!(schedule.next(MS, || TakenRequest::NotYet), NextSend::WaitForEvent));
        assert_eq!(schedule.starved, 1);
        sent(schedule.next(2 * MS, feed(1, 1)));
    }
}
