//! The circumstances of a measurement that no configuration changes: release, device, driver and host.

use serde::{Deserialize, Serialize};

use super::{Device, Host, parse_reported_release};
use crate::stats::to_f64;

/// The largest relative difference between two readings of equal memory: drivers and kernels reserve different amounts.
const MEMORY_TOLERANCE: f64 = 0.02;

/// The context of a trial. Fields that could not be read are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialContext {
    /// The release that the server itself reports, with its suffixes.
    pub release: Option<String>,
    pub device: TrialDevices,
    pub host: HostContext,
}

/// The devices that the engine computes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialDevices {
    /// Such as `NVIDIA H100 80GB HBM3`; several kinds are joined by ` + `. `cpu` if the engine computes on processors.
    pub name: Option<String>,
    /// Bytes of the smallest device.
    pub memory: Option<u64>,
    pub count: Option<u32>,
    /// Such as `1g.10gb`; `none` if no device is partitioned.
    pub mig_profile: Option<String>,
    /// Such as `9.0`.
    pub compute_capability: Option<String>,
    /// The lowest limit of the devices.
    pub power_limit_w: Option<f64>,
    pub driver: Option<String>,
}

/// The host that the engine and the load generator run on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostContext {
    pub name: Option<String>,
    pub cpu: Option<String>,
    /// Logical processors.
    pub cpus: Option<usize>,
    /// Bytes.
    pub memory: Option<u64>,
}

/// A field whose value differs between two contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextChange {
    pub field: &'static str,
    pub stored: String,
    pub now: String,
    /// Whether measurements before and after it can still be compared.
    pub is_comparable: bool,
}

impl std::fmt::Display for ContextChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (stored: {}, now: {})", self.field, self.stored, self.now)
    }
}

impl TrialDevices {
    /// Describes a device that only the study or the engine's build states, and that was not read.
    #[must_use]
    pub fn described(device: Device) -> Self {
        let Some(gpu) = device.gpu() else {
            return Self { name: Some("cpu".to_owned()), ..Self::default() };
        };
        let capability = gpu.capability.map(|(major, minor)| format!("{major}.{minor}"));
        Self { memory: gpu.memory, count: gpu.count, compute_capability: capability, ..Self::default() }
    }
}

impl From<Host> for HostContext {
    fn from(host: Host) -> Self {
        let known = |text: String| Some(text).filter(|text| !text.is_empty() && text != "unknown");
        Self {
            name: known(host.name),
            cpu: known(host.cpu),
            cpus: Some(host.cpus).filter(|cpus| *cpus > 0),
            memory: Some(host.memory).filter(|memory| *memory > 0),
        }
    }
}

impl TrialContext {
    /// Returns the differences between this stored context and `now`. Fields that are unknown on one side count as
    /// equal.
    #[must_use]
    pub fn changes(&self, now: &Self) -> Vec<ContextChange> {
        let mut changes = Vec::new();
        let mut compare = |field, before: Option<String>, after: Option<String>, kind: Kind| {
            let (Some(stored), Some(now)) = (before, after) else { return };
            if stored != now {
                changes.push(ContextChange { field, stored, now, is_comparable: kind == Kind::Reported });
            }
        };
        let (before, after) = (self.release.as_deref(), now.release.as_deref());
        if let Some(kind) = before.zip(after).and_then(|(before, after)| release_change(before, after)) {
            compare("engine release", before.map(str::to_owned), after.map(str::to_owned), kind);
        }
        let (a, b) = (&self.device, &now.device);
        compare("device", a.name.clone(), b.name.clone(), Kind::Refused);
        if !is_same_size(a.memory, b.memory) {
            compare("device memory", a.memory.map(mebibytes), b.memory.map(mebibytes), Kind::Refused);
        }
        compare("devices", a.count.map(text), b.count.map(text), Kind::Refused);
        compare("MIG profile", a.mig_profile.clone(), b.mig_profile.clone(), Kind::Refused);
        compare("compute capability", a.compute_capability.clone(), b.compute_capability.clone(), Kind::Refused);
        let watts = |limit: f64| format!("{limit:.0} W");
        compare("power limit", a.power_limit_w.map(watts), b.power_limit_w.map(watts), Kind::Reported);
        compare("driver", a.driver.clone(), b.driver.clone(), Kind::Reported);
        let (a, b) = (&self.host, &now.host);
        compare("host", a.name.clone(), b.name.clone(), Kind::Reported);
        compare("processor model", a.cpu.clone(), b.cpu.clone(), Kind::Refused);
        compare("processors", a.cpus.map(text), b.cpus.map(text), Kind::Refused);
        if !is_same_size(a.memory, b.memory) {
            compare("host memory", a.memory.map(mebibytes), b.memory.map(mebibytes), Kind::Refused);
        }
        changes
    }

