//! The findings of a study: its best configurations, the gain over the engine's defaults, and remarks. They are
//! computed once. Texts, JSON and CSV are renderings of a [`StudyReport`].

mod comparison;
mod configuration_results;
mod cost;
mod deployment;
mod details;
mod gain;
mod guard;
mod listing;
mod nearest;
mod no_winner;
mod rank_reason;
mod pareto;
mod question;
mod workloads;

use crate::decision::{AblationResult, Decision, MeasuredNoise, Verdict, launch_noise};
use crate::objective::{Constraint, Goal, Objective};
use crate::store::{
    EarlyEnds, ExpectedConfiguration, Incident, LeaderOrder, RankedConfiguration, RuleDisagreement, RuleTest, Store,
    StoreError, StoredJudgement, Study, StudyCounts,
};
use crate::trial::draft_bias;

pub(crate) use comparison::{ComparedMetric, ComparedSide, ConfigurationComparison, Significance};
pub(crate) use configuration_results::{ConfigurationResults, MetricSpread};
pub(crate) use cost::StudyCost;
#[cfg(test)]
pub(crate) use cost::StudyGpus;
pub(crate) use deployment::{DeploymentOutcome, DeploymentStatus};
pub(crate) use details::{StudyDetails, TrialFront};
pub(crate) use gain::{Gain, GainDoubt, GainRange};
pub(crate) use guard::GuardFindings;
pub(crate) use listing::{ListError, ListOptions, TrialCell, TrialColumn, TrialList};
pub(crate) use nearest::{ExceededLimit, NearestConfiguration};
pub(crate) use no_winner::{FurthestPhase, NoWinner};
pub(crate) use pareto::ParetoFront;
pub(crate) use question::{MetricGoal, QuestionError, parse_limit};
pub(crate) use rank_reason::RankReason;
pub(crate) use workloads::{LoadCrossover, SplitGain, WorkloadResult, WorkloadResults};

/// A configuration of a ranking, and the reason for its place.
#[derive(Clone, Debug)]
pub(crate) struct RankingPlace {
    pub results: ConfigurationResults,
    pub rank_reason: RankReason,
}

/// Half the width of a 95 % interval, in standard deviations of the normal distribution.
const HALF_WIDTH: f64 = 1.959_963_984_540_054;

/// The findings of a study.
#[derive(Clone, Debug)]
pub(crate) struct StudyReport {
    pub study: Study,
    /// `None` if the stored definition has no readable objective.
    pub objective: Option<Objective>,
    pub counts: StudyCounts,
    /// The best feasible configurations, best first.
    pub ranking: Vec<RankingPlace>,
    /// The engine's defaults by all their measurements.
    pub baseline: Option<RankedConfiguration>,
    /// Today's deployment by all its measurements. `None` if the study has none, or if it was not measured.
    pub deployment: Option<RankedConfiguration>,
    /// Source and outcome of today's deployment; `None` if the study has none.
    pub deployment_status: Option<DeploymentStatus>,
    /// The judgement of the sampler's model. `None` if no sampler with a model has stored one.
    pub judgement: Option<StoredJudgement>,
    /// The decision of the confirmation. `None` before its first launch.
    pub decision: Option<Decision>,
    /// The noise between launches by all repeated launches.
    pub noise: MeasuredNoise,
    /// The standard deviation of the objective within the first launch of the defaults, as a share of its value: from the
    /// interval of its window. `None` with several windows, of as many workloads.
    pub noise_within_launch: Option<f64>,
    /// Loads that ended early.
    pub early_ends: EarlyEnds,
    /// Launches that failed for a reason of their environment.
    pub incidents: Vec<Incident>,
    /// Configurations on which rules and engine differ.
    pub differences: Vec<RuleDisagreement>,
    pub rule_tests: Vec<RuleTest>,
    /// The results on each workload, if the study has several.
    pub workloads: Option<WorkloadResults>,
    /// The guard's findings. `None` if no launch has replies to its prompts.
    pub guard: Option<GuardFindings>,
}

impl StudyReport {
    /// Reads a study with at most `most` configurations of its ranking.
    pub(crate) async fn read(store: &Store, study: Study, most: u32) -> Result<Self, StoreError> {
        Box::pin(Self::read_within(store, study, &[], most)).await
    }

