//! The cost of a study, and the time of serving after which its gain has paid for the study.

use jiff::Timestamp;

use super::{Gain, StudyReport};
use crate::objective::{Goal, WorkloadAggregate};
use crate::stats::{median, to_f64};
use crate::store::{ScoredTrial, Store, StoreError, Study};
use crate::trial::Outcome;

/// Metrics that count the output of a server. Only a gain in one of them can pay for the time of a study.
const THROUGHPUTS: [&str; 4] = ["output_throughput", "total_token_throughput", "request_throughput", "request_goodput"];

/// The resources that the launches of a study have used so far, in all of its runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StudyCost {
    /// Launches with an outcome. Attempts that were repeated because the environment failed are not counted.
    pub launches: usize,
    /// Live looks that were measured.
    pub live_looks: usize,
    /// The seconds that the live looks have saved: as many median starts as there were looks.
    pub saved_by_looks_s: f64,
    /// Launches that a waiting process forked.
    pub fast_starts: usize,
    /// The seconds that fast starts have saved against the median plain start.
    pub saved_by_fast_starts_s: f64,
    /// Seconds during which at least one of these launches or looks ran. The time between launches and between runs is not
    /// counted: the database does not record whether the tuner ran.
    pub wall_s: f64,
    /// Whether the engine is simulated, so that its launches used no device.
    pub is_simulated: bool,
    /// The GPUs; `None` if the engine computes on processors, or if the driver does not name them.
    pub gpus: Option<StudyGpus>,
}

/// The GPUs of a study.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StudyGpus {
    pub count: u32,
    pub name: String,
}

impl StudyCost {
    /// Reads the cost from all launches of a study.
    pub(crate) async fn read(store: &Store, study: &Study, is_simulated: bool) -> Result<Self, StoreError> {
        let trials = store.trials(study).await?;
        let device = store.context(study).await?.map(|context| context.device).filter(|_| !is_simulated);
        let gpus = device.and_then(|device| {
            let name = device.name.filter(|name| name != "cpu")?;
            Some(StudyGpus { count: device.count.filter(|count| *count > 0)?, name })
        });
        let launched = trials.iter().filter(|scored| !matches!(scored.trial.outcome, Outcome::Rejected(_)));
        let looks = launched.clone().filter(|scored| scored.trial.proposal.server_of.is_some());
        let live_looks = looks.filter(|scored| scored.trial.outcome.measurement().is_some()).count();
        let start_s = median(launched.clone().filter_map(|scored| scored.trial.startup_s)).unwrap_or_default();
        let launches = launched.clone().filter(|scored| scored.trial.proposal.server_of.is_none()).count();
        let saved_by_looks_s = to_f64(live_looks) * start_s;
        let (fast_starts, saved_by_fast_starts_s) = fast_starts(launched.clone());
        let wall_s = wall_s(launched);
        Ok(Self {
            launches,
            live_looks,
            saved_by_looks_s,
            fast_starts,
            saved_by_fast_starts_s,
            wall_s,
            is_simulated,
            gpus,
        })
    }

    /// Returns the GPU hours; `None` without known GPUs.
    #[must_use]
    pub(crate) fn gpu_hours(&self) -> Option<f64> {
        Some(f64::from(self.gpus.as_ref()?.count) * self.wall_s / 3600.0)
    }

    /// Returns the hours of serving after which the winner has paid for the study: the winner serves as much more than
    /// the baseline of `gain` as this baseline would have served during the study.
    ///
    /// `wall_s / 3600 / (gain - 1)`, for as many devices as the study had. `None` unless the objective is a throughput,
    /// the gain is significant and the engine is real.
    #[must_use]
    pub(crate) fn payback_h(&self, report: &StudyReport, gain: Gain) -> Option<f64> {
        let objective = report.objective.as_ref()?;
        let is_throughput = objective.goal == Goal::Maximize && THROUGHPUTS.contains(&objective.metric.as_str());
        // Ratios to the best of each workload are no throughput.
        let is_regret = objective.joint.as_ref().is_some_and(|joint| joint.over == WorkloadAggregate::Regret);
        let factor = gain.factor().filter(|factor| *factor > 1.0 && gain.is_significant() == Some(true))?;
        (is_throughput && !is_regret && !self.is_simulated).then(|| self.wall_s / 3600.0 / (factor - 1.0))
    }
}

