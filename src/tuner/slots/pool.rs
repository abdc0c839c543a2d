//! Which slots are free, and what a launch gets with them.

use std::collections::BTreeMap;

use super::{DEVICE_ORDER, DEVICES, Slots};
use crate::facts::Processors;
use crate::server::{Baseline, Ports};
use crate::trial::Placement;

/// Ports of a launch that has neighbours: the server's, and more than enough for what vLLM's processes tell each other.
const PORTS: u16 = 32;

/// The slots of a run, taken by launches and given back.
#[derive(Debug)]
pub(in crate::tuner) struct Pool {
    slots: Slots,
    states: Vec<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    /// Failed where others did not; nothing is launched there any more.
    set_aside: bool,
    /// The memory of its device before a launch that has not given it back.
    held: Option<Baseline>,
}

/// Slots that one trial has.
#[derive(Debug)]
pub(in crate::tuner) struct Place {
    pub(in crate::tuner) trial: u32,
    pub(in crate::tuner) slots: Vec<usize>,
    /// As `CUDA_VISIBLE_DEVICES` has them; `None` where slots have none of their own.
    pub(in crate::tuner) devices: Option<String>,
    pub(in crate::tuner) processors: Option<Processors>,
    /// The memory of the devices before launches that have not given it back.
    pub(in crate::tuner) held: Vec<Baseline>,
    /// Whether nothing else is launched meanwhile.
    pub(in crate::tuner) alone: bool,
    /// Whether it is less than the whole host.
    shared: bool,
}

impl Pool {
    pub(in crate::tuner) fn new(slots: Slots) -> Self {
        let states = slots.list.iter().map(|_| State::default()).collect();
        Self { slots, states }
    }

    pub(in crate::tuner) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// How many slots a launch on so many devices takes. One that needs more than there are has them all: rules have
    /// rejected it where slots are devices.
    pub(in crate::tuner) fn needed(&self, devices: u64) -> usize {
        usize::try_from(devices).unwrap_or(usize::MAX).clamp(1, self.states.len())
    }

    /// Slots for a trial; `None` where too few are free.
    pub(in crate::tuner) fn take(&mut self, trial: u32, count: usize, alone: bool) -> Option<Place> {
        let free = |state: &State| !state.taken && !state.set_aside;
        let neighbours =
            |first: &usize| self.states[*first..].iter().take(count).filter(|state| free(state)).count() == count;
        // Devices in a row are connected best.
        let slots: Vec<usize> = match (0..self.states.len()).find(neighbours) {
            Some(first) => (first..first + count).collect(),
            None => (0..self.states.len()).filter(|slot| free(&self.states[*slot])).take(count).collect(),
        };
        if slots.len() < count {
            return None;
        }
        let mut held = Vec::new();
        for slot in &slots {
            self.states[*slot].taken = true;
            held.extend(self.states[*slot].held.take());
        }
        let of = |slot: &usize| &self.slots.list[*slot];
        let devices = slots.iter().map(|slot| of(slot).device.clone()).collect::<Option<Vec<_>>>();
        let processors = slots.iter().map(|slot| of(slot).processors.as_ref()).collect::<Option<Vec<_>>>();
        Some(Place {
            trial,
            devices: devices.map(|devices| devices.join(",")),
            processors: processors.map(Processors::union),
            slots,
            held,
            alone,
            shared: self.slots.shared,
        })
    }

    pub(in crate::tuner) fn give_back(&mut self, place: Place) {
        for (slot, held) in
            place.slots.iter().zip(place.held.into_iter().map(Some).chain(std::iter::repeat_with(|| None)))
        {
            let state = &mut self.states[*slot];
            state.taken = false;
            state.held = held;
        }
    }

    /// Nothing more is launched on these slots, or, with `false`, they are as good as the others.
    pub(in crate::tuner) fn set_aside(&mut self, slots: &[usize], aside: bool) {
        for slot in slots {
            self.states[*slot].set_aside = aside;
        }
    }

    pub(in crate::tuner) fn restore_all(&mut self) {
        for state in &mut self.states {
            state.set_aside = false;
        }
    }

    /// How many slots are not set aside.
    pub(in crate::tuner) fn usable(&self) -> usize {
        self.states.iter().filter(|state| !state.set_aside).count()
    }
}

impl Place {
    /// Ports for one launch.
    pub(in crate::tuner) fn ports(&self) -> std::io::Result<Ports> {
        Ports::take(if self.shared { PORTS } else { 1 })
    }

    /// What a launch gets in its environment besides the study's variables. `port_variable` is the engine's.
    pub(in crate::tuner) fn variables(&self, ports: &Ports, port_variable: Option<&str>) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        if let Some(devices) = &self.devices {
            variables.insert(DEVICES.to_owned(), devices.clone());
            // An index means the driver's order, as in `nvidia-smi`.
            if std::env::var_os(DEVICE_ORDER.0).is_none() {
                variables.insert(DEVICE_ORDER.0.to_owned(), DEVICE_ORDER.1.to_owned());
            }
        }
        if let (Some(name), Some(first)) = (port_variable, ports.internal()) {
            variables.insert(name.to_owned(), first.to_string());
        }
        variables
    }

    /// As it is stored; `None` where it is the whole host.
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
