//! `setpoint` finds the best launch parameters of an LLM inference engine on the user's own hardware.
//!
//! The modules follow the way of a trial through the program. The table in `ARCHITECTURE.md` lists the modules that
//! each module may use. `tests/architecture.rs` enforces it.

// Words: pure data. The only I/O is reading files that describe models, devices and workloads.
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

// Report.
mod study_report;
mod report;
mod export;

// The simulated engine is a separate process: `engines::sim::process`.

// The only place for arguments, printing and exit codes.
pub mod cli;
