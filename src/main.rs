//! Entry point of the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    setpoint::cli::main()
}
