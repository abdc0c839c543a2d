//! Time series, and their statistics over a window.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json, json};

use super::LoadSpan;
use crate::stats::{f64_to_i32, f64_to_i64};

/// Values of one instant, by name.
pub(super) type SeriesRow = Vec<(&'static str, f64)>;

/// Series that only grow, except for a restart of the process that counts.
const COUNTERS: &[&str] = &[
    "preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
    "engine_steps",
    "drafts",
    "draft_tokens",
    "accepted_draft_tokens",
    "cpu_s",
    "cpu_busy_s",
    "cpu_all_s",
    "energy_j",
];

/// Share of a window that samples must cover. With less, the increase of a counter is unknown.
const MIN_COVERAGE: f64 = 0.9;

/// Values of one source: a column for each name, all with the same instants. Missing values are NaN.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SeriesTable {
    at: Vec<Instant>,
    columns: BTreeMap<&'static str, Vec<f64>>,
}

impl SeriesTable {
    /// Adds the values of one instant. Instants must not descend.
    pub(super) fn push(&mut self, at: Instant, row: &SeriesRow) {
        for (name, value) in row {
            let column = self.columns.entry(name).or_default();
            column.resize(self.at.len(), f64::NAN);
            column.push(*value);
        }
        self.at.push(at);
        for column in self.columns.values_mut() {
            column.resize(self.at.len(), f64::NAN);
        }
    }

    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Returns the finite values of a series and their instants, in order.
    fn points(&self, name: &str) -> Vec<(Instant, f64)> {
        let Some(column) = self.columns.get(name) else { return Vec::new() };
        self.at.iter().copied().zip(column.iter().copied()).filter(|(_, value)| value.is_finite()).collect()
    }

    /// Returns the values of a gauge within a window.
    pub(super) fn within(&self, name: &str, window: &LoadSpan) -> Vec<f64> {
        let inside = |at: &Instant| (window.range.start..=window.range.end).contains(at);
        self.points(name).into_iter().filter(|(at, _)| inside(at)).map(|(_, value)| value).collect()
    }

    /// Returns the latest value of a series.
    pub(super) fn last(&self, name: &str) -> Option<f64> {
        self.points(name).last().map(|(_, value)| *value)
    }

    /// Returns the growth of a counter within a window, or `None` if samples do not cover it.
    pub(super) fn increase(&self, name: &str, window: &LoadSpan) -> Option<f64> {
        growth(&accumulated(&self.points(name)), window)
    }

    /// Returns the integral of a gauge over a window, in its unit times seconds. Returns `None` if samples do not cover
    /// it.
    pub(super) fn integral(&self, name: &str, window: &LoadSpan) -> Option<f64> {
        let points = self.points(name);
        let mut sum = 0.0;
        let mut areas = Vec::with_capacity(points.len());
        for (index, (at, value)) in points.iter().enumerate() {
            if let Some((before, earlier)) = index.checked_sub(1).and_then(|index| points.get(index)) {
                sum += (value + earlier) / 2.0 * (*at - *before).as_secs_f64();
            }
            areas.push((*at, sum));
        }
        growth(&areas, window)
    }

    /// Returns the table as an object of columns, with at most `most` + 1 evenly spread samples. `at_s` is in seconds
    /// from `zero`. Counters begin at 0. Other values are rounded to four significant digits.
    pub(super) fn to_json(&self, zero: Instant, most: usize) -> Json {
        let step = self.at.len().div_ceil(most.max(1)).max(1);
        // The last sample is always kept: it closes the counters.
        let kept: Vec<usize> =
            (0..self.at.len()).filter(|index| index % step == 0 || index + 1 == self.at.len()).collect();
        let mut object = Map::new();
        let at: Vec<Json> = kept.iter().map(|index| json!(round(seconds(self.at[*index], zero), 3))).collect();
        object.insert("at_s".to_owned(), at.into());
        for (name, column) in &self.columns {
            let values: Vec<f64> = if COUNTERS.contains(name) {
                let grown = accumulated(&self.at.iter().copied().zip(column.iter().copied()).collect::<Vec<_>>());
                grown.into_iter().map(|(_, value)| round(value, 3)).collect()
            } else {
                column.iter().map(|value| significant(*value)).collect()
            };
            let values: Vec<Json> = kept.iter().map(|index| number(values[*index])).collect();
            object.insert((*name).to_owned(), values.into());
        }
        object.into()
    }
}

