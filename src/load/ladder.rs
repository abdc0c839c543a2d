//! Search for the highest load that keeps given limits: bracketing by strides, then bisection to 2 %.
//!
//! A load is one number, such as a number of users or of sessions per second. The limits are those of the caller.
//!
//! The search is a state machine without clock and sockets. It proposes a load, and the caller records whether the
//! limits held. Predictions and measurements can therefore share it.

/// The highest load that keeps the limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HighestLoad {
    /// No tried load keeps them. This is the lowest one.
    Below(f64),
    /// The highest load that keeps them, to 2 % or to a whole number.
    At(f64),
    /// They hold up to this load. No higher one was tried.
    AtLeast(f64),
}

impl HighestLoad {
    /// Returns the load, if one keeps the limits.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        match self {
            Self::Below(_) => None,
            Self::At(value) | Self::AtLeast(value) => Some(value),
        }
    }
}

/// The loads that a [`LoadLadder`] may propose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadRange {
    /// The first load.
    pub(crate) begin: f64,
    /// The factor between successive loads while the limit is not bracketed. Above 1.
    pub(crate) stride: f64,
    /// No load above it is proposed, except for the first.
    pub(crate) most: f64,
    /// Whether loads are whole numbers from 1 on, such as a number of users.
    pub(crate) is_whole: bool,
}

/// The next step of a [`LoadLadder`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LadderStep {
    /// Run this load, and [`LoadLadder::record`] whether the limits held.
    Try(f64),
    Done(HighestLoad),
}

/// Relative width at which the search ends.
const PRECISION: f64 = 0.02;

/// Maximum number of multiplications or divisions by the stride.
const MAX_STRIDES: u32 = 12;

/// The state of a search.
#[derive(Clone, Debug)]
pub(crate) struct LoadLadder {
    range: LoadRange,
    bracket: Bracket,
    step: LadderStep,
}

/// Bounds of the highest load so far.
#[derive(Clone, Copy, Debug)]
enum Bracket {
    Unknown,
    /// The limits fail at `high`, and are assumed to fail above it. `left` strides remain.
    Above {
        high: f64,
        left: u32,
    },
    /// The limits hold at `low`. `left` strides remain.
    Below {
        low: f64,
        left: u32,
    },
    Between {
        low: f64,
        high: f64,
    },
}

impl LoadLadder {
    #[must_use]
    pub(crate) fn new(range: LoadRange) -> Self {
        Self { range, bracket: Bracket::Unknown, step: LadderStep::Try(range.begin) }
    }

    /// Returns the load to try, or the result. Unchanged until [`LoadLadder::record`].
    #[must_use]
    pub(crate) fn step(&self) -> LadderStep {
        self.step
    }

    /// Records whether all limits held at the load that [`LoadLadder::step`] proposes. Has no effect after the end.
    pub(crate) fn record(&mut self, held: bool) {
        let LadderStep::Try(load) = self.step else { return };
        // A limit of the form "at least" may hold only at higher loads. After a first failure the search goes down
        // nevertheless.
        self.bracket = match (self.bracket, held) {
            (Bracket::Unknown, true) => Bracket::Below { low: load, left: MAX_STRIDES },
            (Bracket::Unknown, false) => Bracket::Above { high: load, left: MAX_STRIDES },
            (Bracket::Above { left, .. }, false) => Bracket::Above { high: load, left: left - 1 },
            (Bracket::Below { left, .. }, true) => Bracket::Below { low: load, left: left - 1 },
            (Bracket::Above { high, .. } | Bracket::Between { high, .. }, true) => Bracket::Between { low: load, high },
            (Bracket::Below { low, .. } | Bracket::Between { low, .. }, false) => Bracket::Between { low, high: load },
        };
        self.step = self.range.next(self.bracket);
    }
}

