//! Between two launches: waits until the devices' memory is given back.

use std::time::{Duration, Instant};

use super::slots::Place;
use super::trial::asked;
use super::{Event, Stop, Tuner};
use crate::server::{Baseline, StillHeld};

/// How long the driver may take to give back what an ended process had. It takes a second or two where all is well.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);

/// How long a launch waits for memory that somebody holds. After that it is tried: an engine that finds too little memory
/// says so, and that is not held against its configuration.
const HELD_LIMIT: Duration = Duration::from_mins(5);

impl Tuner<'_> {
    /// The level before a launch, for each slot that has a device of its own; none where the engine computes on no GPU of this
    /// machine.
    pub(super) fn memory_before(&self, place: &Place) -> Vec<(usize, Baseline)> {
        let Some(devices) = self.devices(place) else { return Vec::new() };
        let Some(own) = &place.devices else {
            let all = Baseline::take(devices.visible.as_deref());
            return place.slots.first().copied().zip(all).into_iter().collect();
        };
        let slots = place.slots.iter().zip(own.split(','));
        slots.filter_map(|(slot, device)| Some((*slot, Baseline::take(Some(device))?))).collect()
    }

    /// After the end of a launch. What is still held then is told, and the next launch on these slots waits for it: the outcome
    /// of this one is stored first.
    pub(super) async fn memory_after(&self, place: &mut Place, baselines: Vec<(usize, Baseline)>) {
        let begin = Instant::now();
        for (slot, baseline) in baselines {
            let limit = RELEASE_LIMIT.saturating_sub(begin.elapsed());
            if let Some(Err(held)) = self.released(&baseline, limit).await {
                self.tell(&held, "the next launch waits");
                place.held.push((slot, baseline));
            }
        }
    }

    /// Before a launch; whether to go on with it.
    pub(super) async fn wait_for_memory(&self, place: &mut Place) -> bool {
        let begin = Instant::now();
        for (_, baseline) in std::mem::take(&mut place.held) {
            match self.released(&baseline, HELD_LIMIT.saturating_sub(begin.elapsed())).await {
                None => return false,
                Some(Ok(())) => {}
                Some(Err(held)) => self.tell(&held, "launching all the same"),
            }
        }
        true
    }

    /// `None` where the user asks to stop before.
    async fn released(&self, baseline: &Baseline, limit: Duration) -> Option<Result<(), StillHeld>> {
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            () = asked(&mut stop, Stop::Gently) => None,
            released = baseline.released(limit) => Some(released),
        }
    }

    fn tell(&self, held: &StillHeld, consequence: &str) {
        (self.observer)(Event::Held { text: format!("{held}; {consequence}") });
    }
}
