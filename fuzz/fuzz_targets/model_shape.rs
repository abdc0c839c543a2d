//! Fuzz target: arbitrary bytes as `config.json` must not cause a panic in any code that uses a model's shape.

#![no_main]

#[path = "../../tests/it/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(json) = serde_json::from_slice::<serde_json::Value>(bytes) {
        exercise::everything(&json);
    }
});
