//! YAML texts of exports.

use serde::Serialize;
use serde_saphyr::ser_options;

use super::ExportError;
use crate::trial::{is_control, without_controls};

/// Writes comment lines, and the documents that follow them, each after its `---` except the first.
///
/// # Errors
/// If a value has no YAML, such as a map with a map as its key. If a text contains a mark of the direction of writing:
/// the serializer does not escape it, and the file would look different from its content.
pub(super) fn write_yaml<T: Serialize>(comments: &[String], documents: &[T]) -> Result<String, ExportError> {
    let mut text = String::new();
    for comment in comments {
        text.push_str("# ");
        // A comment ends at any line end of YAML, and control characters are not YAML.
        text.push_str(&without_controls(comment));
        text.push('\n');
    }
    // Long words stay on one line: readers of YAML 1.1 unfold lines in other ways.
    let options = ser_options! { prefer_block_scalars: false };
    for (index, document) in documents.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string_with_options(document, options.clone())?);
    }
    if let Some(mark) = text.chars().find(|c| is_control(*c) && *c != '\n') {
        let problem = format!("a value contains the invisible character U+{:04X}", u32::from(mark));
        return Err(ExportError::unsuitable(problem, "use --format sh or json, which write it as an escape"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that a reader of YAML 1.1 or 1.2 takes for another type, or that have characters of YAML's own.
    const DIFFICULT: [&str; 26] = [
        "no",
        "on",
        "Y",
        "~",
        "null",
        "1e3",
        "0x10",
        "0o17",
        "017",
        "1_000",
        "12:30:45",
        ".inf",
        "1.0",
        "=",
        "<<",
        "- a",
        "a: b",
        "a #b",
        "{\"a\": 1}",
        "*a",
        "&a",
        "!a",
        "",
        " a ",
        "a\n\nb\n",
        "$HOME 'x' \"y\" \\ \u{e9}",
    ];

    #[test]
    fn every_text_stays_a_text() {
        let text = write_yaml(&["a\nb".to_owned()], &[DIFFICULT]).unwrap();
        assert!(text.starts_with("# a b\n"), "{text}");
        let documents = <saphyr::Yaml<'_> as saphyr::LoadableYamlNode<'_>>::load_from_str(&text).unwrap();
        let words: Vec<_> = documents[0].as_vec().unwrap().iter().map(|word| word.as_str()).collect();
        assert_eq!(words, DIFFICULT.map(Some), "{text}");
    }

    #[test]
    fn control_characters_are_escaped_and_marks_of_direction_are_refused() {
        let text = write_yaml(&[], &[["a\u{1b}\u{7f}\u{85}\u{2028}\0b"]]).unwrap();
        assert!(!text.contains(|c| is_control(c) && c != '\n'), "{text:?}");
        let error = write_yaml(&[], &[["a\u{202e}b"]]).unwrap_err();
        assert_eq!(error.to_string(), "a value contains the invisible character U+202E");
    }

    #[test]
    fn documents_are_separated() {
        let documents = [std::collections::BTreeMap::from([("a", 1)]), std::collections::BTreeMap::from([("b", 2)])];
        assert_eq!(write_yaml(&[], &documents).unwrap(), "a: 1\n---\nb: 2\n");
    }
}
