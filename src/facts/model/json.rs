//! Reading `config.json` without trusting it.

use std::cell::RefCell;

use serde_json::Value as Json;

/// Sizes above this one are taken for mistakes: no product of the sizes of a real model comes near the limits of its
/// arithmetic.
const LARGEST_SIZE: u64 = 1 << 32;

/// The part that describes the language model: multimodal models nest it.
pub(super) fn language_model(json: &Json) -> &Json {
    let nested = |json: &'_ Json, key: &str| json.get(key).is_some_and(Json::is_object);
    let mut part = json;
    // `thinker_config` holds a `text_config` of its own.
    for key in ["thinker_config", "text_config", "llm_config", "language_config", "language_model"] {
        if nested(part, key) {
            part = &part[key];
        }
    }
    part
}

/// Reads values and remembers the keys that are there but useless.
pub(super) struct Keys<'j> {
    json: &'j Json,
    unread: RefCell<Vec<String>>,
}

impl<'j> Keys<'j> {
    pub(super) fn new(json: &'j Json) -> Self {
        Self { json, unread: RefCell::default() }
    }

    /// The first of these keys that holds a positive whole number of a plausible size.
    pub(super) fn size(&self, names: &[&str]) -> Option<u64> {
        names.iter().find_map(|name| {
            let value = self.json.get(name).filter(|value| !value.is_null())?;
            let number = value.as_u64().filter(|number| *number <= LARGEST_SIZE);
            // Zero is how families say that they do not have the thing.
            if number.is_none() {
                let problem = format!("{name}: {value} is not a size between 1 and {LARGEST_SIZE}");
                self.unread.borrow_mut().push(problem);
            }
            number.filter(|number| *number > 0)
        })
    }

    pub(super) fn text(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.json.get(name).and_then(Json::as_str)).map(str::to_owned)
    }

    pub(super) fn unread(self) -> Vec<String> {
        self.unread.into_inner()
    }
}

/// How many layers have the sliding window: named one by one, or every layer but each `sliding_window_pattern`-th.
pub(super) fn sliding_layers(text: &Json, layers: Option<u64>) -> Option<u64> {
    if let Some(kinds) = text.get("layer_types").and_then(Json::as_array) {
        let sliding = kinds.iter().filter(|kind| kind.as_str() == Some("sliding_attention"));
        return u64::try_from(sliding.count()).ok();
    }
    let layers = layers?;
    match text.get("sliding_window_pattern").and_then(Json::as_u64) {
        Some(pattern) if pattern > 0 => Some(layers - layers / pattern),
        _ => Some(layers),
    }
}
