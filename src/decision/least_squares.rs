//! Least squares for `score = configuration + block + noise`.

use super::blocks::LaunchBlock;
use crate::stats::{Cholesky, to_f64};

/// The fitted effects of configurations, relative to a reference.
#[derive(Clone, Debug)]
pub(super) struct BlockFit<'a> {
    /// The configurations that blocks connect with the reference. The first is the reference.
    configs: Vec<&'a str>,
    /// The effect of each configuration. That of the reference is 0.
    effects: Vec<f64>,
    /// The covariance of the effects for a noise of variance 1, in rows. Those of the reference are 0.
    covariance: Vec<f64>,
    /// The sum of the squared residuals.
    pub(super) squares: f64,
    /// The number of degrees of freedom of the residuals.
    pub(super) freedom: usize,
}

/// A difference between two configurations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FittedDifference {
    pub(super) value: f64,
    /// Its variance for a noise of variance 1.
    pub(super) unit_variance: f64,
}

impl<'a> BlockFit<'a> {
    /// Fits the configurations that the blocks connect with `reference`. Launches without a score are left out.
    /// Returns `None` if the reference has no score.
    pub(super) fn of(blocks: &[LaunchBlock<'a>], reference: &'a str) -> Option<Self> {
        let measured: Vec<Vec<(&'a str, f64)>> = blocks
            .iter()
            .map(|block| block.iter().filter_map(|launch| Some((launch.config, launch.score?))).collect())
            .collect();
        let configs = connected(&measured, reference)?;
        let place = |config: &str| configs.iter().position(|known| *known == config);
        let count = configs.len();
        // The effects of blocks are eliminated: each block contributes the deviations from its mean.
        let (mut normal, mut right) = (vec![0.0; count * count], vec![0.0; count]);
        let (mut launches, mut used) = (0, Vec::new());
        for block in &measured {
            let block: Vec<(usize, f64)> =
                block.iter().filter_map(|(config, score)| Some((place(config)?, *score))).collect();
            if block.is_empty() {
                continue;
            }
            let size = to_f64(block.len());
            let mean = block.iter().map(|(_, score)| score).sum::<f64>() / size;
            for (i, score) in &block {
                right[*i] += score - mean;
                normal[i * count + i] += 1.0;
                for (j, _) in &block {
                    normal[i * count + j] -= 1.0 / size;
                }
            }
            launches += block.len();
            used.push(block);
        }
        let free = count - 1;
        let inner: Vec<f64> = (1..count).flat_map(|i| normal[i * count + 1..(i + 1) * count].to_vec()).collect();
        let factor = Cholesky::new(free, inner)?;
        let mut solution = right[1..].to_vec();
        factor.forward(&mut solution);
        factor.backward(&mut solution);
        let effects: Vec<f64> = std::iter::once(0.0).chain(solution).collect();
        let inverse = factor.inverse();
        let mut covariance = vec![0.0; count * count];
        for i in 0..free {
            for j in 0..free {
                covariance[(i + 1) * count + j + 1] = inverse[i * free + j];
            }
        }
        let squares = used.iter().map(|block| squared_residuals(block, &effects)).sum();
        let freedom = launches.saturating_sub(used.len() + free);
        Some(Self { configs, effects, covariance, squares, freedom })
    }

    /// Iterates over the configurations that blocks connect with the reference.
    pub(super) fn configs(&self) -> impl Iterator<Item = &'a str> {
        self.configs.iter().copied()
    }

    /// Returns the difference of `config` from `other`; `None` if one of them has no effect.
    pub(super) fn difference(&self, config: &str, other: &str) -> Option<FittedDifference> {
        let place = |name: &str| self.configs.iter().position(|known| *known == name);
        let (i, j, count) = (place(config)?, place(other)?, self.configs.len());
        let covariance = |i: usize, j: usize| self.covariance[i * count + j];
        let unit_variance = covariance(i, i) + covariance(j, j) - 2.0 * covariance(i, j);
        Some(FittedDifference { value: self.effects[i] - self.effects[j], unit_variance })
    }
}

/// Returns the configurations that share blocks with `reference`, directly or through others.
fn connected<'a>(blocks: &[Vec<(&'a str, f64)>], reference: &'a str) -> Option<Vec<&'a str>> {
    let is_measured = blocks.iter().flatten().any(|(config, _)| *config == reference);
    let mut configs = is_measured.then(|| vec![reference])?;
    let mut next = 0;
    while next < configs.len() {
        let config = configs[next];
        for block in blocks.iter().filter(|block| block.iter().any(|(other, _)| *other == config)) {
            for (other, _) in block {
                if !configs.contains(other) {
                    configs.push(other);
                }
            }
        }
        next += 1;
    }
    Some(configs)
}

fn squared_residuals(block: &[(usize, f64)], effects: &[f64]) -> f64 {
    let rest: Vec<f64> = block.iter().map(|(config, score)| score - effects[*config]).collect();
    let mean = rest.iter().sum::<f64>() / to_f64(rest.len());
    rest.iter().map(|rest| (rest - mean) * (rest - mean)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::blocks::BlockLaunch;

    fn block<'a>(launches: &[(&'a str, f64)]) -> LaunchBlock<'a> {
        launches.iter().map(|(config, score)| BlockLaunch { config, score: Some(*score) }).collect()
    }

    #[test]
    fn the_effect_of_a_block_does_not_change_differences() {
        let blocks = [block(&[("d", 1.0), ("a", 1.2)]), block(&[("a", 5.3), ("d", 5.0)])];
        let fit = BlockFit::of(&blocks, "d").unwrap();
        let difference = fit.difference("a", "d").unwrap();
        // The mean of 0.2 and 0.3, as of two pairs.
        assert!((difference.value - 0.25).abs() < 1e-12 && (difference.unit_variance - 1.0).abs() < 1e-12);
        assert_eq!(fit.freedom, 1);
        assert!((fit.squares - 0.0025).abs() < 1e-12, "each pair is 0.05 off: half of its square");
        let back = fit.difference("d", "a").unwrap();
        assert!((back.value + 0.25).abs() < 1e-12);
    }

    #[test]
    fn incomplete_blocks_compare_through_a_common_configuration() {
        let blocks = [block(&[("d", 0.0), ("a", 1.0)]), block(&[("a", 3.0), ("t", 3.5)]), block(&[("x", 9.0)])];
        let fit = BlockFit::of(&blocks, "d").unwrap();
        let difference = fit.difference("t", "d").unwrap();
        assert!((difference.value - 1.5).abs() < 1e-12 && (difference.unit_variance - 4.0).abs() < 1e-12);
        assert_eq!(fit.freedom, 0);
        assert!(fit.difference("x", "d").is_none(), "no block connects them");
    }

    #[test]
    fn repeats_in_a_block_estimate_the_noise_alone() {
        let fit = BlockFit::of(&[block(&[("d", 1.0), ("d", 1.2)])], "d").unwrap();
        assert_eq!(fit.freedom, 1);
        assert!((fit.squares - 0.02).abs() < 1e-12);
        let failed = vec![BlockLaunch { config: "d", score: None }];
        assert!(BlockFit::of(&[failed], "d").is_none());
    }
}