    /// Like [`read`](Self::read), but ranks only configurations that also keep `limits`.
    pub(crate) async fn read_within(
        store: &Store,
        study: Study,
        limits: &[Constraint],
        most: u32,
    ) -> Result<Self, StoreError> {
        let objective = study.objective();
        let goal = objective.as_ref().map_or(Goal::Maximize, |objective| objective.goal);
        let judgement = store.judgement(&study).await?;
        // At least two are read, because the reason for the first place may compare it with the second.
        let decision = store.decision(&study).await?;
        let order = LeaderOrder {
            judgement: judgement.as_ref(),
            winner: decision.as_ref().map(|decision| decision.winner.as_str()),
        };
        let mut leaders = store.leading_configurations_within(&study, goal, order, limits, most.max(2)).await?;
        let confirmed = |value: fn(&Decision) -> Option<f64>| decision.as_ref().and_then(value);
        let is_winner = |ranked: &RankedConfiguration| order.winner == Some(&*ranked.first.trial.proposal.config.key());
        let mut orders = RankReason::of(goal, &leaders);
        if leaders.first().is_some_and(is_winner) {
            let winner = leaders.remove(0);
            leaders.insert(0, winner.with_confirmed(confirmed(|decision| decision.value)));
            orders[0] = RankReason::Decided;
        }
        let mut ranking = Vec::new();
        for (ranked, order) in leaders.into_iter().zip(orders).take(most as usize) {
            ranking.push(RankingPlace {
                results: ConfigurationResults::read(store, &study, ranked).await?,
                rank_reason: order,
            });
        }
        let (deployment_status, deployment) = deployment::read_deployment(store, &study).await?;
        let winner = ranking.first().map(|place| &place.results.ranked);
        let workloads = WorkloadResults::read(store, &study, objective.as_ref(), winner).await?;
        let guard = GuardFindings::read(store, &study, winner).await?;
        let noise = launch_noise(&store.launched_within(&study, &[]).await?, goal);
        let report = Self {
            noise: decision.as_ref().map_or(noise, |decision| decision.noise),
            counts: store.counts(study.id).await?,
            baseline: store
                .baseline(&study)
                .await?
                .map(|ranked| ranked.with_confirmed(confirmed(|decision| decision.defaults_value))),
            deployment: deployment.map(|ranked| ranked.with_confirmed(confirmed(|decision| decision.today_value))),
            deployment_status,
            early_ends: store.early_ends(&study).await?,
            incidents: store.incidents(&study, None).await?,
            differences: store.disagreements(study.id).await?,
            rule_tests: store.rule_tests_of(&study).await?,
            study,
            objective,
            ranking,
            judgement,
            decision,
            noise_within_launch: None,
            workloads,
            guard,
        };
        Ok(Self { noise_within_launch: report.read_noise_within_launch(), ..report })
    }

    /// Returns the noise within a launch: see [`noise_within_launch`](Self::noise_within_launch).
    fn read_noise_within_launch(&self) -> Option<f64> {
        let measurement = self.baseline.as_ref()?.first.trial.outcome.measurement()?;
        let metric = &self.objective.as_ref()?.metric;
        let interval = measurement.confidence.get(metric)?;
        let deviation = (interval.high? - interval.low?) / (2.0 * HALF_WIDTH) / measurement.metric(metric)?;
        deviation.is_finite().then_some(deviation)
    }

    /// Returns the best configuration.
    #[must_use]
    pub(crate) fn winner(&self) -> Option<&RankingPlace> {
        self.ranking.first()
    }

    /// Returns a warning if the load flatters the drafts of the best configuration.
    #[must_use]
    pub(crate) fn draft_bias(&self) -> Option<String> {
        let config = &self.winner()?.results.ranked.first.trial.proposal.config;
        draft_bias(&self.study.definition, Some(config))
    }

    /// Returns the name of the objective's values.
    #[must_use]
    pub(crate) fn value_name(&self) -> String {
        self.objective.as_ref().map_or_else(|| "value".to_owned(), Objective::value_name)
    }

    /// Returns the gain of a configuration over the engine's defaults.
    #[must_use]
    pub(crate) fn gain(&self, ranked: &RankedConfiguration) -> Gain {
        let gain = Gain::over_defaults(self.objective.as_ref(), ranked, self.baseline.as_ref());
        gain.confirmed(self.verdict(ranked).map(|verdict| verdict.over_defaults))
    }

    /// Returns the verdict of the confirmation on a configuration; `None` unless it is the confirmed winner.
    #[must_use]
    pub(crate) fn verdict(&self, ranked: &RankedConfiguration) -> Option<Verdict> {
        let decision = self.decision.as_ref()?;
        (decision.winner == ranked.first.trial.proposal.config.key()).then_some(decision.verdict)
    }

    /// Returns the findings about the flags of a configuration; `None` unless it is the confirmed winner.
    #[must_use]
    pub(crate) fn ablation(&self, ranked: &RankedConfiguration) -> Option<&AblationResult> {
        self.verdict(ranked)?;
        self.decision.as_ref()?.ablation.as_ref()
    }

    /// Returns the gain of a configuration over today's deployment. It is unknown if the deployment was not measured.
    #[must_use]
    pub(crate) fn gain_over_deployment(&self, ranked: &RankedConfiguration) -> Gain {
        let gain = Gain::over(self.objective.as_ref(), ranked, self.deployment.as_ref());
        gain.confirmed(self.verdict(ranked).and_then(|verdict| verdict.over_today))
    }

    /// Returns the sampler model's expectation for the configuration that trial `number` measured first.
    #[must_use]
    pub(crate) fn expectation(&self, number: u32) -> Option<ExpectedConfiguration> {
        let judgement = self.judgement.as_ref()?;
        judgement.ranking.iter().find(|expected| expected.trial == number).copied()
    }
}

#[cfg(test)]
impl StudyReport {
    /// Returns a minimal report of a study that maximises `output_throughput`.
    pub(crate) fn example(name: &str) -> Self {
        let definition = serde_json::json!({
            "objective": {"metric": "output_throughput", "goal": "maximize", "constraints": []}
        });
        let study = Study {
            id: 1,
            name: name.to_owned(),
            definition,
            host: serde_json::Value::Null,
            setpoint_version: "0.1.0".to_owned(),
            created_at: "2030-01-02T03:00:00.000Z".to_owned(),
        };
        let objective = study.objective();
        Self {
            study,
            objective,
            counts: StudyCounts::default(),
            ranking: Vec::new(),
            baseline: None,
            deployment: None,
            deployment_status: None,
            judgement: None,
            decision: None,
            noise: MeasuredNoise::default(),
            noise_within_launch: None,
            early_ends: EarlyEnds::default(),
            incidents: Vec::new(),
            differences: Vec::new(),
            rule_tests: Vec::new(),
            workloads: None,
            guard: None,
        }
    }
}
