//! `setpoint` finds the best launch parameters of an LLM inference engine on the user's own hardware.
//!
//! The modules stand in the order in which a trial flows through them. One law holds: a module uses only modules
//! listed above it here. `tests/architecture.rs` enforces it.

// Words: pure data, no I/O except reading a model's `config.json`.
pub mod config;
pub mod facts;
pub mod flag;
pub mod workload;
pub mod trial;

// Predict and decide: pure functions.
pub mod twin;

// The simulated engine, a process of its own.
pub mod sim;