/// Returns the number of fast starts, and the seconds that they have saved. Without a plain start, the longest fast one
/// counts as plain, because it imports the engine.
fn fast_starts<'t>(launched: impl Iterator<Item = &'t ScoredTrial> + Clone) -> (usize, f64) {
    let launches = launched.filter(|scored| scored.trial.proposal.server_of.is_none());
    let starts = |fast: bool| {
        let of = launches.clone().filter(move |scored| scored.trial.launch.is_fast == fast);
        of.filter_map(|scored| scored.trial.startup_s)
    };
    let Some(plain_s) = median(starts(false)).or_else(|| starts(true).max_by(f64::total_cmp)) else { return (0, 0.0) };
    (starts(true).count(), starts(true).map(|fast_s| plain_s - fast_s).sum::<f64>().max(0.0))
}

/// Returns the seconds during which at least one launch ran.
fn wall_s<'t>(launched: impl Iterator<Item = &'t ScoredTrial>) -> f64 {
    let interval = |scored: &ScoredTrial| {
        let begin = scored.trial.started_at.parse::<Timestamp>().ok()?.as_duration().as_secs_f64();
        Some((begin, begin + scored.trial.elapsed_s.max(0.0)))
    };
    let mut intervals: Vec<_> = launched.filter_map(interval).collect();
    intervals.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut total, mut reached) = (0.0, f64::NEG_INFINITY);
    for (begin, end) in intervals {
        total += (end - begin.max(reached)).max(0.0);
        reached = reached.max(end);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::{Objective, Score};
    use crate::study_report::GainDoubt;
    use crate::trial::{Measurement, Trial};

    fn launch(started_at: &str, elapsed_s: f64) -> ScoredTrial {
        let example = Trial::example(1, "auto", Outcome::Measured(Measurement::default()));
        let trial = Trial { started_at: started_at.to_owned(), elapsed_s, ..example };
        ScoredTrial { trial, score: Score::Feasible { value: 1.0 } }
    }

    fn report(goal: Goal, metric: &str) -> StudyReport {
        let objective = Objective {
            metric: metric.to_owned(),
            goal,
            constraints: Vec::new(),
            joint: None,
            price_per_hour: None,
            load_goal: None,
        };
        StudyReport { objective: Some(objective), ..StudyReport::example("s") }
    }

    #[test]
    fn the_time_of_a_study_is_that_of_its_launches_and_not_of_the_pauses_between_them() {
        let at = |time: &str| format!("2030-01-02T{time}Z");
        // The third launch belongs to a run that was resumed nine minutes later.
        let sequence = [launch(&at("03:00:00"), 60.0), launch(&at("03:01:30"), 60.0), launch(&at("03:11:30"), 30.0)];
        assert!((wall_s(sequence.iter()) - 150.0).abs() < 1e-6, "{}", wall_s(sequence.iter()));
        // The second launch ends before the first one.
        let together = [launch(&at("03:00:00"), 60.0), launch(&at("03:00:10"), 10.0), launch(&at("03:00:50"), 30.0)];
        assert!((wall_s(together.iter()) - 80.0).abs() < 1e-6, "{}", wall_s(together.iter()));
        assert!(wall_s(std::iter::empty()).abs() < f64::EPSILON);
    }

    #[test]
    fn a_study_is_paid_after_its_time_over_the_gain_minus_one() {
        let cost = StudyCost { wall_s: 7200.0, ..StudyCost::default() };
        let gain = Gain::Factor { factor: 1.25, doubt: None, baseline_over_limit: false, interval: None };
        assert_eq!(cost.payback_h(&report(Goal::Maximize, "output_throughput"), gain), Some(8.0));
        assert_eq!(cost.payback_h(&report(Goal::Minimize, "p99_ttft_ms"), gain), None);
        assert_eq!(cost.payback_h(&report(Goal::Maximize, "mean_output_speed"), gain), None);
        let simulated = StudyCost { is_simulated: true, ..cost.clone() };
        assert_eq!(simulated.payback_h(&report(Goal::Maximize, "output_throughput"), gain), None);
        let throughput = report(Goal::Maximize, "request_goodput");
        let doubtful =
            Gain::Factor { factor: 1.25, doubt: Some(GainDoubt::Overlap), baseline_over_limit: false, interval: None };
        let worse = Gain::Factor { factor: 0.9, doubt: None, baseline_over_limit: true, interval: None };
        assert!(
            [doubtful, worse, Gain::None, Gain::Unknown]
                .iter()
                .all(|gain| cost.payback_h(&throughput, *gain).is_none())
        );
    }

    #[test]
    fn gpu_hours_need_known_gpus() {
        let gpus = Some(StudyGpus { count: 8, name: "NVIDIA H100 80GB HBM3".to_owned() });
        assert_eq!(StudyCost { wall_s: 1800.0, gpus, launches: 3, ..StudyCost::default() }.gpu_hours(), Some(4.0));
        assert_eq!(StudyCost::default().gpu_hours(), None);
    }
}
