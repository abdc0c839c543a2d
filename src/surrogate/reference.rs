//! Reference numbers from outside of this project's code (`tests/fixtures/record_gaussian_process.py`).

use serde::Deserialize;

use super::encoding::EncodedAxis;
use super::kernel::HyperParameters;
use super::process::{HyperPriors, ProcessData};
use crate::stats::to_f64;

#[derive(Deserialize)]
pub(super) struct Reference {
    pub(super) processes: Vec<Case>,
}

#[derive(Deserialize)]
pub(super) struct Case {
    pub(super) name: String,
    axes: Vec<Kind>,
    lengths: Vec<f64>,
    smooth: Vec<f64>,
    rough: f64,
    noise: f64,
    pub(super) level: f64,
    pub(super) spread: f64,
    points: Vec<Vec<f64>>,
    targets: Vec<f64>,
    variances: Vec<f64>,
    pub(super) negative_log: f64,
    /// Derivatives by the logarithms of lengths, smooth, rough and noise; not for the largest case.
    pub(super) gradient: Option<Vec<f64>>,
    pub(super) asked: Vec<ReferenceAnswer>,
}

/// A name, or the number of values of a choice.
#[derive(Deserialize)]
#[serde(untagged)]
enum Kind {
    Name(String),
    Choice(usize),
}

#[derive(Deserialize)]
pub(super) struct ReferenceAnswer {
    pub(super) point: Vec<f64>,
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

pub(super) fn reference() -> Reference {
    serde_json::from_str(include_str!("../../tests/fixtures/gaussian-process.json")).unwrap()
}

impl Case {
    pub(super) fn axes(&self) -> Vec<EncodedAxis> {
        let axis = |kind: &Kind| match kind {
            Kind::Name(name) if name == "number" => EncodedAxis::Number { step: 0.0 },
            Kind::Name(_) => EncodedAxis::Trend,
            Kind::Choice(count) => EncodedAxis::Choice { count: *count },
        };
        self.axes.iter().map(axis).collect()
    }

    pub(super) fn hyper(&self) -> HyperParameters {
        let (lengths, smooth) = (self.lengths.clone(), self.smooth.clone());
        HyperParameters { lengths, rough: self.rough, smooth, noise: self.noise, noise_factor: 1.0 }
    }

    pub(super) fn data(&self) -> ProcessData {
        ProcessData { points: self.points.clone(), targets: self.targets.clone(), variances: self.variances.clone() }
    }
}

/// Returns the usual priors of these tests.
pub(super) fn expected() -> HyperPriors {
    HyperPriors {
        length: 0.5,
        length_deviation: 0.7,
        noise: 0.05,
        noise_deviation: 1.0,
        rough: 0.7,
        smooth: 0.7,
        size_deviation: 1.0,
        trend: 1.0,
        difference: 0.05,
        level: 0.0,
        spread: None,
    }
}

/// Numbers that do not depend on a generator's release: uniform ones, and normal ones by Box and Muller.
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1))
    }

    /// Returns a number from 0 to 1, without 0, by `SplitMix64`.
    pub(super) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (to_f64((bits ^ (bits >> 31)) >> 11) + 0.5) / to_f64(1_u64 << 53)
    }

    pub(super) fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.uniform()));
        radius * libm::cos(2.0 * std::f64::consts::PI * self.uniform())
    }

    /// Returns a point that a configuration may have.
    pub(super) fn point(&mut self, axes: &[EncodedAxis]) -> Vec<f64> {
        let coordinate = |axis: &EncodedAxis| match axis {
            EncodedAxis::Number { .. } => self.uniform(),
            EncodedAxis::Choice { count } if self.uniform() < 0.9 => (self.uniform() * to_f64(*count)).floor(),
            EncodedAxis::Choice { .. } => 0.5,
            EncodedAxis::Trend | EncodedAxis::Difference => self.normal(),
        };
        axes.iter().map(coordinate).collect()
    }
}
