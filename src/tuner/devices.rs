//! The GPUs of this machine that a launch computes on.

use super::Tuner;
use super::slots::Place;
use super::vitals::computes_elsewhere;
use crate::config::Config;
use crate::facts::Device;
use crate::rule::devices_needed;
use crate::telemetry::Devices;

impl Tuner<'_> {
    /// The GPUs that the engine computes on. The simulated engine computes on none, whatever it simulates.
    pub(super) fn devices(&self, place: &Place, config: &Config) -> Option<Devices> {
        let visible = self.visible_devices(place)?;
        // A container may have other devices under the same numbers.
        let is_here = place.devices.is_some() || !computes_elsewhere(&self.job.engine.command);
        let whole = self.job.with_arguments(config, self.installed.version);
        let used = if is_here { devices_needed(&whole) } else { u64::MAX };
        Some(Devices { is_given: is_here && visible.is_some(), visible, used, known: Vec::new() })
    }

    /// The engine's `CUDA_VISIBLE_DEVICES`, if it computes on GPUs.
    pub(super) fn visible_devices(&self, place: &Place) -> Option<Option<String>> {
        let engine = &self.job.engine;
        let on_gpu = matches!(self.installed.device, Device::Cuda(_)) && engine.engine.kind() != "sim";
        let given = || engine.environment.get("CUDA_VISIBLE_DEVICES").cloned();
        on_gpu.then(|| place.devices.clone().or_else(given))
    }
}
