//! The part of a load that the server's numbers are computed over.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::trial::MeasuredWindow;

/// A part of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadSpan {
    pub(super) range: Range<Instant>,
    /// Whether nothing of the load comes after it. Counters then no longer change, so that the sample after the load has
    /// their values at the end.
    pub(super) ends_load: bool,
}

impl LoadSpan {
    /// Returns the measured part of a load that lasted for `load`: the window if there is one, else all of it.
    #[must_use]
    pub(crate) fn measured(load: Range<Instant>, window: Option<&MeasuredWindow>) -> Self {
        let Some(window) = window else { return Self { range: load, ends_load: true } };
        let at = |seconds: f64| load.start + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Self { range: at(window.from_s)..at(window.to_s), ends_load: !window.steady }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_window_ends_before_its_load() {
        let began = Instant::now();
        let load = began..began + Duration::from_secs(12);
        let window = MeasuredWindow {
            from_s: 2.5,
            to_s: 10.0,
            steady: true,
            reason: String::new(),
            saved_s: None,
            overloaded: false,
        };
        let part = LoadSpan::measured(load.clone(), Some(&window));
        assert_eq!(part.range.start - began, Duration::from_millis(2500));
        assert_eq!(part.range.end - part.range.start, Duration::from_millis(7500));
        assert!(!part.ends_load);
        assert_eq!(LoadSpan::measured(load.clone(), None), LoadSpan { range: load, ends_load: true });
    }
}
