//! A rising function through noisy points: isotonic regression by pooling adjacent violators (Ayer et al., An Empirical
//! Distribution Function for Sampling with Incomplete Information, 1955).

use super::ProbedExcess;

/// A fitted load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FittedPoint {
    /// The logarithm of the load.
    pub(super) x: f64,
    /// The fitted excess.
    pub(super) y: f64,
    /// The standard error of the fitted excess.
    pub(super) error: f64,
}

/// Standard deviation of an excess that no interval knows of: what differs between two equal loads on one server.
const LEAST_DEVIATION: f64 = 0.005;

/// Loads that are closer, as a logarithm, are one load.
const SAME_LOAD: f64 = 0.002;

/// Points that are pooled: the sums of weight and weighted excess, and the loads.
struct Block {
    weight: f64,
    weighted: f64,
    loads: Vec<f64>,
}

impl Block {
    fn mean(&self) -> f64 {
        self.weighted / self.weight
    }

    fn merge(&mut self, other: Self) {
        self.weight += other.weight;
        self.weighted += other.weighted;
        self.loads.extend(other.loads);
    }
}

/// Fits a rising function to points in the order of their loads, weighted by their precision. Repeated loads become one
/// point.
pub(super) fn fit(points: &[ProbedExcess]) -> Vec<FittedPoint> {
    let mut blocks: Vec<Block> = Vec::new();
    for point in points {
        let weight = 1.0 / (point.excess.deviation.powi(2) + LEAST_DEVIATION.powi(2));
        let block = Block { weight, weighted: weight * point.excess.value, loads: vec![point.x] };
        match blocks.last_mut() {
            Some(last) if (last.loads[0] - point.x).abs() < SAME_LOAD => {
                last.merge(Block { loads: Vec::new(), ..block });
            }
            _ => blocks.push(block),
        }
        while let [.., before, last] = &*blocks
            && before.mean() > last.mean()
        {
            let last = blocks.pop().unwrap_or_else(|| unreachable!("there are two blocks"));
            if let Some(before) = blocks.last_mut() {
                before.merge(last);
            }
        }
    }
    let fitted = blocks.iter().flat_map(|block| {
        let (y, error) = (block.mean(), block.weight.sqrt().recip());
        block.loads.iter().map(move |x| FittedPoint { x: *x, y, error })
    });
    fitted.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_search::probe::Excess;

    fn points(excesses: &[(f64, f64, f64)]) -> Vec<ProbedExcess> {
        let point = |(x, value, deviation): &(f64, f64, f64)| ProbedExcess {
            load: 1.0,
            x: *x,
            excess: Excess { value: *value, deviation: *deviation },
        };
        excesses.iter().map(point).collect()
    }

    #[test]
    fn falling_neighbours_are_pooled_by_their_precision() {
        let fit = fit(&points(&[(0.0, -0.5, 0.1), (1.0, 0.3, 0.1), (2.0, -0.1, 0.1), (3.0, 0.9, 0.1)]));
        let values: Vec<f64> = fit.iter().map(|point| (point.y * 1e3).round() / 1e3).collect();
        assert_eq!(values, [-0.5, 0.1, 0.1, 0.9]);
        assert!(fit[1].error < fit[0].error, "two probes know more than one");
    }

    #[test]
    fn a_repeated_load_is_one_point() {
        let fit = fit(&points(&[(0.0, -0.2, 0.1), (0.0005, 0.4, 0.1), (1.0, 0.5, 0.1)]));
        assert_eq!(fit.len(), 2);
        assert!((fit[0].y - 0.1).abs() < 1e-9, "{fit:?}");
    }
}
