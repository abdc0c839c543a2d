//! An exact permutation test over prompts.
//!
//! Each prompt has one statistic for every way to exchange the labels of its replies. If the replies come from one
//! distribution, all ways are equally likely, independently for each prompt. The distribution of the sum is then the
//! convolution of the prompts' distributions. Source: P. Good, "Permutation, Parametric and Bootstrap Tests of
//! Hypotheses", chapter 3.

use crate::stats::to_f64;

/// The statistics of one prompt, one for each way to label its replies. The first one is the observed one.
pub(super) type Labelings = Vec<i64>;

/// Returns the probability that the sum over the prompts is at least the observed sum, by chance. 1 without prompts.
pub(super) fn p_value(prompts: &[Labelings]) -> f64 {
    let least: i64 = prompts.iter().filter_map(|labelings| labelings.iter().min()).sum();
    let most: i64 = prompts.iter().filter_map(|labelings| labelings.iter().max()).sum();
    let observed: i64 = prompts.iter().filter_map(|labelings| labelings.first()).sum();
    let size = usize::try_from(most - least).map_or(0, |span| span + 1);
    // Probability of each sum, as its distance from the least sum.
    let mut sums = vec![0.0; size];
    let mut reached = 0;
    if let Some(first) = sums.first_mut() {
        *first = 1.0;
    }
    for labelings in prompts {
        let lowest = labelings.iter().min().copied().unwrap_or_default();
        let shifts: Vec<usize> = labelings.iter().filter_map(|value| usize::try_from(value - lowest).ok()).collect();
        let share = 1.0 / to_f64(shifts.len().max(1));
        let mut next = vec![0.0; size];
        for (at, probability) in sums.iter().enumerate().take(reached + 1).filter(|(_, p)| **p > 0.0) {
            for shift in &shifts {
                if let Some(place) = next.get_mut(at + shift) {
                    *place += probability * share;
                }
            }
        }
        reached += shifts.iter().max().copied().unwrap_or_default();
        sums = next;
    }
    let from = usize::try_from(observed - least).unwrap_or(0);
    sums.get(from..).map_or(1.0, |tail| tail.iter().sum::<f64>().min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probability_is_that_of_coins() {
        // Six heads of six: 1 / 64. Five or more heads of six: 7 / 64.
        let heads =
            |count: usize| (0..6).map(|i| if i < count { vec![1, -1] } else { vec![-1, 1] }).collect::<Vec<_>>();
        assert!((p_value(&heads(6)) - 1.0 / 64.0).abs() < 1e-12);
        assert!((p_value(&heads(5)) - 7.0 / 64.0).abs() < 1e-12);
        assert!((p_value(&heads(0)) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_prompt_without_a_difference_has_no_weight() {
        let with = vec![vec![3, -3], vec![2, -2], vec![0, 0], vec![0, 0]];
        assert!((p_value(&with) - 0.25).abs() < 1e-12);
        assert!((p_value(&[vec![0, 0]]) - 1.0).abs() < 1e-12);
        assert!((p_value(&[]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn three_labels_have_a_third_each() {
        let prompts = vec![vec![4, -2, -2]; 4];
        assert!((p_value(&prompts) - 1.0 / 81.0).abs() < 1e-12);
    }
}
