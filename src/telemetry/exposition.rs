//! Parser of the values in Prometheus' text format: one name, labels and value per line.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>. Lines that cannot be parsed are skipped: pages are
//! foreign, and one odd line must not cost the others.

/// One value of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PageSample<'a> {
    pub(super) name: &'a str,
    /// The unparsed text between the braces.
    pub(super) labels: &'a str,
    pub(super) value: f64,
}

/// Returns the values of a page, in its order.
pub(super) fn samples(page: &str) -> impl Iterator<Item = PageSample<'_>> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<PageSample<'_>> {
    let line = line.trim();
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(inside) => {
            let close = closing_brace(inside)?;
            (&inside[..close], &inside[close + 1..])
        }
        None => ("", rest),
    };
    // A time stamp or an exemplar may follow.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(PageSample { name, labels, value })
}

/// Returns the first closing brace outside of quotes. A label's value may contain quotes and braces.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(line: &str) -> Option<(&str, &str, f64)> {
        samples(line).next().map(|sample| (sample.name, sample.labels, sample.value))
    }

    #[test]
    fn values_are_read_with_and_without_labels_time_stamps_and_exemplars() {
        assert_eq!(one("up 1"), Some(("up", "", 1.0)));
        assert_eq!(one("  up\t1.5e3  "), Some(("up", "", 1500.0)));
        assert_eq!(one("vllm:x{} 2"), Some(("vllm:x", "", 2.0)));
        assert_eq!(one("a_b{engine=\"0\",} 3.0 1395066363000"), Some(("a_b", "engine=\"0\",", 3.0)));
        assert_eq!(one("a{le=\"+Inf\"} +Inf"), Some(("a", "le=\"+Inf\"", f64::INFINITY)));
        assert_eq!(one("a 4 # {trace=\"x\"} 0.67"), Some(("a", "", 4.0)));
        assert!(one("a NaN").unwrap().2.is_nan());
    }

    #[test]
    fn comments_and_invalid_lines_are_skipped() {
        for line in
            ["", "# HELP a b", "# TYPE a counter", "a", "a{", "a{b=\"c} 1", "9a 1", "{a=\"b\"} 1", "a x", "<html> 1"]
        {
            assert_eq!(one(line), None, "{line:?}");
        }
        let values: Vec<_> = samples("# HELP a\r\na 1\r\nnonsense here\nb 2").map(|sample| sample.value).collect();
        assert_eq!(values, [1.0, 2.0]);
    }

    proptest! {
        #[test]
        fn a_labels_value_may_hold_anything(model in "\\PC{0,20}", value in -1e9_f64..1e9) {
            let quoted = model.replace('\\', "\\\\").replace('"', "\\\"");
            let line = format!("vllm:x{{model_name=\"{quoted}\",engine=\"1\"}} {value}");
            let labels = format!("model_name=\"{quoted}\",engine=\"1\"");
            prop_assert_eq!(one(&line), Some(("vllm:x", labels.as_str(), value)));
        }

        #[test]
        fn no_page_makes_it_panic(page in "\\PC{0,60}") {
            prop_assert!(samples(&page).all(|sample| !sample.name.is_empty()));
        }
    }
}