/// Returns a counter without its resets, from 0. A value below the previous one means a restart. NaN is kept.
fn accumulated(points: &[(Instant, f64)]) -> Vec<(Instant, f64)> {
    let (mut sum, mut before) = (0.0, None);
    let grown = |(at, value): &(Instant, f64)| {
        if value.is_nan() {
            return (*at, f64::NAN);
        }
        sum += match before {
            None => 0.0,
            Some(before) if *value >= before => value - before,
            Some(_) => *value,
        };
        before = Some(*value);
        (*at, sum)
    };
    points.iter().map(grown).collect()
}

/// Returns the growth of a monotonic series: its value at the end of the window less that at the start, by linear
/// interpolation. Returns `None` if the points do not cover the window.
///
/// A window that ends with the load and between the last two samples is extended to the last one.
fn growth(points: &[(Instant, f64)], window: &LoadSpan) -> Option<f64> {
    let LoadSpan { range: window, ends_load } = window;
    let [(first, _), .., (last, total)] = points else { return None };
    let length = window.end.saturating_duration_since(window.start);
    let covered = window.end.min(*last).saturating_duration_since(window.start.max(*first));
    if covered.as_secs_f64() < MIN_COVERAGE * length.as_secs_f64() {
        return None;
    }
    let in_the_last_gap = *ends_load && points.len() >= 2 && window.end > points[points.len() - 2].0;
    let end = if in_the_last_gap { *total } else { value_at(points, window.end) };
    Some(end - value_at(points, window.start))
}

fn value_at(points: &[(Instant, f64)], at: Instant) -> f64 {
    let next = points.partition_point(|(when, _)| *when <= at);
    match (next.checked_sub(1).and_then(|before| points.get(before)), points.get(next)) {
        (Some((before, low)), Some((after, high))) => {
            let gap = (*after - *before).as_secs_f64();
            low + (high - low) * ((at - *before).as_secs_f64() / gap)
        }
        (Some((_, value)), None) | (None, Some((_, value))) => *value,
        (None, None) => f64::NAN,
    }
}

