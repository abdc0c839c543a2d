//! Any bytes as `config.json`: nothing that looks at a model's shape may panic.

#![no_main]

#[path = "../../tests/it/exercise.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(json) = serde_json::from_slice::<serde_json::Value>(bytes) {
        exercise::everything(&json);
    }
});
