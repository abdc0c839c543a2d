//! Numbering of all combinations of the parameters' levels. No combination is stored.
//!
//! The combinations are the leaves of a tree. Depth `i` of the tree chooses the level of parameter `i`. A parameter is
//! inactive while one of its conditions does not hold, and then it has no level to choose.
//!
//! The number of leaves below a node depends on its depth and on the conditions that hold there. Conditions that no
//! later parameter needs do not matter. A count is therefore computed once for each depth and set of conditions, and
//! then cached.

use std::collections::HashMap;

use super::level::Levels;
use crate::config::{Config, Value};
use crate::space::{Condition, Space};

/// The tree of combinations. A number identifies a leaf, in the order of the levels.
pub(super) struct GridTree<'a> {
    pub(super) levels: &'a [Levels],
    space: &'a Space,
    /// The distinct conditions of the space. A set of conditions is a bit mask of their indices in this list.
    conditions: Vec<&'a Condition>,
    /// For each parameter, the mask of its own conditions.
    condition_masks: Vec<u64>,
    /// For each parameter, the mask of the conditions of this and all later parameters. A final 0 is appended.
    later_condition_masks: Vec<u64>,
    /// Cache of [`Self::count_below`]: counts by the parameter's index and the mask of the live conditions that hold.
    counts: HashMap<(usize, u64), u64>,
}

/// Largest number of combinations that are numbered.
const MAX_COMBINATIONS: u64 = 1 << 62;
/// Largest number of cached counts.
const MAX_SETS: usize = 1 << 14;

impl<'a> GridTree<'a> {
    pub(super) fn new(space: &'a Space, levels: &'a [Levels]) -> Self {
        let mut conditions: Vec<&Condition> = Vec::new();
        let mut needed = Vec::new();
        for parameter in &space.parameters {
            let mut mask = 0_u64;
            for condition in &parameter.conditions {
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
        Self { levels, space, conditions, condition_masks: needed, later_condition_masks: live, counts: HashMap::new() }
    }

    /// Returns the number of combinations. Returns `None` above `MAX_COMBINATIONS`, `MAX_SETS` or 64 conditions.
    pub(super) fn count(&mut self) -> Option<u64> {
        if self.conditions.len() > u64::BITS as usize {
            return None;
        }
        let held = self.initial_conditions();
        self.count_below(0, held)
    }

    /// Returns the combination with this number. It has the index of the level for each parameter, `None` if inactive.
    pub(super) fn choice(&mut self, number: u64) -> Vec<Option<usize>> {
        let (mut rest, mut held) = (number, self.initial_conditions());
        let mut choice = Vec::with_capacity(self.condition_masks.len());
        for index in 0..self.condition_masks.len() {
            if !self.is_active(index, held) {
                choice.push(None);
                continue;
            }
            let mut chosen = 0;
            if self.has_dependents(index) {
                for (level, value) in self.levels[index].values.iter().enumerate() {
                    let then = self.conditions_after(index, held, value);
                    // `count` has computed and cached this value.
                    let below = self.count_below(index + 1, then).unwrap_or(u64::MAX);
                    if rest < below {
                        (chosen, held) = (level, then);
                        break;
                    }
                    rest -= below;
                }
            } else {
                // Every level has equally many combinations below it, so a division finds the level.
                let below = self.count_below(index + 1, held).unwrap_or(u64::MAX).max(1);
                chosen = usize::try_from(rest / below).unwrap_or_default();
                rest %= below;
            }
            choice.push(Some(chosen));
        }
        choice
    }

    /// Returns whether the previous refinement of the grid contains this combination.
    pub(super) fn is_in_previous(&self, choice: &[Option<usize>]) -> bool {
        choice.iter().zip(self.levels).all(|(level, levels)| level.is_none_or(|level| levels.in_previous[level]))
    }

    /// Returns the number of combinations of the parameters from `index` on. `held` is the mask of the conditions that
    /// hold. Returns `None` if a limit is exceeded, as [`Self::count`] does.
    fn count_below(&mut self, index: usize, held: u64) -> Option<u64> {
        if index == self.condition_masks.len() {
            return Some(1);
        }
        let held = held & self.later_condition_masks[index];
        if let Some(count) = self.counts.get(&(index, held)) {
            return Some(*count);
        }
        let levels = &self.levels[index].values;
        let count = if !self.is_active(index, held) {
            self.count_below(index + 1, held)?
        } else if self.has_dependents(index) {
            let mut sum = 0_u64;
            for value in levels {
                let then = self.conditions_after(index, held, value);
                sum = sum.checked_add(self.count_below(index + 1, then)?)?;
            }
            sum
        } else {
            self.count_below(index + 1, held)?.checked_mul(levels.len() as u64)?
        };
        if count > MAX_COMBINATIONS || self.counts.len() >= MAX_SETS {
            return None;
        }
        self.counts.insert((index, held), count);
        Some(count)
    }

    fn is_active(&self, index: usize, held: u64) -> bool {
        held & self.condition_masks[index] == self.condition_masks[index]
    }

    /// Returns whether a later parameter has a condition on this one.
    fn has_dependents(&self, index: usize) -> bool {
        let name = &self.space.parameters[index].name;
        let live = self.later_condition_masks[index + 1];
        self.conditions.iter().enumerate().any(|(place, on)| live & bit(place) != 0 && on.parameter == *name)
    }

    /// Returns the mask of the conditions that the space's fixed flags fulfil.
    fn initial_conditions(&self) -> u64 {
        let fixed: &Config = &self.space.fixed;
        self.conditions.iter().enumerate().fold(0, |held, (place, on)| {
            let holds = fixed.get(&on.parameter).is_some_and(|value| on.values.contains(value));
            if holds { held | bit(place) } else { held }
        })
    }

    /// Returns the mask of the conditions that hold after this parameter is set to this value.
    fn conditions_after(&self, index: usize, held: u64, value: &Value) -> u64 {
        let name = &self.space.parameters[index].name;
        self.conditions.iter().enumerate().filter(|(_, on)| on.parameter == *name).fold(held, |held, (place, on)| {
            if on.values.contains(value) { held | bit(place) } else { held & !bit(place) }
        })
    }
}

/// Returns the mask with the bit of one condition. It is 0 from the 65th condition on. `count` returns `None` for such
/// spaces.
fn bit(place: usize) -> u64 {
    u32::try_from(place).ok().and_then(|place| 1_u64.checked_shl(place)).unwrap_or_default()
}
