//! `setpoint` finds the best launch parameters of an LLM inference engine on the user's own hardware.
//!
//! The modules stand in the order in which a trial flows through them. Which of them a module may use is a table in
//! `ARCHITECTURE.md`, which `tests/architecture.rs` enforces.

// Words: pure data; the only I/O is reading files that describe things.
pub mod stats;
mod expression;
pub mod config;
pub mod document;
pub mod facts;
pub mod flag;
pub mod space;
pub mod workload;
pub mod trial;
pub mod objective;
mod private_files;

// Predict and decide: pure functions.
mod surrogate;
pub mod memory;
pub mod twin;
pub mod sampler;
pub mod rule;
mod cost;

// Launch.
pub mod engine;
pub mod server;

// Measure.
pub mod load;
pub mod engines;
pub mod preflight;
mod telemetry;
mod metrics;

// Remember and drive.
pub mod store;
pub mod job;
pub mod predict;
pub mod execution;
pub mod prior;
mod optimize;
pub mod tuner;

// Tell.
mod study_report;
mod report;
mod export;

// The simulated engine, a process of its own.

// The only place for arguments, printing and exit codes.
pub mod cli;