    /// Fills the unknown fields of this context from `other`.
    #[must_use]
    pub fn fill_unknown_from(self, other: &Self) -> Self {
        let (device, host) = (self.device, self.host);
        let (known, home) = (&other.device, &other.host);
        Self {
            release: self.release.or_else(|| other.release.clone()),
            device: TrialDevices {
                name: device.name.or_else(|| known.name.clone()),
                memory: device.memory.or(known.memory),
                count: device.count.or(known.count),
                mig_profile: device.mig_profile.or_else(|| known.mig_profile.clone()),
                compute_capability: device.compute_capability.or_else(|| known.compute_capability.clone()),
                power_limit_w: device.power_limit_w.or(known.power_limit_w),
                driver: device.driver.or_else(|| known.driver.clone()),
            },
            host: HostContext {
                name: host.name.or_else(|| home.name.clone()),
                cpu: host.cpu.or_else(|| home.cpu.clone()),
                cpus: host.cpus.or(home.cpus),
                memory: host.memory.or(home.memory),
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Refused,
    Reported,
}

/// Compares two releases; `None` if they differ only in suffixes, or if one of them cannot be read.
fn release_change(stored: &str, now: &str) -> Option<Kind> {
    let (stored, now) = (parse_reported_release(stored)?, parse_reported_release(now)?);
    match stored == now {
        true => None,
        false if stored.is_same_minor(now) => Some(Kind::Reported),
        false => Some(Kind::Refused),
    }
}

fn is_same_size(stored: Option<u64>, now: Option<u64>) -> bool {
    let Some((stored, now)) = stored.zip(now) else { return true };
    let (stored, now) = (to_f64(stored), to_f64(now));
    (stored - now).abs() <= MEMORY_TOLERANCE * stored.max(now)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn text(number: impl std::fmt::Display) -> String {
    number.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Gpu;

    fn context() -> TrialContext {
        TrialContext {
            release: Some("0.11.0".to_owned()),
            device: TrialDevices {
                name: Some("NVIDIA H100 80GB HBM3".to_owned()),
                memory: Some(80 << 30),
                count: Some(8),
                mig_profile: Some("none".to_owned()),
                compute_capability: Some("9.0".to_owned()),
                power_limit_w: Some(700.0),
                driver: Some("570.1".to_owned()),
            },
            host: HostContext {
                name: Some("a".to_owned()),
                cpu: Some("EPYC".to_owned()),
                cpus: Some(64),
                memory: Some(512 << 30),
            },
        }
    }

    /// Returns the changed fields, and whether measurements before and after can be compared.
    fn changes(change: impl FnOnce(&mut TrialContext)) -> Vec<(&'static str, bool)> {
        let mut now = context();
        change(&mut now);
        context().changes(&now).iter().map(|change| (change.field, change.is_comparable)).collect()
    }

    #[test]
    fn another_release_device_class_or_host_is_not_comparable() {
        assert_eq!(changes(|_| {}), []);
        assert_eq!(changes(|now| now.release = Some("0.12.0".to_owned())), [("engine release", false)]);
        assert_eq!(changes(|now| now.device.name = Some("NVIDIA A100".to_owned())), [("device", false)]);
        assert_eq!(changes(|now| now.device.memory = Some(40 << 30)), [("device memory", false)]);
        assert_eq!(changes(|now| now.device.count = Some(4)), [("devices", false)]);
        assert_eq!(changes(|now| now.device.mig_profile = Some("1g.10gb".to_owned())), [("MIG profile", false)]);
        assert_eq!(changes(|now| now.host.cpu = Some("Xeon".to_owned())), [("processor model", false)]);
        assert_eq!(changes(|now| now.host.cpus = Some(32)), [("processors", false)]);
        assert_eq!(changes(|now| now.host.memory = Some(256 << 30)), [("host memory", false)]);
    }

    #[test]
    fn a_patch_a_driver_a_power_limit_and_a_host_name_are_only_reported() {
        assert_eq!(changes(|now| now.release = Some("0.11.2".to_owned())), [("engine release", true)]);
        assert_eq!(changes(|now| now.device.driver = Some("575.0".to_owned())), [("driver", true)]);
        assert_eq!(changes(|now| now.device.power_limit_w = Some(500.0)), [("power limit", true)]);
        assert_eq!(changes(|now| now.host.name = Some("b".to_owned())), [("host", true)]);
    }

    #[test]
    fn suffixes_small_differences_of_memory_and_unknown_fields_are_no_change() {
        assert_eq!(changes(|now| now.release = Some("0.11.0+cpu".to_owned())), []);
        assert_eq!(changes(|now| now.release = Some("a build of mine".to_owned())), []);
        assert_eq!(changes(|now| now.host.memory = Some(505 << 30)), []);
        assert_eq!(changes(|now| now.device.memory = Some(79 << 30)), []);
        assert_eq!(changes(|now| *now = TrialContext::default()), []);
        assert_eq!(TrialContext::default().changes(&context()), []);
    }

    #[test]
    fn an_unknown_field_keeps_its_stored_value() {
        let unknown = TrialContext { release: Some("0.12.0".to_owned()), ..TrialContext::default() };
        let completed = unknown.fill_unknown_from(&context());
        assert_eq!(completed, TrialContext { release: Some("0.12.0".to_owned()), ..context() });
        assert_eq!(context().fill_unknown_from(&completed), context());
    }

    #[test]
    fn a_described_device_has_the_values_of_the_study() {
        let gpu = TrialDevices::described(Device::Cuda(Gpu::described(Some(24 << 30), Some(2), Some((8, 9)))));
        assert_eq!((gpu.memory, gpu.count, gpu.compute_capability.as_deref()), (Some(24 << 30), Some(2), Some("8.9")));
        assert_eq!((gpu.name, gpu.driver), (None, None));
        assert_eq!(TrialDevices::described(Device::Cpu).name.as_deref(), Some("cpu"));
    }
}
