//! The guard's check of a running server: greedy replies to the bundled prompts, compared with the baseline's.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value as Json, json};

use crate::config::Config;
use crate::guard::{CheckedPrompt, CheckedReplies, GreedyReplies, MAX_TOKENS, PASSES, PROMPTS, compare};
use crate::load::RequestApi;
use crate::server::Server;
use crate::trial::Measurement;
use crate::tuner::TuneError;
use crate::tuner::run::StudyRun;

/// The number of launches of the baseline whose replies are stored and compared with.
const REFERENCES: usize = 2;

/// The largest probability of a false alarm over all launches of a study.
const STUDY_LEVEL: f64 = 0.01;

/// The number of launches that the level is divided by if the budget does not limit it.
const UNLIMITED_LAUNCHES: u32 = 200;

/// The longest time for all passes. A server that is slower has no replies.
const CHECK_LIMIT: Duration = Duration::from_mins(10);

/// The check of one launch after its load.
pub(super) struct ReplyCheck<'l> {
    pub(super) run: &'l StudyRun<'l>,
    pub(super) config: &'l Config,
    /// The trial's number.
    pub(super) number: u32,
    /// The model's name for requests.
    pub(super) model: &'l str,
}

impl ReplyCheck<'_> {
    /// Collects and compares the replies, if the guard is on and the launch has other values of its flags than the
    /// baseline. The first launches with equal values are the references. Adds `greedy_agreement` to the measurement.
    ///
    /// # Errors
    /// If the references cannot be read.
    pub(super) async fn run(
        &self,
        server: &Server,
        measurement: &mut Measurement,
    ) -> Result<Option<CheckedReplies>, TuneError> {
        if self.run.job.guard.flags.is_empty() {
            return Ok(None);
        }
        let is_reference = !self.differs_from_baseline();
        let references = self.run.store.reference_replies(&self.run.study, self.number).await?;
        if is_reference && references.len() >= REFERENCES {
            add_agreement(measurement, 1.0);
            return Ok(None);
        }
        let replies = tokio::time::timeout(CHECK_LIMIT, self.collect(server)).await.ok().flatten();
        if replies.is_none() && (is_reference || references.is_empty()) {
            let number = self.number;
            self.run.notice(format!(
                "trial {number}: the server did not answer the prompts of the guard, so no replies are compared with \
                 its own"
            ));
            if is_reference {
                add_agreement(measurement, 1.0);
            }
            return Ok(None);
        }
        let replies = replies.unwrap_or_default();
        let level = STUDY_LEVEL / f64::from(self.run.job.budget.trials.unwrap_or(UNLIMITED_LAUNCHES));
        let comparison = compare(&replies, &references.iter().take(REFERENCES).collect::<Vec<_>>(), level);
        let checked = CheckedReplies { replies, is_reference, comparison };
        if let Some(agreement) = checked.relative_agreement() {
            add_agreement(measurement, agreement);
        }
        Ok(Some(checked))
    }

    /// Returns whether a flag of the guard has another value than in the baseline.
    fn differs_from_baseline(&self) -> bool {
        let own = self.run.with_engine_args(self.config);
        let baseline = self.run.with_engine_args(&self.run.job.search_space().fixed);
        self.run.job.guard.flags.iter().any(|flag| own.get(flag) != baseline.get(flag))
    }

    /// Sends the prompts in all passes, the later ones in reverse order. Returns `None` if a request fails.
    async fn collect(&self, server: &Server) -> Option<GreedyReplies> {
        let mut passes = Vec::new();
        for (pass, in_flight) in PASSES.into_iter().enumerate() {
            let mut order: Vec<usize> = (0..PROMPTS.len()).collect();
            if pass % 2 == 1 {
                order.reverse();
            }
            let ask = |prompt: usize| async move { Some((prompt, self.ask(server, PROMPTS.get(prompt)?).await?)) };
            let answers: Vec<Option<(usize, String)>> =
                stream::iter(order).map(ask).buffered(in_flight).collect().await;
            let mut answers: Vec<(usize, String)> = answers.into_iter().collect::<Option<_>>()?;
            answers.sort_by_key(|(prompt, _)| *prompt);
            passes.push(answers.into_iter().map(|(_, reply)| reply).collect());
        }
        Some(GreedyReplies { passes })
    }

    /// Returns the greedy reply to a prompt.
    async fn ask(&self, server: &Server, prompt: &CheckedPrompt) -> Option<String> {
        let load = &self.run.job.load;
        let mut body = json!({"model": self.model, "max_tokens": MAX_TOKENS, "temperature": 0});
        let path = match load.api {
            RequestApi::Chat => {
                body["messages"] = json!([{"role": "user", "content": prompt.question}]);
                "/v1/chat/completions"
            }
            RequestApi::Completions => {
                body["prompt"] = prompt.completion_text().into();
                "/v1/completions"
            }
        };
        let answer = server.post(path, &body, load.request_timeout).await?;
        let choice = &answer["choices"][0];
        [&choice["text"], &choice["message"]["content"]].into_iter().find_map(Json::as_str).map(str::to_owned)
    }
}

/// Adds the metric of the guard to a measurement and to those of its workloads.
fn add_agreement(measurement: &mut Measurement, agreement: f64) {
    let parts = measurement.workloads.iter_mut().map(|part| &mut part.measurement.server);
    for server in parts.chain([&mut measurement.server]) {
        server.insert(Measurement::GREEDY_AGREEMENT.to_owned(), agreement);
    }
}
