//! Importance of the parameters by the measurements, with its uncertainty.

use serde::{Deserialize, Serialize};

use crate::config::Value;

/// A model's account of the parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// One for each objective and each constraint that was measured.
    #[serde(rename = "about")]
    pub numbers: Vec<ExplainedNumber>,
}

/// Effects of the parameters on one number. Shares are of the variance over the configurations that are allowed and
/// probably serve, 0 to 1. If every value is positive, the variance is that of the logarithms, so that differences are
/// relative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExplainedNumber {
    /// Name of the objective or constraint.
    pub name: String,
    pub of: NumberKind,
    /// Number of measurements. The model is fitted to at most 300 of them, evenly chosen.
    pub measured: usize,
    /// R^2 of predictions for held-out configurations: 1 is perfect, 0 is no better than the mean of the others. `None`
    /// with fewer than three measurements, and if they do not differ.
    pub held_out_r2: Option<f64>,
    /// Share of a measurement's variance that the model cannot distinguish from noise: measurement noise, and effects
    /// that it has not learnt. The parameters' shares are of the rest.
    pub unknown: f64,
    /// Reasons not to rely on this, in whole lines. Empty if there are none.
    pub doubts: Vec<String>,
    /// The parameters that vary, the largest total first.
    pub parameters: Vec<ParameterImportance>,
    /// Pairs whose effects do not simply add up, the largest share first.
    pub pairs: Vec<Interaction>,
}

/// The kind of an explained number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumberKind {
    Objective,
    Limit,
}

/// A share of the variance, 0 to 1. `share` is computed from the model's mean. The interval from `low` to `high`
/// contains the shares of nine of ten posterior samples, which fit the measurements equally well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VarianceShare {
    pub share: f64,
    pub low: f64,
    pub high: f64,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParameterImportance {
    pub parameter: String,
    /// Share explained by the parameter by itself, averaged over the others: Sobol's first-order index.
    pub alone: VarianceShare,
    /// Share that would remain unexplained if all other parameters were known: Sobol's total index.
    pub total: VarianceShare,
    /// The parameter's share of the variance near the best measured configuration, where only one parameter at a time
    /// is changed. `None` if no measurement has kept the constraints, or if no such change has an effect.
    pub at_best: Option<f64>,
    /// Expected result for each value of the parameter, in the order of values.
    pub dependence: Vec<Expectation>,
}

/// Expected result of the configurations with one value of a parameter. `mean` is the mean over the other parameters;
/// `low` and `high` are the 5th and 95th percentile of its posterior. The unit is the objective's own. If logarithms
/// are modelled, the mean is geometric. For a constraint the unit is that of the excess, as in `MeasuredNumbers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    pub value: Value,
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

/// Two parameters and the variance of all effects that depend on both at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interaction {
    pub parameters: [String; 2],
    pub share: VarianceShare,
}

impl ExplainedNumber {
    /// Least explained share of the held-out variance for an explanation to be reliable.
    pub const LEAST_R2: f64 = 0.3;

    /// Returns the number of measurements below which the shares of some parameters are rough estimates.
    #[must_use]
    pub(crate) fn least_measurements(parameters: usize) -> usize {
        2 * parameters
    }

    /// Returns the reasons not to rely on a model of `parameters` parameters fitted to `measured` measurements.
    pub(super) fn reliability_warnings(measured: usize, parameters: usize, held_out_r2: Option<f64>) -> Vec<String> {
        let mut doubts = Vec::new();
        let least = Self::least_measurements(parameters);
        if measured < least {
            doubts.push(format!(
                "{measured} measurements for {parameters} parameters: with fewer than {least} the shares are rough \
                 estimates"
            ));
        }
        match held_out_r2 {
            None if measured < 3 => {
                doubts.push(format!("a held-out test of the model needs 3 measurements, found {measured}"));
            }
            None => doubts.push("the measured values do not differ, so that there is nothing to explain".to_owned()),
            Some(r2) if r2 < Self::LEAST_R2 => doubts.push(format!(
                "the model predicts held-out measurements poorly (R^2 {r2:.2}, below {}): do not rely on it",
                Self::LEAST_R2
            )),
            Some(_) => {}
        }
        doubts
    }
}
