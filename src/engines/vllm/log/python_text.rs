//! Pairs of names and values as Python and Prometheus print them.

/// Returns the pairs of `a=1, b='x', c=[1, 2]` or, with `:`, of `'a': 1, 'b': 'x'`, up to the closing bracket of the
/// surrounding text. Quotes are removed. Text in brackets stays unchanged.
pub(super) fn fields(text: &str, separator: char) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let (mut name, mut current) = (None, String::new());
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for c in text.chars() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if c == open => quote = None,
            // Quotes are only valid at the beginning of a value or inside brackets. Elsewhere they are apostrophes.
            (None, '\'' | '"') if depth > 0 || current.trim().is_empty() => quote = Some(c),
            (None, '(' | '[' | '{' | '<') => depth += 1,
            (None, ')' | ']' | '}' | '>') if depth > 0 => depth -= 1,
            (None, ')' | ']' | '}') => break,
            (None, ',') if depth == 0 => {
                pairs.extend(pair(&mut name, &mut current));
                continue;
            }
            (None, _) if depth == 0 && c == separator && name.is_none() => {
                name = Some(std::mem::take(&mut current));
                continue;
            }
            _ => {}
        }
        current.push(c);
    }
    pairs.extend(pair(&mut name, &mut current));
    pairs
}

fn pair(name: &mut Option<String>, value: &mut String) -> Option<(String, String)> {
    let value = std::mem::take(value);
    Some((unquoted(&name.take()?), unquoted(&value)))
}

fn unquoted(text: &str) -> String {
    let text = text.trim();
    let inside = ['\'', '"'].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote));
    inside.unwrap_or(text).to_owned()
}

/// Returns the labels of a series, from the text after its opening brace: `a="1",b="x"} 1.0`.
/// <https://prometheus.io/docs/instrumenting/exposition_formats/>
pub(super) fn labels(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let (mut value, mut end, mut escaped) = (String::new(), None, false);
        for (at, c) in after.char_indices() {
            match c {
                'n' if escaped => value.push('\n'),
                _ if escaped => value.push(c),
                '\\' => {}
                '"' => {
                    end = Some(at + 1);
                    break;
                }
                _ => value.push(c),
            }
            escaped = c == '\\' && !escaped;
        }
        let Some(end) = end else { break };
        pairs.push((name.trim_start_matches(',').trim().to_owned(), value));
        rest = &after[end..];
        if rest.starts_with('}') {
            break;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn brackets_and_quotes_keep_their_commas() {
        let text = "a=1, b='x, y', c=[1, 2], d=Some(x='it', y={1: 2}), e=<Mode.NONE: 0>, f=it's, g=2), h=3";
        let expected = [
            ("a", "1"),
            ("b", "x, y"),
            ("c", "[1, 2]"),
            ("d", "Some(x='it', y={1: 2})"),
            ("e", "<Mode.NONE: 0>"),
            ("f", "it's"),
            ("g", "2"),
        ];
        assert_eq!(fields(text, '='), owned(&expected));
        assert_eq!(
            fields("'model': 'm', 'n': 8, 'c': {\"level\": 3}} tail", ':'),
            owned(&[("model", "m"), ("n", "8"), ("c", "{\"level\": 3}")])
        );
    }

    proptest! {
        #[test]
        fn labels_come_back_whatever_they_hold(values in proptest::collection::vec("\\PC{0,12}", 0..6)) {
            let quoted = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let written: Vec<_> = values.iter().enumerate().map(|(n, v)| format!("l{n}=\"{}\"", quoted(v))).collect();
            let expected: Vec<_> = values.iter().enumerate().map(|(n, v)| (format!("l{n}"), v.clone())).collect();
            prop_assert_eq!(labels(&format!("{}}} 1.0", written.join(","))), expected);
        }

        #[test]
        fn no_text_makes_them_panic(text in "[a-z=:'\"(){}\\[\\]<>, \\\\]{0,40}") {
            let _ = (fields(&text, '='), fields(&text, ':'), labels(&text));
        }
    }
}
