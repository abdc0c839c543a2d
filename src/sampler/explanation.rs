//! Which parameters matter, by what was measured, and how sure that is.

use serde::Serialize;

use crate::config::Value;

/// What a model says of the parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// One for each objective and each limit that was measured.
    pub about: Vec<About>,
}

/// What the parameters do to one number. Shares are of the variance over the configurations that are allowed and probably
/// serve, 0 to 1; that of logarithms where every value is positive, so that differences are relative.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    /// The objective's or limit's.
    pub name: String,
    pub of: Kind,
    /// Measurements that it rests on.
    pub measured: usize,
    /// How well the model predicts a configuration from all others: 1 is perfect, at 0 their mean is as good. `None` of
    /// fewer than three measurements, and where they do not differ.
    pub held_out_r2: Option<f64>,
    /// Share of the variance of a measurement anywhere that the model cannot tell from noise: that of measuring, and of what
    /// it has not learnt. The parameters' shares are of the rest.
    pub unknown: f64,
    /// Why not to rely on it, in whole lines; empty where nothing speaks against it.
    pub doubts: Vec<String>,
    /// Those that vary, the largest total first.
    pub parameters: Vec<Importance>,
    /// Pairs whose effects do not simply add up, the largest share first.
    pub pairs: Vec<Interaction>,
}

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Objective,
    Limit,
}

/// A share of the variance, by the model's mean, and where it lies in nine of ten functions that fit the measurements as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    pub share: f64,
    pub low: f64,
    pub high: f64,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Importance {
    pub parameter: String,
    /// What it explains by itself, averaged over the others: Sobol's first index.
    pub alone: Share,
    /// What would be left open if all others were known: Sobol's total index.
    pub total: Share,
    /// Its share of what changing one parameter of the best measured configuration changes; `None` where nothing has kept
    /// the limits or nothing can be changed.
    pub at_best: Option<f64>,
    /// What is expected by its value, in the order of values.
    pub dependence: Vec<Expectation>,
}

/// What is expected of the configurations with one value of a parameter: the mean over the others, and the 5th and 95th
/// percentile of what the model believes of that mean. In the objective's own unit (the geometric mean where logarithms are
/// modelled); of a limit how far it is exceeded, as [`Measured`](super::Measured) has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Expectation {
    pub value: Value,
    pub mean: f64,
    pub low: f64,
    pub high: f64,
}

/// Two parameters and the variance of all that depends on both at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interaction {
    pub parameters: [String; 2],
    pub share: Share,
}

impl About {
    /// Below this share of explained held-out variance nothing is to be relied on.
    pub const LEAST_R2: f64 = 0.3;

    /// Why not to rely on a model of so many parameters that rests on so much.
    pub(super) fn doubts(measured: usize, parameters: usize, held_out_r2: Option<f64>) -> Vec<String> {
        let mut doubts = Vec::new();
        if measured < 2 * parameters {
            doubts.push(format!(
                "{measured} measurements are few for {parameters} parameters: below {} it is partly guesswork",
                2 * parameters
            ));
        }
        match held_out_r2 {
            None if measured < 3 => doubts.push("nothing can be held out of so few measurements".to_owned()),
            None => doubts.push("the measured values do not differ, so that there is nothing to explain".to_owned()),
            Some(r2) if r2 < Self::LEAST_R2 => doubts.push(format!(
                "the model does not predict what it has not seen (R^2 {r2:.2}, below {}): do not rely on it",
                Self::LEAST_R2
            )),
            Some(_) => {}
        }
        doubts
    }
}
