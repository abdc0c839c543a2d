//! The engine's own verdict on a command line, from a helper process that runs in the engine's Python, or from the
//! engine's own programs. A verdict takes milliseconds and no launch.
//!
//! A helper in Python imports the installed engine once, in the background. An idle helper waits on its pipe. If a helper holds a
//! GPU after an answer, it is ended at once, so that the GPU is free for a launch. The next question then starts a new
//! helper. Each question gets an answer or an error within a time limit.

mod commands;
mod helper;
mod installed;
mod verdict;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::engine::PreflightProgram;
use crate::server::Marker;

use commands::CommandHelper;
use helper::{HelperAnswer, HelperProcess};
pub use installed::{InstalledEngine, InstalledFlag, PreflightVerdict, RefusalStage};
pub use verdict::{Disagreement, ENGINE_FINDING, decide_finding};

/// The program to start, its environment, and its time limits.
#[derive(Clone, Debug)]
pub struct PreflightSetup {
    /// The helper's program.
    pub program: PreflightProgram,
    /// The Python that has the engine installed, or the engine's own program.
    pub executable: String,
    /// The launch's own variables, added to the tuner's environment.
    pub env: BTreeMap<String, String>,
    /// The marker in the helper's environment. It identifies the helper's processes.
    pub marker: Marker,
    /// A model and arguments that every candidate shares. The first answer for a model takes seconds, because the
    /// engine inspects the model's class in a separate process.
    pub warm_up: Vec<String>,
    pub limits: PreflightLimits,
}

/// The time limits of the helper.
#[derive(Clone, Copy, Debug)]
pub struct PreflightLimits {
    /// The limit of the import. vLLM, for instance, imports in 10 to 23 s on a busy machine with a warm file cache.
    pub import: Duration,
    /// The limit of the answer to the warm-up.
    pub warm_up: Duration,
    /// The limit of each later answer.
    pub answer: Duration,
}

impl Default for PreflightLimits {
    fn default() -> Self {
        Self { import: Duration::from_mins(3), warm_up: Duration::from_mins(1), answer: Duration::from_secs(10) }
    }
}

/// The reason why there is no verdict. In this case only the rules decide.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreflightError {
    #[error("{0}")]
    Start(String),
    #[error("{python} cannot import {engine}: {error}")]
    Import { engine: &'static str, python: String, error: String },
    #[error("the preflight did not {what} within {limit:?}")]
    TimedOut { what: &'static str, limit: Duration },
    #[error("the preflight gave no answer but unexpected output: {line:?}")]
    UnexpectedOutput { line: String },
    #[error("the preflight failed: {0}")]
    Broken(String),
    #[error("{last}; given up after {failures} failures")]
    GivenUp { failures: u32, last: Box<PreflightError> },
}

impl PreflightError {
    /// Returns whether no further question will be answered.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Start(_) | Self::Import { .. } | Self::GivenUp { .. })
    }
}

/// The number of failures of the helper, counted since the preflight's start, after which only the rules decide.
const MAX_FAILURES: u32 = 3;

/// The number of questions that may wait while one is answered.
const MAX_WAITING_QUESTIONS: usize = 64;

#[derive(Clone, Debug)]
enum HelperState {
    Starting,
    Ready(Arc<InstalledEngine>),
    Failed(PreflightError),
}

#[derive(Debug)]
struct PendingQuestion {
    args: Vec<String>,
    env: BTreeMap<String, String>,
    answer: oneshot::Sender<Result<PreflightVerdict, PreflightError>>,
}

/// The source of the answers.
#[derive(Debug)]
enum PreflightHelper {
    Process(Box<HelperProcess>),
    Commands(CommandHelper),
}

impl PreflightHelper {
    /// Starts and warms up the helper. The boolean is whether it already holds a GPU.
    async fn start(setup: &PreflightSetup) -> Result<(Self, InstalledEngine, bool), PreflightError> {
        match &setup.program {
            PreflightProgram::Python(program) => {
                let (helper, installed, device) = HelperProcess::start(program, setup).await?;
                Ok((Self::Process(Box::new(helper)), installed, device))
            }
            PreflightProgram::Commands(commands) => {
                let (helper, installed) = CommandHelper::start(commands, setup).await?;
                Ok((Self::Commands(helper), installed, false))
            }
        }
    }

