//! The command line: the only place for arguments, printing and exit codes. One file for each subcommand.

mod bench;
mod best;
mod check;
mod compare;
mod completions;
mod doctor;
mod examples;
mod export;
mod failure;
mod folder;
mod import;
mod importance;
mod init;
mod man;
mod optimize;
mod output;
mod predict;
mod progress;
mod query;
mod reap;
mod report;
mod serve;
mod signal;
mod sim;
mod spaces;
mod sql;
mod trials;
mod tune;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use failure::CommandFailure;

use crate::report::EMBEDDED_LICENSES;

/// Finds the best launch parameters of an LLM inference engine on your own hardware.
#[derive(Debug, Parser)]
#[command(name = "setpoint", version, propagate_version = true, max_term_width = 100, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    /// Print the licences of the scripts that reports and live pages contain.
    #[arg(long, exclusive = true)]
    licenses: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
struct GlobalOptions {
    /// The database of studies and trials: a path or a `sqlite:` URL.
    #[arg(
        long,
        global = true,
        env = "SETPOINT_DB",
        hide_env_values = true,
        default_value = "setpoint.db",
        value_name = "PATH"
    )]
    db: String,
    /// Print only results and errors.
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Print each phase of a trial and each rejected configuration.
    #[arg(long, short, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Format of progress and errors on standard error: text, or one JSON object per line.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// For lists of trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ListFormat {
    Table,
    Json,
    Csv,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Table,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a study or continue it.
    Tune(Box<tune::TuneCommand>),
    /// Write a commented study file for a model on this machine.
    Init(Box<init::InitCommand>),
    /// Validate a study file or engine arguments without starting a server.
    Check(check::CheckCommand),
    /// Measure throughput and latencies of a running server.
    Bench(Box<bench::BenchCommand>),
    /// Predict the metrics of configurations under a study's load, without starting a server.
    Predict(predict::PredictCommand),
    /// Run only the optimizer, for other programs, over JSON lines.
    Optimize(optimize::OptimizeCommand),
    /// List the search spaces that ship with the program, or print one.
    Spaces(spaces::SpacesCommand),
    /// List the studies of the database.
    Studies(query::StudiesCommand),
    /// List the trials of a study.
    Trials(trials::TrialsCommand),
    /// Show a study on the terminal while it runs.
    Watch(watch::WatchCommand),
    /// Show everything about one trial.
    Show(query::ShowCommand),
    /// Show the best configurations of a study.
    Best(best::BestCommand),
    /// Compare two trials: their flags, metrics and significance.
    Compare(compare::CompareCommand),
    /// Run one SELECT on the database, which cannot change anything.
    Sql(sql::SqlCommand),
    /// Show which parameters of a study matter, and the expected metric for their values.
    Importance(importance::ImportanceCommand),
    /// Store results of earlier measurements as a study of imported trials.
    Import(import::ImportCommand),
    /// Write the report of a study: one HTML file, Markdown or JSON.
    Report(report::ReportCommand),
    /// Show the studies as live web pages. Only reads the database.
    Serve(serve::ServeCommand),
    /// Export the winning configuration, for instance as a script.
    Export(export::ExportCommand),
    /// Check this machine for problems that would stop a study.
    Doctor(doctor::DoctorCommand),
    /// End servers that a killed run has left running.
    Reap(reap::ReapCommand),
    /// Run the simulated engine.
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Print a script that completes commands and options in a shell.
    Completions(completions::CompletionsCommand),
    /// Write one manual page per command.
    Man(man::ManCommand),
}

/// Returns the definition of the command line. The long help of each command ends with its examples.
fn command() -> clap::Command {
    examples::with_examples(command_without_examples(), "setpoint")
}

fn command_without_examples() -> clap::Command {
    Cli::command()
}

/// Runs the program and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli =
        Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.format(&mut command()).exit());
    let format = cli.global.log_format;
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return CommandFailure::unexpected(format!("cannot start the runtime: {error}")).report(format),
    };
    let result = runtime.block_on(run(cli));
    // Does not wait for tasks that are still running.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(format),
    }
}

async fn run(cli: Cli) -> Result<(), CommandFailure> {
    let Some(command) = cli.command else { return without_command(cli.licenses) };
    match command {
        Command::Tune(tune) => Box::pin(tune.run(&cli.global)).await,
        Command::Init(init) => Box::pin(init.run(&cli.global)).await,
        Command::Check(check) => check.run(&cli.global).await,
        Command::Bench(bench) => bench.run(&cli.global).await,
        Command::Predict(predict) => predict.run(&cli.global).await,
        Command::Optimize(optimize) => optimize.run(),
        Command::Spaces(spaces) => spaces.run(&cli.global),
        Command::Studies(studies) => studies.run(&cli.global).await,
        Command::Trials(trials) => trials.run(&cli.global).await,
        Command::Watch(watch) => watch.run(&cli.global).await,
        Command::Show(show) => show.run(&cli.global).await,
        Command::Best(best) => best.run(&cli.global).await,
        Command::Compare(compare) => Box::pin(compare.run(&cli.global)).await,
        Command::Sql(sql) => sql.run(&cli.global).await,
        Command::Importance(importance) => importance.run(&cli.global).await,
        Command::Import(import) => import.run(&cli.global).await,
        Command::Report(report) => Box::pin(report.run(&cli.global)).await,
        Command::Serve(serve) => Box::pin(serve.run(&cli.global)).await,
        Command::Export(export) => Box::pin(export.run(&cli.global)).await,
        Command::Doctor(doctor) => doctor.run(&cli.global).await,
        Command::Reap(reap) => reap.run(&cli.global).await,
        Command::Sim(sim) => sim.run().await,
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(&cli.global),
    }
}

/// Runs the program without a subcommand: only `--licenses` needs none.
fn without_command(licenses: bool) -> Result<(), CommandFailure> {
    if !licenses {
        command().error(clap::error::ErrorKind::MissingSubcommand, "a command is missing").exit();
    }
    let texts = EMBEDDED_LICENSES.iter();
    let texts = texts.map(|it| format!("{} {}, {}\n\n{}", it.name, it.version, it.license, it.notice.trim_end()));
    output::print(&texts.collect::<Vec<_>>().join("\n\n----\n\n"))
}

/// Parses a duration such as `90s` or `8h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let problem = |_| {
        let is_number = text.parse::<f64>().is_ok_and(|seconds| seconds.is_finite() && seconds >= 0.0);
        let hint = if is_number { format!("; for {text} seconds write {text}s") } else { String::new() };
        format!("expected a duration such as 90s, 15m or 8h{hint}")
    };
    let duration: jiff::SignedDuration = text.parse().map_err(problem)?;
    Duration::try_from(duration).map_err(|_| "must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn a_duration_without_a_unit_is_refused_with_the_text_to_write() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        let expected = "expected a duration such as 90s, 15m or 8h";
        assert_eq!(parse_duration("5"), Err(format!("{expected}; for 5 seconds write 5s")));
        assert_eq!(parse_duration("soon"), Err(expected.to_owned()));
    }
}
