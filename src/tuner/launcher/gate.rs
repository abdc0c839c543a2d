//! The wait between two launches, until the devices' memory is released.

use std::time::{Duration, Instant};

use super::devices::launch_devices;
use crate::config::Config;
use crate::facts::{DeviceMemoryReader, GpuError};
use crate::server::{DeviceShortage, MemoryBaseline, UnreleasedMemory, shortages};
use crate::tuner::context::RunContext;
use crate::tuner::run::StudyRun;
use crate::tuner::slots::{MemoryLevel, SlotPlace};
use crate::tuner::{StopRequest, TunerEvent};

/// Time limit for the driver to release the memory of an ended process. It normally takes a second or two.
const RELEASE_LIMIT: Duration = Duration::from_secs(20);

/// The longest wait of a launch for memory that others use. After it the launch begins anyway. An engine that finds too
/// little memory reports that, and the failure does not count against its configuration.
const MEMORY_WAIT_LIMIT: Duration = Duration::from_mins(5);

/// The poll interval of a launch that waits for memory.
const POLL: Duration = Duration::from_millis(500);

/// Separates launches that share devices: waits until their memory is released.
pub(super) struct MemoryGate<'r> {
    run: &'r StudyRun<'r>,
    context: &'r RunContext<'r>,
}

impl<'r> MemoryGate<'r> {
    pub(super) fn new(run: &'r StudyRun<'r>, context: &'r RunContext<'r>) -> Self {
        Self { run, context }
    }

    /// Returns the memory level before a launch, for each slot that has a device of its own. The list is empty if the
    /// engine computes on no GPU of this machine. A driver that does not answer is reported once.
    pub(super) async fn levels_before(&self, place: &SlotPlace, config: &Config) -> Vec<MemoryLevel> {
        let mut levels = Vec::new();
        for (slot, reader) in self.memory_readers(place, config).await {
            match MemoryBaseline::take(&reader).await {
                Ok(baseline) => levels.extend(baseline.map(|baseline| MemoryLevel { slot, baseline })),
                Err(error) => self.context.notice_once(format!("the devices' memory is not watched: {error}")),
            }
        }
        levels
    }

    /// Returns the readers of a launch's devices, by slots. Without slots of its own, a launch uses the first visible
    /// devices.
    async fn memory_readers(&self, place: &SlotPlace, config: &Config) -> Vec<(usize, DeviceMemoryReader)> {
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
                // Without a driver or a device there is nothing to wait for.
                Err(_) => {}
            }
        }
        readers
    }

    /// Waits after the end of a launch. Memory that is still in use is reported, and the next launch on these slots
    /// waits for it: the outcome of this launch is stored first.
    pub(super) async fn wait_for_release(&self, place: &mut SlotPlace, levels: Vec<MemoryLevel>) {
        let begin = Instant::now();
        for level in levels {
            let limit = RELEASE_LIMIT.saturating_sub(begin.elapsed());
            if let Some(Err(held)) = self.wait_until_released(&level.baseline, limit).await {
                self.report_held_memory(&held, "the next launch waits");
                place.held.push(level);
            }
        }
    }

    /// Waits before a launch: first for the memory of an earlier launch, then for as much as this one requests. Returns
    /// whether to go on with the launch.
    pub(super) async fn wait_for_memory(&self, place: &mut SlotPlace, config: &Config) -> bool {
        let begin = Instant::now();
        for MemoryLevel { baseline, .. } in std::mem::take(&mut place.held) {
            match self.wait_until_released(&baseline, MEMORY_WAIT_LIMIT.saturating_sub(begin.elapsed())).await {
                None => return false,
                Some(Ok(())) => {}
                Some(Err(held)) => self.report_held_memory(&held, "launching anyway"),
            }
        }
        tokio::select! {
            biased;
            () = self.run.wait_for_stop(StopRequest::Graceful) => false,
            () = self.wait_for_enough_memory(place, config, begin) => true,
        }
    }

    /// Waits while others use memory that the launch requests. Does not wait if the driver does not answer.
    async fn wait_for_enough_memory(&self, place: &SlotPlace, config: &Config, begin: Instant) {
        // The memory use of other engines is not known.
        let Some(resolved) = self.run.facts().resolve(&self.run.with_engine_args(config)) else { return };
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
            let text = short.iter().map(DeviceShortage::to_string).collect::<Vec<_>>().join("; ");
            let is_over = begin.elapsed() >= MEMORY_WAIT_LIMIT;
            let consequence = if is_over { "launching anyway" } else { "the launch waits for up to 5 minutes" };
            // Numbers change while it waits, but one line is enough.
            if is_over || told.replace(text.clone()).is_none() {
                self.run.emit(TunerEvent::MemoryHeld { text: format!("{text}; {consequence}") });
            }
            if is_over {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits for the release; `None` if the user requests a stop first.
    async fn wait_until_released(
        &self,
        baseline: &MemoryBaseline,
        limit: Duration,
    ) -> Option<Result<(), UnreleasedMemory>> {
        tokio::select! {
            biased;
            () = self.run.wait_for_stop(StopRequest::Graceful) => None,
            released = baseline.wait_until_released(limit) => Some(released),
        }
    }

    fn report_held_memory(&self, held: &UnreleasedMemory, consequence: &str) {
        self.run.emit(TunerEvent::MemoryHeld { text: format!("{held}; {consequence}") });
    }
}
