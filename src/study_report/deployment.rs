//! Today's deployment in the findings of a study.

use crate::store::{RankedConfiguration, Store, StoreError, Study};
use crate::trial::Outcome;

/// Today's deployment, and the outcome of its trial.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeploymentStatus {
    /// The place of its flags, for people.
    pub source: String,
    pub outcome: DeploymentOutcome,
}

/// The outcome of today's deployment in the study's present context.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeploymentOutcome {
    /// It is the engine's defaults, whose trial measures both.
    IsDefaults,
    Measured,
    /// The rules or the engine's preflight refused it. It was not launched.
    Rejected(String),
    /// Its launch failed.
    Failed(String),
    /// It has no trial with an outcome yet.
    NotLaunched,
}

impl DeploymentOutcome {
    /// Returns the name in JSON.
    #[must_use]
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::IsDefaults => "is_defaults",
            Self::Measured => "measured",
            Self::Rejected(_) => "rejected",
            Self::Failed(_) => "failed",
            Self::NotLaunched => "not_launched",
        }
    }

    /// Returns the reason for which it was not measured.
    #[must_use]
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Self::Rejected(reason) | Self::Failed(reason) => Some(reason),
            Self::IsDefaults | Self::Measured | Self::NotLaunched => None,
        }
    }
}

/// Reads today's deployment: its status and all its measurements.
pub(super) async fn read_deployment(
    store: &Store,
    study: &Study,
) -> Result<(Option<DeploymentStatus>, Option<RankedConfiguration>), StoreError> {
    let Some(stored) = store.deployment(study).await? else { return Ok((None, None)) };
    let ranked = store.measurements_of_config(study, &stored.config).await?;
    let outcome = match (stored.is_defaults, &ranked) {
        (true, _) => DeploymentOutcome::IsDefaults,
        (false, Some(_)) => DeploymentOutcome::Measured,
        (false, None) => {
            let last = store.last_trial_of_config(study, &stored.config).await?;
            last.map_or(DeploymentOutcome::NotLaunched, |scored| unmeasured(&scored.trial.outcome))
        }
    };
    Ok((Some(DeploymentStatus { source: stored.source, outcome }), ranked))
}

fn unmeasured(outcome: &Outcome) -> DeploymentOutcome {
    match outcome {
        Outcome::Rejected(rejection) => {
            DeploymentOutcome::Rejected(format!("{}: {}", rejection.rule, rejection.message))
        }
        Outcome::Failed(failure) => DeploymentOutcome::Failed(format!("{}: {}", failure.kind, failure.message)),
        Outcome::Measured(_) => DeploymentOutcome::Failed("its measurement has no value of the objective".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::facts::Host;
    use crate::objective::Score;
    use crate::store::StoredDeployment;
    use crate::study_report::StudyReport;
    use crate::trial::{Failure, FailureKind, Measurement, Rejection, Trial};

    /// Returns the report of a study whose defaults were measured once and whose deployment has this outcome.
    async fn report(outcome: Option<(Outcome, Score)>, is_defaults: bool) -> StudyReport {
        let store = Store::in_memory().await.unwrap();
        let definition = StudyReport::example("s").study.definition;
        let study = store.create_study("s", &definition, &Host::detect()).await.unwrap();
        let measured = || Outcome::Measured(Measurement::default());
        store
            .append(study.id, &Trial::example(0, "baseline", measured()), Score::Feasible { value: 8.0 })
            .await
            .unwrap();
        let defaults = store.trial(&study, 0).await.unwrap().unwrap().trial.proposal.config;
        let config = if is_defaults { defaults } else { Config::new().with("max-num-seqs", 768_i64) };
        if let Some((outcome, score)) = outcome {
            let trial = Trial::example(1, "deployment", outcome).with_config(config.clone());
            store.append(study.id, &trial, score).await.unwrap();
        }
        let best = Trial::example(2, "auto", measured()).with_config(Config::new().with("max-num-seqs", 64_i64));
        store.append(study.id, &best, Score::Feasible { value: 12.0 }).await.unwrap();
        let stored = StoredDeployment { source: "serve.sh".to_owned(), config, is_defaults };
        store.set_deployment(study.id, Some(&stored)).await.unwrap();
        StudyReport::read(&store, study, 1).await.unwrap()
    }

    #[tokio::test]
    async fn the_winner_is_compared_with_the_deployment_as_with_the_defaults() {
        let measured = Outcome::Measured(Measurement::default());
        let report = report(Some((measured, Score::Feasible { value: 10.0 })), false).await;
        assert_eq!(report.deployment_status.as_ref().unwrap().outcome, DeploymentOutcome::Measured);
        let ranked = &report.winner().unwrap().results.ranked;
        assert_eq!(
            (report.gain(ranked).factor(), report.gain_over_deployment(ranked).factor()),
            (Some(1.5), Some(1.2))
        );
        let deployment = report.deployment.as_ref().unwrap();
        assert_eq!(report.gain_over_deployment(deployment).factor(), Some(1.0));
        assert_eq!(report.gain(deployment).factor(), Some(1.25));
    }

    #[tokio::test]
    async fn a_deployment_that_is_the_defaults_has_their_measurements() {
        let report = report(None, true).await;
        assert_eq!(report.deployment_status.as_ref().unwrap().outcome, DeploymentOutcome::IsDefaults);
        let ranked = &report.winner().unwrap().results.ranked;
        assert_eq!(report.gain_over_deployment(ranked), report.gain(ranked));
    }

    #[tokio::test]
    async fn the_reason_for_a_missing_measurement_is_read() {
        let rejected = Outcome::Rejected(Rejection { rule: "R1".to_owned(), message: "3 heads".to_owned() });
        let failed = Outcome::Failed(Failure { kind: FailureKind::OutOfMemory, message: "no room".to_owned() });
        for (outcome, expected) in [
            (Some((rejected, Score::Failed)), DeploymentOutcome::Rejected("R1: 3 heads".to_owned())),
            (Some((failed, Score::Failed)), DeploymentOutcome::Failed("out_of_memory: no room".to_owned())),
            (None, DeploymentOutcome::NotLaunched),
        ] {
            let report = report(outcome, false).await;
            let status = report.deployment_status.as_ref().unwrap();
            assert_eq!((&*status.source, &status.outcome), ("serve.sh", &expected));
            let ranked = &report.winner().unwrap().results.ranked;
            assert!(report.deployment.is_none() && report.gain_over_deployment(ranked).factor().is_none());
        }
    }
}
