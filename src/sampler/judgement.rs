//! What the measurements say so far, apart from what to try next.

/// The best configuration that was measured, and what is probably left to gain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// `None` while nothing is probably within the limits.
    pub pick: Option<Pick>,
    /// The pick first, then the others that were measured and are probably within the limits, by what they are expected to
    /// give.
    pub ranking: Vec<Pick>,
    /// Of several objectives those of the ranking that no other one is expected to beat in all of them, in its order.
    pub front: Vec<Pick>,
    /// By how much the best configuration of the space is better than the pick, as a share of the pick's value: the 5th, 50th
    /// and 95th percentile. `None` without a pick, and of several objectives.
    pub remaining: Option<[f64; 3]>,
    /// What the next trial is expected to gain, as a share of the pick's value; `None` where `remaining` is.
    pub next_gain: Option<f64>,
    /// What is worth to be told, for instance that a prior is contradicted by the measurements.
    pub notes: Vec<String>,
}

/// A measured configuration by all that is known of it and of its neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// The place of its first measurement in the history.
    pub place: usize,
    /// What each objective is expected to be, and its standard deviation as a share of it; `None` of what was never measured.
    pub values: Vec<Option<(f64, f64)>>,
    /// Probability, 0 to 1, that it keeps every limit.
    pub feasible: f64,
}