    async fn ask(
        &mut self,
        args: &[String],
        env: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<HelperAnswer, PreflightError> {
        match self {
            Self::Process(helper) => helper.ask(args, env, limit).await,
            Self::Commands(helper) => {
                let verdict = helper.ask(args, env, limit).await?;
                Ok(HelperAnswer { verdict, device: false })
            }
        }
    }
}

/// A started preflight. After a drop, the helper ends soon. [`Preflight::stop`] waits for that end.
#[derive(Debug)]
pub struct Preflight {
    questions: mpsc::Sender<PendingQuestion>,
    state: watch::Receiver<HelperState>,
    work: JoinHandle<()>,
}

impl Preflight {
    /// Starts the preflight and returns at once. The engine is imported in the background.
    #[must_use]
    pub fn start(setup: PreflightSetup) -> Self {
        let (questions, waiting) = mpsc::channel(MAX_WAITING_QUESTIONS);
        let (said, state) = watch::channel(HelperState::Starting);
        let worker = Worker { setup, state: said, helper: None, failures: 0 };
        Self { questions, state, work: tokio::spawn(worker.work(waiting)) }
    }

    /// Waits until the engine is imported and warmed up.
    ///
    /// # Errors
    /// If the import or the warm-up has failed for good.
    pub async fn wait_until_ready(&self) -> Result<Arc<InstalledEngine>, PreflightError> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, HelperState::Starting)).await;
        match settled.map(|state| state.clone()) {
            Ok(HelperState::Ready(installed)) => Ok(installed),
            Ok(HelperState::Failed(error)) => Err(error),
            Ok(HelperState::Starting) | Err(_) => Err(stopped()),
        }
    }

    /// Requests the engine's verdict on a command line. `args` are the model and its flags, without a command such as
    /// `vllm serve`. `env` is added to the helper's environment for this question alone. Several questions may be
    /// pending. They are answered in order. If no helper runs, a new one starts first, which has limits of its own.
    ///
    /// # Errors
    /// If there is no answer within the limit, or if there will be none.
    pub async fn ask(
        &self,
        args: &[String],
        env: &BTreeMap<String, String>,
    ) -> Result<PreflightVerdict, PreflightError> {
        let (answer, answered) = oneshot::channel();
        let question = PendingQuestion { args: args.to_vec(), env: env.clone(), answer };
        self.questions.send(question).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Ends the helper and everything that it has started.
    pub async fn stop(mut self) {
        self.work.abort();
        // The abortion is intended, so its error is ignored.
        let _ = (&mut self.work).await;
    }
}

impl Drop for Preflight {
    fn drop(&mut self) {
        self.work.abort();
    }
}

fn stopped() -> PreflightError {
    PreflightError::Broken("it was stopped".to_owned())
}

/// Answers questions in order, with one helper at a time.
struct Worker {
    setup: PreflightSetup,
    state: watch::Sender<HelperState>,
    /// `None` after a failure, or if the last helper held a GPU. The next question starts a new helper. Until then
    /// none runs.
    helper: Option<PreflightHelper>,
    failures: u32,
}

impl Worker {
    async fn work(mut self, mut questions: mpsc::Receiver<PendingQuestion>) {
        if let Ok((helper, device)) = self.start().await {
            self.helper = (!device).then_some(helper);
        }
        while let Some(PendingQuestion { args, env, answer }) = questions.recv().await {
            let verdict = self.answer(&args, &env).await;
            // The caller may have been dropped.
            let _ = answer.send(verdict);
        }
    }

    async fn answer(
        &mut self,
        args: &[String],
        env: &BTreeMap<String, String>,
    ) -> Result<PreflightVerdict, PreflightError> {
        let mut helper = match self.helper.take() {
            Some(helper) => helper,
            None => self.start().await?.0,
        };
        match helper.ask(args, env, self.setup.limits.answer).await {
            Ok(HelperAnswer { verdict, device }) => {
                // A helper that holds a GPU is ended here, before anything else may need that memory.
                self.helper = (!device).then_some(helper);
                Ok(verdict)
            }
            Err(error) => {
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Starts and warms up a helper. Returns it, and whether it already holds a GPU.
    async fn start(&mut self) -> Result<(PreflightHelper, bool), PreflightError> {
        loop {
            if let HelperState::Failed(error) = &*self.state.borrow() {
                return Err(error.clone());
            }
            match PreflightHelper::start(&self.setup).await {
                Ok((helper, installed, device)) => {
                    self.state.send_replace(HelperState::Ready(Arc::new(installed)));
                    return Ok((helper, device));
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: PreflightError) {
        self.failures += 1;
        if error.is_final() {
            self.state.send_replace(HelperState::Failed(error));
        } else if self.failures >= MAX_FAILURES {
            let (failures, last) = (self.failures, Box::new(error));
            self.state.send_replace(HelperState::Failed(PreflightError::GivenUp { failures, last }));
        }
    }
}
