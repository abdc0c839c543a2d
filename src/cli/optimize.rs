//! `optimize`: the optimizer alone, over JSON lines on standard input and output.

use std::io::{BufRead, Write};

use clap::Args;
use serde_json::json;

use super::failure::{CommandFailure, USAGE};
use crate::job::unknown_sampler;
use crate::optimize::{OptimizeSession, ProtocolError, SessionReply};
use crate::sampler::{self, SAMPLERS};

/// The protocol's summary in the help.
const MESSAGES_HELP: &str = r#"Messages, one JSON object a line:
  the first, answered with "ready":
    {"type":"space","protocol":1,"params":[...],"objectives":[...],...}
  answered with a "config":
    {"type":"ask","id":1}
  outcome of a config, without an answer:
    {"type":"tell","id":1,"status":"ok","values":{...},...}
  answered with a "judgement":
    {"type":"judge","id":2}
  answered with an "explanation":
    {"type":"explain","id":3}
  ends the program, like the end of the input:
    {"type":"end"}
docs/src/optimize.md describes them. An invalid line is answered with an
"error", and the program ends with exit code 2."#;

#[derive(Debug, Args)]
#[command(after_help = MESSAGES_HELP)]
pub(super) struct OptimizeCommand {
    /// The sampler, which proposes configurations.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(
        SAMPLERS.iter().map(|s| clap::builder::PossibleValue::new(s.name()).help(s.summary()))
    ))]
    sampler: Option<String>,
    /// Seed of the sampler. It replaces the seed that the caller sends.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl OptimizeCommand {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        let sampler = match &self.sampler {
            Some(name) => sampler::find(name).ok_or_else(|| CommandFailure::new(USAGE, unknown_sampler(name)))?,
            None => SAMPLERS[0],
        };
        drive(OptimizeSession::new(sampler, self.seed), std::io::stdin().lock(), std::io::stdout().lock())
    }
}

/// Feeds each line to the session and writes each answer at once, until the session ends or the input does.
fn drive(mut session: OptimizeSession, mut input: impl BufRead, mut output: impl Write) -> Result<(), CommandFailure> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let length = input
            .read_until(b'\n', &mut line)
            .map_err(|error| CommandFailure::unexpected(format!("cannot read standard input: {error}")))?;
        if length == 0 {
            return Ok(());
        }
        match session.process_line(&line) {
            Ok(SessionReply::NoReply) => {}
            Ok(SessionReply::Line(answer)) => write(&mut output, &answer)?,
            Ok(SessionReply::End) => return Ok(()),
            Err(error) => {
                write(&mut output, &json!({"type": "error", "message": error.to_string()}).to_string())?;
                return Err(refused(&error));
            }
        }
    }
}

fn write(output: &mut impl Write, answer: &str) -> Result<(), CommandFailure> {
    output.write_all(format!("{answer}\n").as_bytes())?;
    Ok(output.flush()?)
}

/// Returns the protocol error as a failure for standard error. The caller has already received it as JSON.
fn refused(error: &ProtocolError) -> CommandFailure {
    CommandFailure::new(USAGE, error.to_string()).with_hint(error.hint())
}
