//! The free slots of a run, and the resources that a launch gets with its slots.

use std::collections::BTreeMap;

use super::{DEVICE_ORDER, DEVICES_VARIABLE, Slots};
use crate::facts::Processors;
use crate::server::{MemoryBaseline, Ports};
use crate::trial::Placement;

/// Ports of a launch that has neighbours: the server's, and more than enough for the communication of vLLM's processes.
const PORTS_PER_LAUNCH: u16 = 32;

/// The slots of a run. Launches take them and give them back.
#[derive(Debug)]
pub(in crate::tuner) struct SlotPool {
    slots: Slots,
    states: Vec<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    taken: bool,
    /// Whether launches failed here but not on other slots. Nothing is launched here until the slot is restored.
    set_aside: bool,
    /// Whether processes were left behind here that cannot be ended. Nothing is launched here any more.
    lost: bool,
    /// The memory of its device before a launch that has not released all of it.
    held: Option<MemoryBaseline>,
}

/// The level of memory of a slot's device before a launch.
#[derive(Debug)]
pub(in crate::tuner) struct MemoryLevel {
    pub(in crate::tuner) slot: usize,
    pub(in crate::tuner) baseline: MemoryBaseline,
}

/// The slots of one trial.
#[derive(Debug)]
pub(in crate::tuner) struct SlotPlace {
    pub(in crate::tuner) trial: u32,
    pub(in crate::tuner) slots: Vec<usize>,
    /// The value of `CUDA_VISIBLE_DEVICES`; `None` if slots have no devices of their own.
    pub(in crate::tuner) devices: Option<String>,
    pub(in crate::tuner) processors: Option<Processors>,
    /// The memory of devices before launches that have not released all of it.
    pub(in crate::tuner) held: Vec<MemoryLevel>,
    /// Whether nothing else is launched meanwhile.
    pub(in crate::tuner) alone: bool,
    /// Whether the study divides the host into slots.
    shared: bool,
}

impl SlotState {
    fn is_usable(&self) -> bool {
        !self.set_aside && !self.lost
    }
}

impl SlotPool {
    pub(in crate::tuner) fn new(slots: Slots) -> Self {
        let states = slots.list.iter().map(|_| SlotState::default()).collect();
        Self { slots, states }
    }

    pub(in crate::tuner) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Returns the number of slots for a launch on `devices` devices. A launch that needs more than exist gets all
    /// slots: if slots are devices, the rules have already rejected it.
    pub(in crate::tuner) fn needed(&self, devices: u64) -> usize {
        usize::try_from(devices).unwrap_or(usize::MAX).clamp(1, self.states.len())
    }

    /// Takes any slots for a trial; `None` if too few are free.
    #[cfg(test)]
    pub(in crate::tuner) fn take(&mut self, trial: u32, count: usize, alone: bool) -> Option<SlotPlace> {
        self.take_with(trial, &[], count, alone)
    }

    /// Takes slots for a trial, including the wanted ones; `None` if too few are free.
    pub(in crate::tuner) fn take_with(
        &mut self,
        trial: u32,
        wanted: &[usize],
        count: usize,
        alone: bool,
    ) -> Option<SlotPlace> {
        let free = |state: &SlotState| !state.taken && state.is_usable();
        if wanted.iter().take(count).any(|slot| !free(&self.states[*slot])) {
            return None;
        }
        // Devices in a row have the best connections.
        let neighbours =
            |first: &usize| self.states[*first..].iter().take(count).filter(|state| free(state)).count() == count;
        // Without such a row, or if slots are wanted, other free slots complete the selection.
        let others = (0..self.states.len()).filter(|slot| free(&self.states[*slot]) && !wanted.contains(slot));
        let slots: Vec<usize> = match (0..self.states.len()).find(neighbours).filter(|_| wanted.is_empty()) {
            Some(first) => (first..first + count).collect(),
            None => wanted.iter().copied().chain(others).take(count).collect(),
        };
        if slots.len() < count {
            return None;
        }
        let mut held = Vec::new();
        for slot in &slots {
            self.states[*slot].taken = true;
            let level = self.states[*slot].held.take();
            held.extend(level.map(|baseline| MemoryLevel { slot: *slot, baseline }));
        }
        let of = |slot: &usize| &self.slots.list[*slot];
        let devices = slots.iter().map(|slot| of(slot).device.clone()).collect::<Option<Vec<_>>>();
        let processors = slots.iter().map(|slot| of(slot).processors.as_ref()).collect::<Option<Vec<_>>>();
        Some(SlotPlace {
            trial,
            devices: devices.map(|devices| devices.join(",")),
            processors: processors.map(Processors::union),
            slots,
            held,
            alone,
            shared: self.slots.divides_host,
        })
    }

