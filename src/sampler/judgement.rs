//! Assessment of the measurements so far, apart from the proposal of the next trial.

/// The best measured configuration, and the estimated remaining gain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// `None` while no measured configuration is probably feasible.
    pub pick: Option<Pick>,
    /// The pick first, then the other measured configurations that are probably feasible, in the order of their
    /// expected values.
    pub ranking: Vec<Pick>,
    /// With several objectives: the part of the ranking that no other configuration is expected to beat in all
    /// objectives, in the order of the ranking.
    pub front: Vec<Pick>,
    /// Gain of the best configuration of the space over the pick, as a share of the pick's value: the 5th, 50th and
    /// 95th percentile. `None` without a pick, with several objectives, or if a share is not finite.
    pub remaining_gain: Option<[f64; 3]>,
    /// Expected gain of the next trial, as a share of the pick's value. `None` without a pick, with several objectives,
    /// if no configuration is left to try, or if it is not finite.
    pub next_gain: Option<f64>,
    /// Notes for the user, for instance that the measurements contradict a prior.
    pub notes: Vec<String>,
}

/// A measured configuration, assessed by its own measurements and those of its neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// Index of its first measurement in the history.
    pub history_index: usize,
    /// Expected value of each objective, and its standard deviation as a share of the value. `None` for an objective
    /// that was neither measured nor predicted by a prior.
    pub values: Vec<Option<(f64, f64)>>,
    /// Probability, 0 to 1, that every constraint is kept.
    pub feasible: f64,
}
