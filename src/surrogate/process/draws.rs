//! Samples of the posterior as functions: each is as likely as any other, and gives joint values at all points.
//!
//! A sample of the prior is corrected by its differences from the data: J. Wilson et al., "Pathwise conditioning of
//! Gaussian processes", 2021. The rough part of a sample is a sum of waves (A. Rahimi and B. Recht, "Random features
//! for large-scale kernel machines", 2007). For a Matern function with smoothness 5/2 the wave vectors have Student's
//! distribution with five degrees of freedom. The smooth part and the level are exact.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Process;
use crate::stats::normal::draw;
use crate::stats::{dot, to_f64};
use crate::surrogate::kernel::LEVEL;

/// Number of waves in the rough part. Its covariance is then right within some 5 % of its variance.
const WAVES: usize = 256;

/// The mean of a process and some samples of it, as functions of a point.
#[derive(Debug)]
pub(crate) struct PosteriorSamples<'a> {
    process: &'a Process,
    /// Wave vectors in units of the length scales, and their phases.
    waves: Vec<f64>,
    phases: Vec<f64>,
    /// For each sample the weights of waves, smooth features, level and data. The first entry is the mean.
    weights: Vec<Vec<f64>>,
}

impl Process {
    /// Returns the mean and `count` samples. A seed always gives the same samples.
    #[must_use]
    pub(crate) fn draws(&self, count: usize, seed: u64) -> PosteriorSamples<'_> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let n = self.len();
        let (rough, smooth) = self.kernel.features(&vec![0.0; self.kernel.axes().len()]);
        let (features, smooth) = (rough.len(), smooth.len());
        let mut waves = Vec::with_capacity(WAVES * features);
        for _ in 0..WAVES {
            let squares: f64 = (0..5).map(|_| draw(&mut rng)).map(|z| z * z).sum();
            let scale = 1.0 / libm::sqrt((squares / 5.0).max(1e-12));
            waves.extend((0..features).map(|_| scale * draw(&mut rng)));
        }
        let phases = (0..WAVES).map(|_| 2.0 * std::f64::consts::PI * rng.random::<f64>()).collect();
        let mut draws = PosteriorSamples { process: self, waves, phases, weights: Vec::new() };
        let mut mean = vec![0.0; WAVES + smooth + 1];
        mean.extend(&self.weights);
        draws.weights.push(mean);
        let before: Vec<_> = (0..n).map(|i| draws.prior_features(&self.point_at(i))).collect();
        let noise: Vec<_> = (0..n).map(|i| self.noise_of(i)).collect();
        for _ in 0..count {
            let mut weights: Vec<_> = (0..=WAVES + smooth).map(|_| draw(&mut rng)).collect();
            let drawn = before.iter().zip(&noise);
            let mut missed: Vec<_> =
                drawn.map(|(features, noise)| dot(features, &weights) + noise * draw(&mut rng)).collect();
            self.factor.forward(&mut missed);
            self.factor.backward(&mut missed);
            weights.extend(self.weights.iter().zip(&missed).map(|(mean, missed)| mean - missed));
            draws.weights.push(weights);
        }
        draws
    }

    fn point_at(&self, i: usize) -> Vec<f64> {
        self.columns.iter().map(|column| column[i]).collect()
    }

    /// Returns the standard deviation of all noise of one datum, in units of the spread: its variance in the covariance
    /// matrix beyond that of the kernel.
    fn noise_of(&self, i: usize) -> f64 {
        let row = self.factor.row(i);
        libm::sqrt((dot(row, row) - self.kernel.prior_variance(&self.point_at(i))).max(0.0))
    }

    /// Returns the error of the prediction for each datum from the others, in the targets' units. Data at one point are
    /// left out together, because each predicts the other. The hyper-parameters stay those of all data.
    ///
    /// Source: C. Rasmussen and C. Williams, "Gaussian processes for machine learning", 2006, formula 5.12, with
    /// blocks.
    #[must_use]
    pub(crate) fn held_out(&self) -> Vec<f64> {
        let n = self.len();
        let inverse = &self.factor.inverse();
        let mut differences = vec![f64::NAN; n];
        for i in 0..n {
            if !differences[i].is_nan() {
                continue;
            }
            let is_same = |j: &usize| self.columns.iter().all(|column| column[i].total_cmp(&column[*j]).is_eq());
            let block: Vec<_> = (i..n).filter(is_same).collect();
            let rows = block.iter().flat_map(|a| block.iter().map(move |b| inverse[a * n + b])).collect();
            let mut missed: Vec<_> = block.iter().map(|j| self.weights[*j]).collect();
            match super::Cholesky::new(block.len(), rows) {
                Some(factor) => {
                    factor.forward(&mut missed);
                    factor.backward(&mut missed);
                }
                // Only rounding can cause this.
                None => missed.iter_mut().zip(&block).for_each(|(missed, j)| *missed /= inverse[j * n + j]),
            }
            for (j, missed) in block.into_iter().zip(missed) {
                differences[j] = self.scale.spread * missed;
            }
        }
        differences
    }
}

