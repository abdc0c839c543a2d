//! Today's deployment and the start points: the launches after the engine's defaults.

use super::Scheduler;
use crate::config::Config;
use crate::sampler::{KnownOutcome, PastTrial, Suggestion};
use crate::store::StoredDeployment;
use crate::trial::Origin;
use crate::tuner::TuneError;

impl Scheduler<'_> {
    /// Stores today's deployment for the reports, and reports one that equals the engine's defaults.
    pub(super) async fn store_deployment(&self) -> Result<(), TuneError> {
        let (job, search) = (self.run.job, &self.scope.search);
        let stored = job.deployment.as_ref().zip(search.deployment()).map(|(point, config)| StoredDeployment {
            source: point.source.clone(),
            is_defaults: config == search.space.fixed,
            config,
        });
        if stored.as_ref().is_some_and(|stored| stored.is_defaults) {
            let source = job.deployment.as_ref().map_or("", |point| point.source.as_str());
            self.run
                .notice(format!("today's deployment ({source}) equals the engine's defaults: one trial measures both"));
        }
        Ok(self.run.store.set_deployment(self.run.study.id, stored.as_ref()).await?)
    }

    /// Returns the first of today's deployment and the start points that has no trial in the present context. Without
    /// time for the deployment and a confirmation there is none. Start points belong to the search.
    pub(super) fn next_first_point(&self, is_short: bool, is_search_over: bool) -> Option<(Origin, Suggestion)> {
        // The defaults come first.
        if self.history.is_empty() {
            return None;
        }
        let points = self.scope.search.first_points().into_iter();
        let mut missing = points.filter(|(_, suggestion)| self.is_missing(&suggestion.config));
        let is_possible = |origin: &Origin| match origin {
            Origin::Deployment => !is_short,
            _ => !is_search_over,
        };
        missing.find(|(origin, _)| is_possible(origin))
    }

    fn is_missing(&self, config: &Config) -> bool {
        self.launches_of(config).next().is_none()
    }

    /// Iterates over the trials of a configuration that count in the present context.
    fn launches_of<'s>(&'s self, config: &'s Config) -> impl Iterator<Item = &'s PastTrial> {
        self.history.iter().filter(move |past| past.config == *config && past.origin.is_ranked())
    }

    /// Returns today's deployment if it was measured and is another configuration than the defaults.
    pub(super) fn measured_deployment(&self) -> Option<Config> {
        let deployment = self.other_deployment()?;
        let is_measured = self.launches_of(&deployment).any(|past| past.measured().is_some());
        is_measured.then_some(deployment)
    }

    /// Returns today's deployment if the confirmation will measure it beside the defaults: it was measured, or is still
    /// to be launched.
    pub(super) fn deployment_to_confirm(&self) -> Option<Config> {
        let deployment = self.other_deployment()?;
        let is_open = |past: &PastTrial| past.measured().is_some() || past.outcome == KnownOutcome::Pending;
        let is_due = self.is_missing(&deployment) || self.launches_of(&deployment).any(is_open);
        is_due.then_some(deployment)
    }

    fn other_deployment(&self) -> Option<Config> {
        self.scope.search.deployment().filter(|deployment| *deployment != self.scope.search.space.fixed)
    }

    /// Returns the number of launches of a confirmation round, if the winner is neither the defaults nor the deployment.
    pub(super) fn launches_per_round(&self) -> u32 {
        2 + u32::from(self.deployment_to_confirm().is_some())
    }
}
