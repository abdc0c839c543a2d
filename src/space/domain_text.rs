//! Domains of stored definitions, read back from their text.

use super::{Domain, IntScale};
use crate::config::Value;

impl Domain {
    /// Reads the text that `Display` writes. `None` if it is empty.
    ///
    /// The text does not distinguish all domains: a range of floats with whole bounds is read as one of integers, and
    /// choices that look like numbers are read as numbers.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        match text {
            "" => None,
            "true or false" => Some(Self::Bool),
            _ => range(text).or_else(|| Some(Self::Categorical(choices(text)))),
        }
    }
}

/// Reads `1 to 1024, powers of two` and its like.
fn range(text: &str) -> Option<Domain> {
    let mut parts = text.split(", ");
    let (low, high) = parts.next()?.split_once(" to ")?;
    let (mut scale, mut multiple_of) = (IntScale::Linear, 1);
    for part in parts {
        match part {
            "powers of two" => scale = IntScale::PowerOfTwo,
            "logarithmic" => scale = IntScale::Log,
            _ => {
                let multiple: i64 = part.strip_prefix("multiples of ")?.parse().ok()?;
                multiple_of = (multiple > 0).then_some(multiple)?;
            }
        }
    }
    if let (Ok(low), Ok(high)) = (low.parse(), high.parse()) {
        return Some(Domain::Int { low, high, scale, multiple_of });
    }
    let finite = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
    let is_float = scale != IntScale::PowerOfTwo && multiple_of == 1;
    let float = Domain::Float { low: finite(low)?, high: finite(high)?, log: scale == IntScale::Log };
    is_float.then_some(float)
}

/// Splits a list of choices at its commas, except at those within brackets or quotes of a JSON value.
fn choices(text: &str) -> Vec<Value> {
    let (mut choices, mut begin, mut depth, mut is_quoted, mut is_escaped) = (Vec::new(), 0, 0_usize, false, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '{' | '[' if !is_quoted => depth += 1,
            '}' | ']' if !is_quoted => depth = depth.saturating_sub(1),
            ',' if depth == 0 && !is_quoted && text[index..].starts_with(", ") => {
                choices.push(choice(&text[begin..index]));
                begin = index + 2;
            }
            _ => {}
        }
    }
    choices.push(choice(&text[begin..]));
    choices
}

fn choice(text: &str) -> Value {
    if let Ok(int) = text.parse::<i64>() {
        return Value::Int(int);
    }
    match text.parse::<f64>() {
        Ok(float) if float.is_finite() => Value::Float(float),
        _ => text.parse::<bool>().map_or_else(|_| Value::Text(text.to_owned()), Value::Bool),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{built_in_paths, read_built_in};
    use proptest::prelude::*;

    #[test]
    fn choices_with_commas_stay_whole() {
        let json = r#"{"method": "ngram", "lengths": [1, 2]}"#;
        let values = vec![Value::from("auto"), Value::from(json), Value::Int(4), Value::Float(0.5), Value::Bool(true)];
        let domain = Domain::Categorical(values);
        assert_eq!(Domain::from_text(&domain.to_string()), Some(domain));
    }

    #[test]
    fn what_is_no_range_is_a_list_of_choices() {
        for text in ["1 to 2, often", "a to b", "0.5 to 1, powers of two", "1 to 2, multiples of 0"] {
            assert!(matches!(Domain::from_text(text), Some(Domain::Categorical(_))), "{text}");
        }
        assert_eq!(Domain::from_text(""), None);
    }

    #[test]
    fn the_domains_of_the_built_in_spaces_are_read_back_from_their_text() {
        for path in built_in_paths() {
            let file = read_built_in(path).unwrap();
            for parameter in &file.space.parameters {
                let text = parameter.domain.to_string();
                assert_eq!(Domain::from_text(&text).unwrap().to_string(), text, "{}", parameter.name);
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_are_read_back(low in 1_i64..9000, width in 0_i64..9000, multiple_of in 1_i64..300, fraction in 0.01..0.99) {
            for scale in [IntScale::Linear, IntScale::Log, IntScale::PowerOfTwo] {
                let domain = Domain::Int { low, high: low + width, scale, multiple_of };
                prop_assert_eq!(Domain::from_text(&domain.to_string()), Some(domain));
            }
            for log in [false, true] {
                let domain = Domain::Float { low: fraction, high: 1.0 + fraction, log };
                prop_assert_eq!(Domain::from_text(&domain.to_string()), Some(domain));
            }
        }
    }
}
