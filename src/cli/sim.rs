//! `sim serve`: the simulated engine.

use std::io::Write;

use clap::{CommandFactory, Subcommand};

use super::failure::Failure;
use super::output::print;
use crate::sim::{Options, ServeError, serve};

#[derive(Debug, Subcommand)]
pub(super) enum Sim {
    /// Serve a model that is not there: `sim serve MODEL [flags of vllm serve] [--sim-* options]`.
    #[command(disable_help_flag = true)]
    Serve {
        /// The model's directory, flags as of `vllm serve`, and how the simulation behaves: --sim-vllm-version,
        /// --sim-device, --sim-startup-s, --sim-time-scale, --sim-seed, --sim-noise.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "MODEL AND FLAGS")]
        arguments: Vec<String>,
    },
}

/// The engine's own flags are not clap's, so that `--help` among them has to be answered by hand.
fn help() -> String {
    let mut command = super::Cli::command();
    command.build();
    let serve = command.find_subcommand_mut("sim").and_then(|sim| sim.find_subcommand_mut("serve"));
    serve.map(|serve| serve.render_help().to_string()).unwrap_or_default()
}

impl Sim {
    /// Refusals are written as the real engine writes them and keep its exit codes.
    pub(super) async fn run(self) -> Result<(), Failure> {
        let Self::Serve { arguments } = self;
        if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
            return print(&help());
        }
        let result = match Options::parse(&arguments) {
            Ok(options) => serve(options).await,
            Err(refusal) => Err(ServeError::Refused(refusal)),
        };
        result.map_err(|error| {
            let _ = writeln!(anstream::stderr(), "{error}");
            Failure::new(error.exit_code(), "")
        })
    }
}
