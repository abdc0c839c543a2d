//! Between two launches: waits until the devices' memory is given back.

use std::time::{Duration, Instant};

use super::asked;
use crate::config::Config;
use crate::facts::{DeviceMemoryReader, GpuError};
use crate::rule::resolve_config;
use crate::server::{Baseline, Shortage, StillHeld, shortages};
use crate::tuner::slots::Place;
use crate::tuner::{Event, Stop, Tuner};

/// How long the driver may take to give back what an ended process had. It takes a second or two where all is well.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);

/// How long a launch waits for memory that somebody holds. After that it is tried: an engine that finds too little memory
/// says so, and that is not held against its configuration.
const HELD_LIMIT: Duration = Duration::from_mins(5);

/// How often a launch that waits looks at the memory.
const POLL: Duration = Duration::from_millis(500);

impl Tuner<'_> {
    /// The level before a launch, for each slot that has a device of its own; none where the engine computes on no GPU of this
    /// machine. A driver that does not answer is noticed once.
    pub(in crate::tuner) async fn memory_before(&self, place: &Place, config: &Config) -> Vec<(usize, Baseline)> {
        let mut baselines = Vec::new();
        for (slot, reader) in self.memory_readers(place, config).await {
            match Baseline::take(&reader).await {
                Ok(baseline) => baselines.extend(baseline.map(|baseline| (slot, baseline))),
                Err(error) => self.notice_once(format!("the devices' memory is not watched: {error}")),
            }
        }
        baselines
    }

    /// The devices that a launch uses, by slots: of a launch without slots of its own they are the first ones that it can see.
    async fn memory_readers(&self, place: &Place, config: &Config) -> Vec<(usize, DeviceMemoryReader)> {
        let Some(devices) = self.devices(place, config) else { return Vec::new() };
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
                    self.notice_once(format!("the devices' memory is not watched: {error}"));
                }
                // No driver, no device: nothing to wait for.
                Err(_) => {}
            }
        }
        readers
    }

    /// After the end of a launch. What is still held then is told, and the next launch on these slots waits for it: the outcome
    /// of this one is stored first.
    pub(in crate::tuner) async fn memory_after(&self, place: &mut Place, baselines: Vec<(usize, Baseline)>) {
        let begin = Instant::now();
        for (slot, baseline) in baselines {
            let limit = RELEASE_LIMIT.saturating_sub(begin.elapsed());
            if let Some(Err(held)) = self.released(&baseline, limit).await {
                self.tell(&held, "the next launch waits");
                place.held.push((slot, baseline));
            }
        }
    }

    /// Before a launch: waits until the memory that an earlier one held is given back, and until there is as much as this one
    /// asks for. Returns whether to go on with it.
    pub(in crate::tuner) async fn wait_for_memory(&self, place: &mut Place, config: &Config) -> bool {
        let begin = Instant::now();
        for (_, baseline) in std::mem::take(&mut place.held) {
            match self.released(&baseline, HELD_LIMIT.saturating_sub(begin.elapsed())).await {
                None => return false,
                Some(Ok(())) => {}
                Some(Err(held)) => self.tell(&held, "launching all the same"),
            }
        }
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            () = asked(&mut stop, Stop::Gently) => false,
            () = self.enough_memory(place, config, begin) => true,
        }
    }

    /// Waits while others hold memory that the launch asks for. A driver that does not answer is not waited for.
    async fn enough_memory(&self, place: &Place, config: &Config, begin: Instant) {
        // How much memory another engine takes is not known.
        if !self.job.engine.engine.has_rules() {
            return;
        }
        let facts = self.job.facts(self.installed.version, self.installed.device, self.installed.host);
        let whole = self.job.with_arguments(config, self.installed.version);
        let share = resolve_config(&whole, &facts).gpu_memory_utilization;
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
                (self.observer)(Event::Held { text: format!("{text}; {consequence}") });
            }
            if is_over {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
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