impl LoadRange {
    fn next(&self, bracket: Bracket) -> LadderStep {
        let least = if self.is_whole { 1.0 } else { 0.0 };
        match bracket {
            Bracket::Unknown => LadderStep::Try(self.begin),
            Bracket::Above { high, left } => {
                let load = self.round((high / self.stride).min(high - least)).max(least);
                let is_new = load > 0.0 && (load - high).abs() >= f64::EPSILON;
                if left > 0 && is_new { LadderStep::Try(load) } else { LadderStep::Done(HighestLoad::Below(high)) }
            }
            Bracket::Below { low, left } => {
                let load = self.round((low * self.stride).max(low + least));
                if left == 0 || load > self.most {
                    LadderStep::Done(HighestLoad::AtLeast(low))
                } else {
                    LadderStep::Try(load)
                }
            }
            Bracket::Between { low, high } => {
                let middle = self.round(f64::midpoint(low, high));
                let is_wide = high > low * (1.0 + PRECISION) && middle > low && middle < high;
                if is_wide { LadderStep::Try(middle) } else { LadderStep::Done(HighestLoad::At(low)) }
            }
        }
    }

    fn round(&self, load: f64) -> f64 {
        if self.is_whole { load.round() } else { load }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USERS: LoadRange = LoadRange { begin: 8.0, stride: 2.0, most: 1000.0, is_whole: true };
    const RATE: LoadRange = LoadRange { begin: 3.0, stride: 2.0, most: 1e9, is_whole: false };

    /// Returns the tried loads and the result, if the limits hold at the loads that `holds` accepts.
    fn climb(range: LoadRange, holds: impl Fn(f64) -> bool) -> (Vec<f64>, HighestLoad) {
        let (mut ladder, mut tried) = (LoadLadder::new(range), Vec::new());
        loop {
            match ladder.step() {
                LadderStep::Done(found) => return (tried, found),
                LadderStep::Try(load) => {
                    tried.push(load);
                    ladder.record(holds(load));
                }
            }
        }
    }

    #[test]
    fn a_search_tries_these_loads_and_ends_with_this_result() {
        let at_most = |limit: f64| climb(USERS, move |load| load <= limit);
        for (limit, tried, found) in [
            (0.0, vec![8.0, 4.0, 2.0, 1.0], HighestLoad::Below(1.0)),
            (1.0, vec![8.0, 4.0, 2.0, 1.0], HighestLoad::At(1.0)),
            (5.0, vec![8.0, 4.0, 6.0, 5.0], HighestLoad::At(5.0)),
            (8.0, vec![8.0, 16.0, 12.0, 10.0, 9.0], HighestLoad::At(8.0)),
            (21.0, vec![8.0, 16.0, 32.0, 24.0, 20.0, 22.0, 21.0], HighestLoad::At(21.0)),
            (512.0, vec![8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0], HighestLoad::AtLeast(512.0)),
        ] {
            assert_eq!(at_most(limit), (tried, found), "{limit}");
        }
    }

    #[test]
    fn the_first_load_may_be_above_the_most() {
        assert_eq!(climb(LoadRange { most: 4.0, ..USERS }, |_| true), (vec![8.0], HighestLoad::AtLeast(8.0)));
    }

    #[test]
    fn a_small_stride_still_reaches_another_whole_load() {
        let (tried, found) = climb(LoadRange { begin: 2.0, stride: 1.2, ..USERS }, |load| load <= 3.0);
        assert_eq!((tried, found), (vec![2.0, 3.0, 4.0], HighestLoad::At(3.0)));
    }

    #[test]
    fn a_search_ends_after_twelve_strides() {
        let (up, most) = climb(RATE, |_| true);
        assert_eq!((up.len(), most), (13, HighestLoad::AtLeast(3.0 * 4096.0)));
        let (down, least) = climb(RATE, |_| false);
        assert_eq!((down.len(), least), (13, HighestLoad::Below(3.0 / 4096.0)));
    }

    #[test]
    fn a_result_is_final() {
        let mut ladder = LoadLadder::new(LoadRange { begin: 1.0, ..USERS });
        ladder.record(false);
        ladder.record(true);
        assert_eq!(ladder.step(), LadderStep::Done(HighestLoad::Below(1.0)));
        assert_eq!([HighestLoad::Below(1.0), HighestLoad::At(2.0)].map(HighestLoad::value), [None, Some(2.0)]);
    }

    proptest! {
        #[test]
        fn a_limit_within_reach_is_found_to_two_percent(begin in 0.1..100.0_f64, ratio in 0.01..100.0_f64, stride in 1.5..3.0_f64) {
            let limit = begin * ratio;
            let (_, found) = climb(LoadRange { begin, stride, ..RATE }, |load| load <= limit);
            prop_assert!(matches!(found, HighestLoad::At(load) if load <= limit && limit <= load * (1.0 + PRECISION)), "{found:?}");
        }
    }
}