/// Returns the seconds from `zero`, negative before it.
fn seconds(at: Instant, zero: Instant) -> f64 {
    match at.checked_duration_since(zero) {
        Some(after) => after.as_secs_f64(),
        None => -Duration::as_secs_f64(&(zero - at)),
    }
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Rounds to four significant digits. Whole numbers are kept.
fn significant(value: f64) -> f64 {
    if value == 0.0 || value.fract() == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = f64_to_i32(value.abs().log10().floor());
    round(value, (3 - exponent).clamp(0, 12))
}

/// Converts to JSON. Whole numbers get no decimal point, which saves a third of the size. NaN becomes null.
fn number(value: f64) -> Json {
    if value.fract() == 0.0 && value.abs() < 9e15 { json!(f64_to_i64(value)) } else { json!(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(began: Instant, name: &'static str, points: &[(u64, f64)]) -> SeriesTable {
        let mut table = SeriesTable::default();
        for (at_ms, value) in points {
            table.push(began + Duration::from_millis(*at_ms), &vec![(name, *value)]);
        }
        table
    }

    fn window(began: Instant, from_ms: u64, to_ms: u64) -> LoadSpan {
        let range = began + Duration::from_millis(from_ms)..began + Duration::from_millis(to_ms);
        LoadSpan { range, ends_load: true }
    }

    #[test]
    fn a_counter_grows_by_what_lies_between_the_ends_of_the_window() {
        let began = Instant::now();
        let table = table(began, "x", &[(0, 100.0), (1000, 110.0), (2000, 130.0), (3000, 130.0), (4000, 170.0)]);
        assert_eq!(table.increase("x", &window(began, 0, 2000)), Some(30.0));
        assert_eq!(table.increase("x", &window(began, 500, 1500)), Some(15.0));
        assert_eq!(table.increase("x", &window(began, 3000, 3001)), Some(40.0), "the last sample closes the window");
        let before_the_end = LoadSpan { ends_load: false, ..window(began, 3000, 3500) };
        assert_eq!(table.increase("x", &before_the_end), Some(20.0));
        assert_eq!(table.increase("y", &window(began, 0, 2000)), None);
    }

    #[test]
    fn a_counter_that_restarts_keeps_its_earlier_increase() {
        let began = Instant::now();
        let table = table(began, "x", &[(0, 50.0), (1000, 60.0), (2000, 5.0), (3000, 9.0)]);
        assert_eq!(table.increase("x", &window(began, 0, 3000)), Some(19.0));
    }

    #[test]
    fn a_window_that_samples_do_not_cover_has_no_increase() {
        let began = Instant::now();
        let table = table(began, "x", &[(0, 1.0), (1000, 2.0)]);
        assert_eq!(table.increase("x", &window(began, 0, 1050)), Some(1.0));
        assert_eq!(table.increase("x", &window(began, 0, 5000)), None);
        assert_eq!(self::table(began, "x", &[(0, 1.0)]).increase("x", &window(began, 0, 1)), None);
    }

    #[test]
    fn power_over_time_is_energy() {
        let began = Instant::now();
        let table = table(began, "power_w", &[(0, 100.0), (1000, 100.0), (2000, 300.0), (4000, 300.0)]);
        assert_eq!(table.integral("power_w", &window(began, 0, 4000)), Some(100.0 + 200.0 + 600.0));
    }

    #[test]
    fn missing_values_are_nulls_and_columns_keep_their_length() {
        let began = Instant::now();
        let mut table = SeriesTable::default();
        table.push(began, &vec![("a", 1.25)]);
        table.push(began + Duration::from_millis(1500), &vec![("preemptions", 7.0)]);
        table.push(began + Duration::from_millis(2500), &vec![("a", 123.456), ("preemptions", 9.0)]);
        let json = table.to_json(began + Duration::from_millis(1500), 100);
        let expected = r#"{"at_s":[-1.5,0.0,1.0],"a":[1.25,null,123.5],"preemptions":[null,0,2]}"#;
        assert_eq!(json, serde_json::from_str::<Json>(expected).unwrap());
    }

    #[test]
    fn a_long_series_is_thinned_and_keeps_its_last_sample() {
        let began = Instant::now();
        let points: Vec<_> = (0..1000).map(|second| (second * 1000, 0.5)).collect();
        let json = table(began, "a", &points).to_json(began, 120);
        let at = json["at_s"].as_array().unwrap();
        assert!((100..=122).contains(&at.len()), "{}", at.len());
        assert_eq!((&at[0], &at[at.len() - 1]), (&json!(0.0), &json!(999.0)));
    }

    proptest! {
        #[test]
        fn the_increases_of_the_parts_of_a_window_add_up(
            steps in prop::collection::vec(0.0_f64..50.0, 4..30), cut in 0.0_f64..1.0,
        ) {
            let began = Instant::now();
            let mut sum = 0.0;
            let points: Vec<_> = steps.iter().zip(0..).map(|(step, second)| { sum += step; (second * 1000, sum) }).collect();
            let table = table(began, "x", &points);
            let length = Duration::from_secs(points.len() as u64 - 2);
            let (end, middle) = (began + length, began + length.mul_f64(cut));
            let increase = |range| table.increase("x", &LoadSpan { range, ends_load: false }).unwrap();
            let whole = increase(began..end);
            let parts = increase(began..middle) + increase(middle..end);
            prop_assert!((whole - parts).abs() < 1e-6, "{} {}", whole, parts);
            prop_assert!(whole >= 0.0);
        }
    }
}
