//! Texts of the view: cut to a width, free of control characters, with units.

use std::borrow::Cow;
use std::time::Duration;

use console::{measure_text_width, truncate_str};

use super::theme::ViewTheme;
use crate::report::{metric_title, metric_unit, number};
use crate::trial::{Measurement, without_controls};

/// Returns a text of a database or a log without control characters.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    without_controls(text)
}

/// Cuts a text to this many columns, with an ellipsis if something is lost.
pub(super) fn cut(text: &str, columns: usize, theme: ViewTheme) -> Cow<'_, str> {
    truncate_str(text, columns, if columns < 6 { "" } else { theme.ellipsis() })
}

pub(super) fn width(text: &str) -> usize {
    measure_text_width(text)
}

/// Wraps words to this many columns. Longer words are split.
pub(super) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = vec![String::new()];
    for mut word in text.split_whitespace() {
        while !word.is_empty() {
            let line = lines.last_mut().map(std::mem::take).unwrap_or_default();
            let gap = usize::from(!line.is_empty());
            let free = columns.saturating_sub(width(&line) + gap);
            let head = truncate_str(word, free, "").into_owned();
            // A word that fits on a line of its own is not split.
            let fits = head.len() == word.len() || (line.is_empty() && !head.is_empty());
            let last = lines.len() - 1;
            if fits {
                word = &word[head.len()..];
                lines[last] = if gap == 1 { format!("{line} {head}") } else { head };
            } else if line.is_empty() {
                // Not even one character fits.
                return lines;
            } else {
                lines[last] = line;
            }
            if !word.is_empty() {
                lines.push(String::new());
            }
        }
    }
    lines
}

/// Splits a line after this many columns, with all of its blanks.
pub(super) fn fold(text: &str, columns: usize) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), text);
    while width(rest) > columns {
        let head = truncate_str(rest, columns, "");
        if head.is_empty() {
            return lines;
        }
        rest = &rest[head.len()..];
        lines.push(head.into_owned());
    }
    lines.push(rest.to_owned());
    lines
}

/// Returns a duration such as `0.4 s`, `40 s`, `12 min` or `3.5 h`.
pub(super) fn short_time(duration: Duration) -> String {
    match duration.as_secs_f64() {
        seconds if seconds < 10.0 => format!("{seconds:.1} s"),
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 5400.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        seconds => format!("{:.1} days", seconds / 86_400.0),
    }
}

pub(super) fn short_seconds(seconds: f64) -> String {
    short_time(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
}

/// Returns a value with its unit.
pub(super) fn with_unit(value: f64, metric: &str) -> String {
    format!("{} {}", number(value), metric_unit(metric)).trim_end().to_owned()
}

/// Returns the title of a metric without its unit.
pub(super) fn title_of(metric: &str) -> String {
    if metric == Measurement::LOAD_UNDER_SLO { "highest load".to_owned() } else { metric_title(metric) }
}

/// Returns the title of a metric with its unit, such as `output (tok/s)`.
pub(super) fn titled(metric: &str) -> String {
    match metric_unit(metric) {
        "" => title_of(metric),
        unit => format!("{} ({unit})", title_of(metric)),
    }
}

/// Returns a bar of this many columns that is filled to a share from 0 to 1.
pub(super) fn progress_bar(share: f64, columns: usize, theme: ViewTheme) -> String {
    let [full, empty] = theme.progress();
    let filled = crate::stats::f64_to_usize((share.clamp(0.0, 1.0) * crate::stats::to_f64(columns)).round());
    format!("{}{}", full.repeat(filled), empty.repeat(columns.saturating_sub(filled)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_only_long_ones_are_split() {
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("a abcdefghij", 5), ["a", "abcde", "fghij"]);
        assert_eq!(wrap("模型模型", 4), ["模型", "模型"]);
        assert_eq!(wrap("模型", 1), [""]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(fold("  a b  c", 4), ["  a ", "b  c"]);
        assert_eq!(fold("模型a", 3), ["模", "型a"]);
        assert_eq!(fold("模型", 1), [""; 0]);
    }

    #[test]
    fn durations_and_bars_are_short() {
        let times = [0.42, 12.0, 300.0, 12_600.0, 400_000.0].map(short_seconds);
        assert_eq!(times, ["0.4 s", "12 s", "5 min", "3.5 h", "4.6 days"]);
        let theme = ViewTheme { has_color: false, is_utf8: false };
        assert_eq!(progress_bar(0.5, 4, theme), "##--");
        assert_eq!(progress_bar(7.0, 3, theme), "###");
    }
}
