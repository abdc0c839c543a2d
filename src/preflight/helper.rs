//! One run of the helper: the messages over its pipe, and their time limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tokio::time::{Instant, timeout_at};

use super::{InstalledEngine, InstalledFlag, PreflightError, PreflightSetup, PreflightVerdict, RefusalStage};
use crate::engine::PythonPreflight;
use crate::server::{HelperPipe, PipeError};

/// The maximum length of a foreign line's quotation in a message, in characters.
const MAX_QUOTED_CHARS: usize = 200;

/// A running helper.
#[derive(Debug)]
pub(super) struct HelperProcess {
    pipe: HelperPipe,
    /// The number of questions so far, which is also the identifier of the last one.
    asked: u64,
}

/// The engine's answer, and whether the helper now holds a GPU.
#[derive(Debug)]
pub(super) struct HelperAnswer {
    pub(super) verdict: PreflightVerdict,
    pub(super) device: bool,
}

/// The helper's first message, after the import.
#[derive(Deserialize)]
#[serde(untagged)]
enum ImportMessage {
    Failed {
        error: String,
    },
    Here {
        version: String,
        device: String,
        flags: Vec<InstalledFlag>,
        #[serde(default)]
        absent: BTreeSet<String>,
    },
}

/// The helper's message about one question.
#[derive(Deserialize)]
struct AnswerMessage {
    id: u64,
    #[serde(flatten)]
    verdict: VerdictMessage,
    #[serde(default)]
    device: bool,
}

#[derive(Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
enum VerdictMessage {
    Accept { resolved: Map<String, Json>, warnings: Vec<String> },
    Reject { stage: RefusalStage, message: String },
}

impl HelperProcess {
    /// Starts the helper, imports the engine, and runs the warm-up. Afterwards an answer takes milliseconds. The
    /// boolean is whether the helper already holds a GPU.
    pub(super) async fn start(
        program: &PythonPreflight,
        setup: &PreflightSetup,
    ) -> Result<(Self, InstalledEngine, bool), PreflightError> {
        let mut command = vec![setup.executable.clone(), "-c".to_owned(), program.source.to_owned()];
        command.extend(program.packages.iter().map(|name| (*name).to_owned()));
        let mut env = setup.env.clone();
        let variables = program.variables.iter();
        env.extend(variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let spawned = HelperPipe::spawn(&command, &env, setup.marker.clone());
        let pipe = spawned.map_err(|error| PreflightError::Start(error.to_string()))?;
        let mut helper = Self { pipe, asked: 0 };
        let hello = helper.next(setup.limits.import, "import the engine", |line| serde_json::from_str(line).ok()).await;
        let import = |error| {
            let (engine, python) = (program.engine, setup.executable.clone());
            PreflightError::Import { engine, python, error }
        };
        let (version, device, flags, absent) = match hello {
            Ok(ImportMessage::Here { version, device, flags, absent }) => (version, device, flags, absent),
            Ok(ImportMessage::Failed { error }) => return Err(import(error)),
            // A retry of an import that hangs would hang again, and delay a measurement each time.
            Err(error @ (PreflightError::TimedOut { .. } | PreflightError::UnexpectedOutput { .. })) => {
                return Err(import(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let answer = helper.ask(&setup.warm_up, &BTreeMap::new(), setup.limits.warm_up).await?;
        Ok((
            helper,
            InstalledEngine { version, device, flags: Some(flags), missing_packages: absent, warm_up: answer.verdict },
            answer.device,
        ))
    }

    /// Requests the verdict on one command line.
    pub(super) async fn ask(
        &mut self,
        args: &[String],
        env: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<HelperAnswer, PreflightError> {
        self.asked += 1;
        let id = self.asked;
        let question = json!({"id": id, "args": args, "env": env}).to_string();
        let sent = tokio::time::timeout(limit, self.pipe.write(&question)).await;
        sent.map_err(|_| PreflightError::TimedOut { what: "accept a question", limit })?.map_err(broken)?;
        let expected = |line: &str| serde_json::from_str(line).ok().filter(|reply: &AnswerMessage| reply.id == id);
        let AnswerMessage { verdict, device, .. } = self.next(limit, "answer", expected).await?;
        let verdict = match verdict {
            VerdictMessage::Accept { resolved, warnings } => PreflightVerdict::Accept { resolved, warnings },
            VerdictMessage::Reject { stage, message } => PreflightVerdict::Reject { stage, message },
        };
        Ok(HelperAnswer { verdict, device })
    }

    /// Returns the next line that `read` understands. Other lines, such as output of a start-up file of the Python,
    /// are skipped.
    async fn next<T>(
        &mut self,
        limit: Duration,
        what: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, PreflightError> {
        let deadline = Instant::now() + limit;
        let mut foreign = None;
        loop {
            let line = match timeout_at(deadline, self.pipe.read()).await {
                Ok(line) => line.map_err(broken)?,
                Err(_) => {
                    return Err(match foreign {
                        Some(line) => PreflightError::UnexpectedOutput { line },
                        None => PreflightError::TimedOut { what, limit },
                    });
                }
            };
            match read(&line) {
                Some(understood) => return Ok(understood),
                None => foreign = Some(line.chars().take(MAX_QUOTED_CHARS).collect()),
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form that `map_err` wants")]
fn broken(error: PipeError) -> PreflightError {
    PreflightError::Broken(error.to_string())
}
