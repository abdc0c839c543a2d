//! The engine's own answer: a helper inside the engine's Python says what it would say of a command line, in
//! milliseconds and without a launch.
//!
//! The helper imports the installed engine once, in the background. It never holds a GPU while an engine is launched, it
//! waits on its pipe while nothing is asked, and whatever it does, an answer or an error comes within a limit.

mod helper;
mod installed;
mod judge;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::engine::PreflightProgram;
use crate::server::Marker;

use helper::{Answer, Helper};
pub use installed::{Installed, InstalledFlag, Stage, Verdict};
pub use judge::{Disagreement, ENGINE, judge};

/// What to start, and what for.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The helper's program.
    pub program: PreflightProgram,
    /// The Python that has the engine installed.
    pub python: String,
    /// The launch's own variables, added to the tuner's environment.
    pub env: BTreeMap<String, String>,
    pub marker: Marker,
    /// A model and arguments that every candidate shares: the first answer for a model takes seconds, because the engine
    /// looks at the model's class in a process of its own.
    pub warm_up: Vec<String>,
    pub limits: Limits,
}

/// How long the helper may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// vLLM, for instance, imports in 10 to 23 s on a busy machine with a warm file cache.
    pub import: Duration,
    pub warm_up: Duration,
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { import: Duration::from_mins(3), warm_up: Duration::from_mins(1), answer: Duration::from_secs(10) }
    }
}

/// Why there is no answer; the rules then stand alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreflightError {
    #[error("{0}")]
    Start(String),
    #[error("{python} cannot import {engine}: {error}")]
    Import { engine: &'static str, python: String, error: String },
    #[error("the preflight did not {what} within {limit:?}")]
    Silent { what: &'static str, limit: Duration },
    #[error("the preflight answered what it was not asked: {line:?}")]
    Foreign { line: String },
    #[error("the preflight is gone: {0}")]
    Broken(String),
    #[error("{last}; given up after {failures} failures")]
    GivenUp { failures: u32, last: Box<PreflightError> },
}

impl PreflightError {
    /// Whether no question will be answered any more.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Start(_) | Self::Import { .. } | Self::GivenUp { .. })
    }
}

/// After so many failures of the helper the rules stand alone.
const MOST_FAILURES: u32 = 3;

/// Questions that may wait while one is answered.
const MOST_WAITING: usize = 64;

#[derive(Clone, Debug)]
enum State {
    Starting,
    Ready(Arc<Installed>),
    Failed(PreflightError),
}

#[derive(Debug)]
struct Question {
    args: Vec<String>,
    env: BTreeMap<String, String>,
    answer: oneshot::Sender<Result<Verdict, PreflightError>>,
}

/// A started preflight. Dropping it ends the helper soon, [`Preflight::stop`] before it returns.
#[derive(Debug)]
pub struct Preflight {
    questions: mpsc::Sender<Question>,
    state: watch::Receiver<State>,
    work: JoinHandle<()>,
}

impl Preflight {
    /// Returns at once; the engine is imported in the background.
    #[must_use]
    pub fn start(setup: Setup) -> Self {
        let (questions, waiting) = mpsc::channel(MOST_WAITING);
        let (said, state) = watch::channel(State::Starting);
        let worker = Worker { setup, said, helper: None, failures: 0 };
        Self { questions, state, work: tokio::spawn(worker.work(waiting)) }
    }

    /// Waits until the engine is imported and warmed up.
    ///
    /// # Errors
    /// When that has failed for good.
    pub async fn ready(&self) -> Result<Arc<Installed>, PreflightError> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, State::Starting)).await;
        match settled.map(|state| state.clone()) {
            Ok(State::Ready(installed)) => Ok(installed),
            Ok(State::Failed(error)) => Err(error),
            Ok(State::Starting) | Err(_) => Err(stopped()),
        }
    }

    /// What the engine says of a command line: the model and its flags, as they stand behind its command, such as `vllm serve`. `env` is
    /// added to the helper's environment for this question alone. Several questions may be under way; they are answered
    /// in their order.
    ///
    /// # Errors
    /// When there is no answer within the limit, or never will be.
    pub async fn ask(&self, args: &[String], env: &BTreeMap<String, String>) -> Result<Verdict, PreflightError> {
        let (answer, answered) = oneshot::channel();
        let question = Question { args: args.to_vec(), env: env.clone(), answer };
        self.questions.send(question).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped())?
    }

    /// Ends the helper and everything that it has started.
    pub async fn stop(mut self) {
        self.work.abort();
        // Aborted is what is wanted.
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

/// Answers questions in their order, with one helper at a time.
struct Worker {
    setup: Setup,
    said: watch::Sender<State>,
    /// Absent after a failure, and where the last one held a GPU. It is replaced when the next question comes: until
    /// then nothing runs.
    helper: Option<Helper>,
    failures: u32,
}

impl Worker {
    async fn work(mut self, mut questions: mpsc::Receiver<Question>) {
        if let Ok((helper, device)) = self.start().await {
            self.helper = (!device).then_some(helper);
        }
        while let Some(Question { args, env, answer }) = questions.recv().await {
            let verdict = self.answer(&args, &env).await;
            // Who asked may have gone.
            let _ = answer.send(verdict);
        }
    }

    async fn answer(&mut self, args: &[String], env: &BTreeMap<String, String>) -> Result<Verdict, PreflightError> {
        let mut helper = match self.helper.take() {
            Some(helper) => helper,
            None => self.start().await?.0,
        };
        match helper.ask(args, env, self.setup.limits.answer).await {
            Ok(Answer { verdict, device }) => {
                // One that holds a GPU is ended here, before anything else may want that memory.
                self.helper = (!device).then_some(helper);
                Ok(verdict)
            }
            Err(error) => {
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// A warmed-up helper, and whether it holds a GPU already.
    async fn start(&mut self) -> Result<(Helper, bool), PreflightError> {
        loop {
            if let State::Failed(error) = &*self.said.borrow() {
                return Err(error.clone());
            }
            match Helper::start(&self.setup).await {
                Ok((helper, installed, device)) => {
                    self.said.send_replace(State::Ready(Arc::new(installed)));
                    return Ok((helper, device));
                }
                Err(error) => self.fail(error),
            }
        }
    }

    fn fail(&mut self, error: PreflightError) {
        self.failures += 1;
        if error.is_final() {
            self.said.send_replace(State::Failed(error));
        } else if self.failures >= MOST_FAILURES {
            let (failures, last) = (self.failures, Box::new(error));
            self.said.send_replace(State::Failed(PreflightError::GivenUp { failures, last }));
        }
    }
}
