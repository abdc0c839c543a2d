//! The program as its users meet it: through its binary, its files and its database.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "the helpers of tests are tests as well")]

mod bad_input;
mod real_vllm;
mod recorded_commands;
mod resume;
mod spaces;
mod study;
mod support;
