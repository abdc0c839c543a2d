//! Combinations of levels, numbered without being stored.
//!
//! Conditions make the combinations a tree. Two of its nodes have the same number of leaves if the same later
//! conditions hold. Counting therefore takes as many steps as there are sets of conditions, not as there are
//! combinations.

use std::collections::HashMap;

use super::level::Levels;
use crate::config::{Config, Value};
use crate::space::{Condition, Space};

pub(super) struct GridTree<'a> {
    pub(super) levels: &'a [Levels],
    space: &'a Space,
    /// Every condition of the space once; a set of them is a mask.
    conditions: Vec<&'a Condition>,
    /// For each parameter the mask of the conditions on which it depends. `live` has, for each index and for the end,
    /// the conditions on which any parameter from there on depends.
    needed: Vec<u64>,
    live: Vec<u64>,
    counts: HashMap<(usize, u64), u64>,
}

/// Maximum count for combinations to be numbered.
const MOST_COMBINATIONS: u64 = 1 << 62;
/// Maximum number of sets of conditions for combinations to be counted.
const MOST_SETS: usize = 1 << 14;

impl<'a> GridTree<'a> {
    pub(super) fn new(space: &'a Space, levels: &'a [Levels]) -> Self {
        let mut conditions: Vec<&Condition> = Vec::new();
        let mut needed = Vec::new();
        for parameter in &space.parameters {
            let mut mask = 0_u64;
            for condition in &parameter.when {
                let place = conditions.iter().position(|known| *known == condition).unwrap_or_else(|| {
                    conditions.push(condition);
                    conditions.len() - 1
                });
                mask |= bit(place);
            }
            needed.push(mask);
        }
        let mut live = vec![0; needed.len() + 1];
        for index in (0..needed.len()).rev() {
            live[index] = live[index + 1] | needed[index];
        }
        Self { levels, space, conditions, needed, live, counts: HashMap::new() }
    }

    /// Returns the number of combinations, or `None` if they are too many to be numbered.
    pub(super) fn count(&mut self) -> Option<u64> {
        if self.conditions.len() > u64::BITS as usize {
            return None;
        }
        let held = self.held_at_first();
        self.below(0, held)
    }

    /// Returns the level of each parameter in the combination of this number, `None` for inactive parameters.
    pub(super) fn choice(&mut self, number: u64) -> Vec<Option<usize>> {
        let (mut rest, mut held) = (number, self.held_at_first());
        let mut choice = Vec::with_capacity(self.needed.len());
        for index in 0..self.needed.len() {
            if !self.is_active(index, held) {
                choice.push(None);
                continue;
            }
            let mut chosen = 0;
            if self.decides(index) {
                for (level, value) in self.levels[index].values.iter().enumerate() {
                    let then = self.held_with(index, held, value);
                    // Cached: it was computed as part of the total count.
                    let below = self.below(index + 1, then).unwrap_or(u64::MAX);
                    if rest < below {
                        (chosen, held) = (level, then);
                        break;
                    }
                    rest -= below;
                }
            } else {
                let below = self.below(index + 1, held).unwrap_or(u64::MAX).max(1);
                chosen = usize::try_from(rest / below).unwrap_or_default();
                rest %= below;
            }
            choice.push(Some(chosen));
        }
        choice
    }

    /// Returns whether the previous refinement contains this combination.
    pub(super) fn is_old(&self, choice: &[Option<usize>]) -> bool {
        choice.iter().zip(self.levels).all(|(level, levels)| level.is_none_or(|level| levels.are_old[level]))
    }

    /// Returns the number of combinations of the parameters from `index` on while the conditions `held` hold.
    fn below(&mut self, index: usize, held: u64) -> Option<u64> {
        if index == self.needed.len() {
            return Some(1);
        }
        let held = held & self.live[index];
        if let Some(count) = self.counts.get(&(index, held)) {
            return Some(*count);
        }
        let levels = &self.levels[index].values;
        let count = if !self.is_active(index, held) {
            self.below(index + 1, held)?
        } else if self.decides(index) {
            let mut sum = 0_u64;
            for value in levels {
                let then = self.held_with(index, held, value);
                sum = sum.checked_add(self.below(index + 1, then)?)?;
            }
            sum
        } else {
            self.below(index + 1, held)?.checked_mul(levels.len() as u64)?
        };
        if count > MOST_COMBINATIONS || self.counts.len() >= MOST_SETS {
            return None;
        }
        self.counts.insert((index, held), count);
        Some(count)
    }

    fn is_active(&self, index: usize, held: u64) -> bool {
        held & self.needed[index] == self.needed[index]
    }

    /// Returns whether a later parameter depends on this one.
    fn decides(&self, index: usize) -> bool {
        let name = &self.space.parameters[index].name;
        let live = self.live[index + 1];
        self.conditions.iter().enumerate().any(|(place, on)| live & bit(place) != 0 && on.parameter == *name)
    }

    /// Returns the conditions that hold before any parameter is set.
    fn held_at_first(&self) -> u64 {
        let fixed: &Config = &self.space.fixed;
        self.conditions.iter().enumerate().fold(0, |held, (place, on)| {
            let holds = fixed.get(&on.parameter).is_some_and(|value| on.values.contains(value));
            if holds { held | bit(place) } else { held }
        })
    }

    /// Returns the conditions that hold once this parameter has this value.
    fn held_with(&self, index: usize, held: u64, value: &Value) -> u64 {
        let name = &self.space.parameters[index].name;
        self.conditions.iter().enumerate().filter(|(_, on)| on.parameter == *name).fold(held, |held, (place, on)| {
            if on.values.contains(value) { held | bit(place) } else { held & !bit(place) }
        })
    }
}

/// Returns the mask of a condition. It is 0 beyond the last bit; `count` returns `None` for such spaces.
fn bit(place: usize) -> u64 {
    u32::try_from(place).ok().and_then(|place| 1_u64.checked_shl(place)).unwrap_or_default()
}