    /// Frees the slots of a trial. Memory that is still held there is kept for the next launch.
    pub(in crate::tuner) fn give_back(&mut self, place: SlotPlace) {
        for slot in place.slots {
            self.states[slot].taken = false;
        }
        for MemoryLevel { slot, baseline } in place.held {
            self.states[slot].held = Some(baseline);
        }
    }

    /// Sets these slots aside, so that nothing is launched there, or restores them if `aside` is false.
    pub(in crate::tuner) fn set_aside(&mut self, slots: &[usize], aside: bool) {
        for slot in slots {
            self.states[*slot].set_aside = aside;
        }
    }

    /// Removes these slots for the rest of the run.
    pub(in crate::tuner) fn mark_lost(&mut self, slots: &[usize]) {
        for slot in slots {
            self.states[*slot].lost = true;
        }
    }

    /// Restores all slots that were set aside. Lost slots stay lost.
    pub(in crate::tuner) fn restore_all(&mut self) {
        for state in &mut self.states {
            state.set_aside = false;
        }
    }

    /// Returns the number of slots that are not lost.
    pub(in crate::tuner) fn remaining_count(&self) -> usize {
        self.states.iter().filter(|state| !state.lost).count()
    }

    /// Returns the number of slots that are neither set aside nor lost.
    pub(in crate::tuner) fn usable(&self) -> usize {
        self.states.iter().filter(|state| state.is_usable()).count()
    }
}

impl SlotPlace {
    /// Reserves ports for one launch.
    pub(in crate::tuner) fn ports(&self) -> std::io::Result<Ports> {
        Ports::take(if self.shared { PORTS_PER_LAUNCH } else { 1 })
    }

    /// Returns the environment variables of a launch that follow from its slots. `port_variable` is the engine's.
    pub(in crate::tuner) fn variables(&self, ports: &Ports, port_variable: Option<&str>) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        if let Some(devices) = &self.devices {
            variables.insert(DEVICES_VARIABLE.to_owned(), devices.clone());
            // With this order, an index means the same device as in `nvidia-smi`.
            if std::env::var_os(DEVICE_ORDER.0).is_none() {
                variables.insert(DEVICE_ORDER.0.to_owned(), DEVICE_ORDER.1.to_owned());
            }
        }
        if let (Some(name), Some(first)) = (port_variable, ports.internal()) {
            variables.insert(name.to_owned(), first.to_string());
        }
        variables
    }

    /// Returns the placement for the database; `None` for the whole host.
    pub(in crate::tuner) fn placement(&self, ports: &Ports) -> Option<Placement> {
        let number = |slot: &usize| u32::try_from(*slot).unwrap_or(u32::MAX);
        self.shared.then(|| Placement {
            slots: self.slots.iter().map(number).collect(),
            devices: self.devices.clone(),
            processors: self.processors.as_ref().map(ToString::to_string),
            ports: ports.ends(),
            alone: self.alone,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::slots::Slot;

    fn pool(count: usize) -> SlotPool {
        let slot = |device: usize| Slot { device: Some(device.to_string()), processors: None };
        let list: Vec<_> = (0..count).map(slot).collect();
        SlotPool::new(Slots { parallel: count, list, max_interference: 0.1, divides_host: true })
    }

    fn held(place: &SlotPlace) -> Vec<usize> {
        place.held.iter().map(|level| level.slot).collect()
    }

    #[test]
    fn only_the_launch_on_a_held_device_waits_for_its_memory() {
        let mut pool = pool(4);
        let mut wide = pool.take(0, 4, false).unwrap();
        wide.held.extend([2, 3].map(|slot| MemoryLevel { slot, baseline: MemoryBaseline::nothing() }));
        pool.give_back(wide);
        let places = [0, 1, 2, 3].map(|trial| pool.take(trial, 1, false).unwrap());
        assert_eq!(places.each_ref().map(held), [vec![], vec![], vec![2], vec![3]]);
        for mut place in places {
            place.held.clear();
            pool.give_back(place);
        }
        assert_eq!(held(&pool.take(9, 4, false).unwrap()), [0; 0], "it was given back");
    }

    #[test]
    fn adjacent_slots_are_preferred_and_set_aside_ones_are_not_used() {
        let mut pool = pool(5);
        let first = pool.take(0, 1, false).unwrap();
        let second = pool.take(1, 1, false).unwrap();
        pool.give_back(first);
        let pair = pool.take(2, 2, false).unwrap();
        assert_eq!((pair.slots.as_slice(), pair.devices.as_deref()), (&[2, 3][..], Some("2,3")));
        let apart = pool.take(3, 2, false).unwrap();
        assert_eq!(apart.slots, [0, 4]);
        assert!(pool.take(4, 1, false).is_none());
        for place in [second, pair, apart] {
            pool.give_back(place);
        }
        pool.set_aside(&[1, 2], true);
        assert_eq!((pool.usable(), pool.take(5, 3, false).unwrap().slots), (3, vec![0, 3, 4]));
    }
}