impl PosteriorSamples<'_> {
    /// Returns the mean's value at a point, followed by those of the samples.
    #[must_use]
    pub(crate) fn at(&self, point: &[f64]) -> Vec<f64> {
        let process = self.process;
        let mut features = self.prior_features(point);
        let mut cross = vec![0.0; process.len()];
        process.kernel.fill_covariances(point, &process.columns, &mut cross);
        features.extend(cross);
        self.weights
            .iter()
            .map(|weights| process.scale.level + process.scale.spread * dot(&features, weights))
            .collect()
    }

    /// Returns the features with standard normal weights in the prior.
    fn prior_features(&self, point: &[f64]) -> Vec<f64> {
        let (rough, smooth) = self.process.kernel.features(point);
        let size = self.process.hyper.rough * libm::sqrt(2.0 / to_f64(WAVES));
        let d = rough.len();
        let wave =
            |(at, phase): (usize, &f64)| size * libm::cos(phase + dot(&rough, &self.waves[at * d..(at + 1) * d]));
        let mut features: Vec<_> = self.phases.iter().enumerate().map(wave).collect();
        features.extend(smooth);
        features.push(libm::sqrt(LEVEL));
        features
    }
}

#[cfg(test)]
mod tests {
    use crate::surrogate::{EncodedAxis, HyperPriors, Process, ProcessData};

    const EXPECTED: HyperPriors = HyperPriors {
        length: 0.5,
        length_deviation: 0.5,
        noise: 0.1,
        noise_deviation: 0.5,
        rough: 0.7,
        smooth: 0.7,
        size_deviation: 0.5,
        trend: 1.0,
        difference: 0.05,
        level: 0.0,
        spread: None,
    };

    const AXES: [EncodedAxis; 3] =
        [EncodedAxis::Number { step: 0.0 }, EncodedAxis::Number { step: 0.0 }, EncodedAxis::Choice { count: 3 }];

    /// Returns points spread over the axes, with a value that differs from place to place.
    fn data(count: u32) -> ProcessData {
        let point = |i: u32| {
            let place = f64::from(i);
            vec![(place * 0.618).fract(), (place * 0.414).fract(), f64::from(i % 3)]
        };
        let points: Vec<_> = (0..count).map(point).collect();
        let value = |p: &Vec<f64>| libm::sin(5.0 * p[0]) + p[1] * p[2] + 0.1 * libm::sin(99.0 * p[1]);
        let targets = points.iter().map(value).collect();
        ProcessData { points, targets, variances: vec![0.0; count as usize] }
    }

    #[test]
    fn draws_have_the_mean_and_the_deviation_of_the_process() {
        let process = Process::fit(&AXES, &data(12), &EXPECTED, &[]).unwrap();
        let draws = process.draws(4000, 7);
        for point in [[0.1, 0.9, 1.0], [0.5, 0.5, 0.0], [0.97, 0.03, 2.0]] {
            let belief = process.at(&point);
            let values = draws.at(&point);
            assert!((values[0] - process.mean(&point)).abs() < 1e-9, "the first is the mean");
            let n = 4000.0;
            let mean = values[1..].iter().sum::<f64>() / n;
            let variance = values[1..].iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / n;
            let deviation = variance.sqrt();
            assert!((mean - belief.mean).abs() < 0.08 * belief.deviation, "{mean} {belief:?}");
            assert!((deviation / belief.deviation - 1.0).abs() < 0.15, "{deviation} {belief:?}");
        }
    }

    #[test]
    fn held_out_errors_are_those_of_a_process_without_the_point() {
        let mut data = data(10);
        // The last three are at one point: they are left out together.
        data.points[8] = data.points[7].clone();
        data.points[9] = data.points[7].clone();
        data.variances[3] = 0.04;
        let process = Process::fit(&AXES, &data, &EXPECTED, &[]).unwrap();
        let missed = process.held_out();
        for left_out in [vec![0], vec![3], vec![7, 8, 9]] {
            let keep: Vec<_> = (0..10).filter(|i| !left_out.contains(i)).collect();
            let others = ProcessData {
                points: keep.iter().map(|i| data.points[*i].clone()).collect(),
                targets: keep.iter().map(|i| data.targets[*i]).collect(),
                variances: keep.iter().map(|i| data.variances[*i]).collect(),
            };
            let without = process.conditioned_on(&others).unwrap();
            for i in left_out {
                let expected = data.targets[i] - without.mean(&data.points[i]);
                assert!((missed[i] - expected).abs() < 1e-8, "{i}: {} {expected}", missed[i]);
            }
        }
    }
}
