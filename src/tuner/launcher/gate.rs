//! Between two launches: waits until the devices' memory is given back.

use std::time::{Duration, Instant};

use super::devices::launch_devices;
use crate::config::Config;
use crate::facts::{DeviceMemoryReader, GpuError};
use crate::server::{Baseline, Shortage, StillHeld, shortages};
use crate::tuner::context::ContextKeeper;
use crate::tuner::run::StudyRun;
use crate::tuner::slots::{MemoryLevel, Place};
use crate::tuner::{Event, Stop};

/// How long the driver may take to give back what an ended process had. It takes a second or two where all is well.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);

/// How long a launch waits for memory that somebody holds. After that it is tried: an engine that finds too little memory
/// says so, and that is not held against its configuration.
const HELD_LIMIT: Duration = Duration::from_mins(5);

/// How often a launch that waits looks at the memory.
const POLL: Duration = Duration::from_millis(500);

/// Keeps launches apart that share devices: waits until their memory is given back.
pub(super) struct MemoryGate<'r> {
    run: &'r StudyRun<'r>,
    context: &'r ContextKeeper<'r>,
}

impl<'r> MemoryGate<'r> {
    pub(super) fn new(run: &'r StudyRun<'r>, context: &'r ContextKeeper<'r>) -> Self {
        Self { run, context }
    }

    /// The level before a launch, for each slot that has a device of its own; none where the engine computes on no GPU of this
    /// machine. A driver that does not answer is noticed once.
    pub(super) async fn levels_before(&self, place: &Place, config: &Config) -> Vec<MemoryLevel> {
        let mut levels = Vec::new();
        for (slot, reader) in self.memory_readers(place, config).await {
            match Baseline::take(&reader).await {
                Ok(baseline) => levels.extend(baseline.map(|baseline| MemoryLevel { slot, baseline })),
                Err(error) => self.context.notice_once(format!("the devices' memory is not watched: {error}")),
            }
        }
        levels
    }

    /// The devices that a launch uses, by slots: of a launch without slots of its own they are the first ones that it can see.
    async fn memory_readers(&self, place: &Place, config: &Config) -> Vec<(usize, DeviceMemoryReader)> {
        let Some(devices) = launch_devices(self.run, place, config) else { return Vec::new() };
        let wanted: Vec<_> = match &place.devices {
            Some(own) => {
                let slots = place.slots.iter().copied().zip(own.split(','));
                slots.map(|(slot, device)| (slot, Some(device.to_owned()), 1)).collect()
            }
            None => place.slots.first().map(|slot| (*slot, devices.visible, devices.used)).into_iter().collect(),
        };
        let mut readers = Vec::new();
        for (slot, visible, most) in wanted {
            match DeviceMemoryReader::open(visible.as_deref(), most).await {
                Ok(reader) => readers.push((slot, reader)),
                Err(error @ GpuError::Hangs { .. }) => {
                    self.context.notice_once(format!("the devices' memory is not watched: {error}"));
                }
                // No driver, no device: nothing to wait for.
                Err(_) => {}
            }
        }
        readers
    }

    /// After the end of a launch. What is still held then is told, and the next launch on these slots waits for it: the outcome
    /// of this one is stored first.
    pub(super) async fn wait_for_release(&self, place: &mut Place, levels: Vec<MemoryLevel>) {
        let begin = Instant::now();
        for level in levels {
            let limit = RELEASE_LIMIT.saturating_sub(begin.elapsed());
            if let Some(Err(held)) = self.released(&level.baseline, limit).await {
                self.tell(&held, "the next launch waits");
                place.held.push(level);
            }
        }
    }

    /// Before a launch: waits until the memory that an earlier one held is given back, and until there is as much as this one
    /// asks for. Returns whether to go on with it.
    pub(super) async fn wait_for_memory(&self, place: &mut Place, config: &Config) -> bool {
        let begin = Instant::now();
        for MemoryLevel { baseline, .. } in std::mem::take(&mut place.held) {
            match self.released(&baseline, HELD_LIMIT.saturating_sub(begin.elapsed())).await {
                None => return false,
                Some(Ok(())) => {}
                Some(Err(held)) => self.tell(&held, "launching all the same"),
            }
        }
        tokio::select! {
            biased;
            () = self.run.stopped(Stop::Gently) => false,
            () = self.enough_memory(place, config, begin) => true,
        }
    }

    /// Waits while others hold memory that the launch asks for. A driver that does not answer is not waited for.
    async fn enough_memory(&self, place: &Place, config: &Config, begin: Instant) {
        // How much memory another engine takes is not known.
        let Some(resolved) = self.run.facts().resolve(&self.run.whole(config)) else { return };
        let share = resolved.gpu_memory_utilization;
        let readers = self.memory_readers(place, config).await;
        let mut told = None;
        loop {
            let mut short = Vec::new();
            for (_, reader) in &readers {
                short.extend(shortages(&reader.read().await.unwrap_or_default(), share));
            }
            if short.is_empty() {
                return;
            }
            let text = short.iter().map(Shortage::to_string).collect::<Vec<_>>().join("; ");
            let is_over = begin.elapsed() >= HELD_LIMIT;
            let consequence =
                if is_over { "launching all the same" } else { "the launch waits, for 5 minutes at most" };
            // Numbers change while it waits; one line is enough.
            if is_over || told.replace(text.clone()).is_none() {
                self.run.tell(Event::Held { text: format!("{text}; {consequence}") });
            }
            if is_over {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// `None` where the user asks to stop before.
    async fn released(&self, baseline: &Baseline, limit: Duration) -> Option<Result<(), StillHeld>> {
        tokio::select! {
            biased;
            () = self.run.stopped(Stop::Gently) => None,
            released = baseline.released(limit) => Some(released),
        }
    }

    fn tell(&self, held: &StillHeld, consequence: &str) {
        self.run.tell(Event::Held { text: format!("{held}; {consequence}") });
    }
}
