//! `setpoint` finds the best launch parameters of an LLM inference engine on the user's own hardware.
//!
//! The modules follow the way of a trial through the program. The table in `ARCHITECTURE.md` lists the modules that
//! each module may use. `tests/architecture.rs` enforces it.

// Data types that all other modules share. Their I/O: `document`, `facts` and `workload` read files, `facts` queries
// the host and its GPUs, and `private_files` creates files.
pub mod stats;
mod expression;
mod guard;
pub mod config;
pub mod document;
pub mod facts;
pub mod flag;
pub mod space;
pub mod workload;
pub mod trial;
pub mod objective;
mod private_files;

// Predict and decide: pure functions. The only I/O: `twin` can read a measured profile of step times.
mod surrogate;
pub mod memory;
pub mod twin;
pub mod sampler;
pub mod decision;
mod load_search;
pub mod rule;
mod cost;

// Describe engines, launch them and stop them.
pub mod engine;
pub mod server;

// Drive the load, support each engine, and turn observations into metrics.
pub mod load;
pub mod engines;
pub mod preflight;
mod telemetry;
mod metrics;

// Store trials, read study files and deployments, predict results, and run studies.
pub mod store;
pub mod deployment;
pub mod job;
pub mod predict;
pub mod execution;
mod init;
pub mod prior;
mod optimize;
pub mod tuner;
mod import;
mod observation;

// Report results and export configurations.
mod study_report;
mod report;
mod export;
mod pages;
mod terminal_view;

// The simulated engine runs as a separate process. Its code is in `engines::sim::process`.

// The only place for arguments, printing and exit codes.
pub mod cli;
