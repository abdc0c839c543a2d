//! The program as its users meet it: through its binary, its files and its database.
// Clippy takes functions beside the tests, which all of this is, for code that ships.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod agreement;
mod bad_input;
mod bench;
mod check;
mod counters;
mod doctor;
mod exercise;
mod faults;
mod hardware;
mod help;
mod incidents;
mod killed;
mod late_starts;
mod memory_model;
mod model_shapes;
mod preflight;
mod real_bench;
mod real_faults;
mod real_vllm;
mod reap;
mod recorded_cases;
mod recorded_commands;
mod resume;
mod slots;
mod spaces;
mod starts;
mod startup;
mod study;
mod support;
mod telemetry;
mod twin_accuracy;
mod twin_presets;
mod vitals;
mod wrappers;
