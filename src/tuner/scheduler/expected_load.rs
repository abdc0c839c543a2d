//! The expected value of the highest load, at which the search of a launch begins.

use std::sync::Arc;

use super::Scheduler;
use crate::config::Config;

impl Scheduler<'_> {
    /// Returns the expected highest load of a configuration: the mean of its earlier launches, or the value that the
    /// sampler's model expects. `None` in a study with another objective, and before a measurement without a prior.
    pub(super) async fn expected_load(&self, config: &Config) -> Option<f64> {
        self.run.job.objective.load_goal.as_ref()?;
        let key = config.key();
        let own = self.history.iter().filter(|past| past.config.key() == key);
        let own: Vec<f64> =
            own.filter_map(|past| past.measured()?.values.first().map(|reading| reading.value)).collect();
        if !own.is_empty() {
            return Some(own.iter().sum::<f64>() / crate::stats::to_f64(own.len()));
        }
        let (question, config) = (self.question().await, config.clone());
        let expect = move || Arc::clone(&question).expect(&[config]).pop().flatten();
        match tokio::task::spawn_blocking(expect).await {
            Ok(expected) => expected,
            // Nobody cancels the task, so it has panicked. The panic is passed on.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
