//! Defensive reading of `config.json`.

use std::cell::RefCell;

use serde_json::Value as Json;

/// Larger sizes are treated as mistakes. Products of the sizes of real models stay far below the limits of `u64`.
pub(super) const LARGEST_SIZE: u64 = 1 << 32;

/// The largest number of characters of an unusable value that are quoted.
const LONGEST_QUOTE: usize = 60;

/// Returns the part that describes the language model: multimodal models nest it.
pub(super) fn language_model(json: &Json) -> &Json {
    let mut part = json;
    // `thinker_config` contains a `text_config` of its own.
    for key in ["thinker_config", "text_config", "llm_config", "language_config", "language_model", "decoder_config"] {
        if let Some(nested) = part.get(key).filter(|nested| nested.is_object()) {
            part = nested;
        }
    }
    part
}

/// The value of a key.
enum KeyValue {
    Size(u64),
    /// Absent, null or zero. Families write zero for a part that they do not have.
    Absent,
    Unusable,
}

/// A reader of values that collects the keys with unusable values.
pub(super) struct ShapeKeys<'j> {
    json: &'j Json,
    unusable: RefCell<Vec<String>>,
}

impl<'j> ShapeKeys<'j> {
    pub(super) fn new(json: &'j Json) -> Self {
        Self { json, unusable: RefCell::default() }
    }

    fn find(&self, name: &str) -> KeyValue {
        let Some(value) = self.json.get(name).filter(|value| !value.is_null()) else { return KeyValue::Absent };
        match value.as_u64() {
            Some(0) => KeyValue::Absent,
            Some(number) if number <= LARGEST_SIZE => KeyValue::Size(number),
            _ => {
                let quoted: String = value.to_string().chars().take(LONGEST_QUOTE).collect();
                let problem = format!("{name}: {quoted} is not a size between 1 and {LARGEST_SIZE}");
                let mut unread = self.unusable.borrow_mut();
                if !unread.contains(&problem) {
                    unread.push(problem);
                }
                KeyValue::Unusable
            }
        }
    }

    /// Returns the value of the first of these keys that has a positive whole number of a plausible size.
    pub(super) fn size(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| match self.find(name) {
            KeyValue::Size(size) => Some(size),
            KeyValue::Absent | KeyValue::Unusable => None,
        })
    }

    /// Like [`size`](Self::size), with `otherwise` if none of the keys has a value. `None` if an earlier key has an
    /// unusable value: it is not guessed.
    pub(super) fn size_or(&self, names: &[&str], otherwise: impl FnOnce() -> Option<u64>) -> Option<u64> {
        for name in names {
            match self.find(name) {
                KeyValue::Size(size) => return Some(size),
                KeyValue::Unusable => return None,
                KeyValue::Absent => {}
            }
        }
        otherwise()
    }

    /// Returns the smallest of these keys' sizes.
    pub(super) fn smallest(&self, names: &[&str]) -> Option<u64> {
        names.iter().filter_map(|name| self.size(&[name])).min()
    }

    pub(super) fn text(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.json.get(name).and_then(Json::as_str)).map(str::to_owned)
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.json.get(name).and_then(Json::as_bool)
    }

    pub(super) fn into_unusable(self) -> Vec<String> {
        self.unusable.into_inner()
    }
}
