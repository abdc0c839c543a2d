//! Between two launches: waits until the devices' memory is given back.

use std::time::Duration;

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
    /// The level before a launch; `None` where the engine computes on no GPU of this machine.
    pub(super) fn memory_before(&self, place: &Place) -> Option<Baseline> {
        Baseline::take(self.devices(place)?.visible.as_deref())
    }

    /// After the end of a launch. What is still held then is told, and the next launch waits for it: the outcome of this one
    /// is stored first.
    pub(super) async fn memory_after(&self, place: &mut Place, baseline: Option<Baseline>) {
        let Some(baseline) = baseline else { return };
        if let Some(Err(held)) = self.released(&baseline, RELEASE_LIMIT).await {
            self.tell(&held, "the next launch waits");
            place.held.push(baseline);
        }
    }

    /// Before a launch; whether to go on with it.
    pub(super) async fn wait_for_memory(&self, place: &mut Place) -> bool {
        for baseline in std::mem::take(&mut place.held) {
            match self.released(&baseline, HELD_LIMIT).await {
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
