//! The program as its users meet it: through its binary, its files and its database.
// Clippy takes functions beside the tests, which all of this is, for code that ships.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod bad_input;
mod hardware;
mod help;
mod real_vllm;
mod recorded_commands;
mod resume;
mod spaces;
mod study;
mod support;
