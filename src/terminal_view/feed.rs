//! The task that observes a study for the view.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::{ViewLink, ViewRequest};
use crate::observation::{ObservedStudy, StudyObserver, TrialDetail, default_study, observed_studies};
use crate::store::{Store, StoreError};

/// The study to observe.
#[derive(Clone, Debug)]
pub(crate) struct FeedTarget {
    pub store: Store,
    /// `None`: the newest study that runs, or else the newest one.
    pub study: Option<String>,
    pub interval: Duration,
}

/// The interval at which the list of studies is read.
const STUDIES_INTERVAL: Duration = Duration::from_secs(2);

/// Observes until the link ends. Errors are shown, and the next poll tries again.
pub(crate) async fn feed_view(link: Arc<ViewLink>, target: FeedTarget) {
    let interval = target.interval;
    let request = ViewRequest::default();
    let mut feed = ViewFeed { link, target, observer: None, request, studies_at: None, problem: None };
    while !feed.link.is_ended() {
        let problem = feed.step().await.err().map(|error| error.to_string());
        if feed.problem != problem {
            feed.problem.clone_from(&problem);
            feed.link.update(|data| data.problem = problem);
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = feed.link.wait_for_request() => {}
        }
    }
}

struct ViewFeed {
    link: Arc<ViewLink>,
    target: FeedTarget,
    observer: Option<StudyObserver>,
    request: ViewRequest,
    studies_at: Option<Instant>,
    problem: Option<String>,
}

impl ViewFeed {
    async fn step(&mut self) -> Result<(), StoreError> {
        let request = self.link.requested();
        let is_new = request != self.request;
        self.request = request;
        if self.studies_at.is_none_or(|at| at.elapsed() >= STUDIES_INTERVAL) || is_new {
            self.studies_at = Some(Instant::now());
            let studies = observed_studies(&self.target.store).await?;
            self.choose(&studies).await?;
            self.link.update(|data| data.studies = Arc::new(studies));
        }
        let Some(observer) = &mut self.observer else { return Ok(()) };
        if observer.poll().await? || is_new || !observer.observation().running.is_empty() {
            self.publish().await?;
        }
        Ok(())
    }

    /// Observes the study that was chosen. Without a choice, a study that has begun to run replaces one that has ended.
    async fn choose(&mut self, studies: &[ObservedStudy]) -> Result<(), StoreError> {
        let name = self.request.study.as_ref().or(self.target.study.as_ref());
        let chosen = match name {
            Some(name) => studies.iter().find(|observed| observed.study.name == *name),
            None => default_study(studies),
        };
        let Some(chosen) = chosen else { return Ok(()) };
        let shown = self.observer.as_ref().map(|observer| observer.observation().study.id);
        let may_switch = name.is_some() || shown.is_none() || chosen.is_running;
        if shown != Some(chosen.study.id) && may_switch {
            self.observer = Some(StudyObserver::open(self.target.store.clone(), chosen.study.clone()).await?);
            self.link.update(|data| data.details.clear());
            self.publish().await?;
        }
        Ok(())
    }

    /// Reads the details that are shown, and hands everything to the view.
    async fn publish(&self) -> Result<(), StoreError> {
        let Some(observer) = &self.observer else { return Ok(()) };
        let observation = observer.observation();
        let best = observation.best.as_ref().map(|best| best.number);
        let known = self.link.details();
        let mut details: Vec<Arc<TrialDetail>> = Vec::new();
        for number in self.request.selected.into_iter().chain(best) {
            let is_of = |detail: &&Arc<TrialDetail>| detail.scored.trial.proposal.number == number;
            if details.iter().any(|detail| is_of(&detail)) || observation.trial(number).is_none() {
                continue;
            }
            match known.iter().find(is_of) {
                Some(detail) => details.push(Arc::clone(detail)),
                None => details.extend(observer.detail(number).await?.map(Arc::new)),
            }
        }
        let observation = Arc::new(observation.clone());
        self.link.update(|data| {
            data.observation = Some(observation);
            data.details = details;
        });
        Ok(())
    }
}
