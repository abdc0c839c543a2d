//! The GPUs of this machine and the instances of divided ones (MIG), and the selection that CUDA gives to a process.
//!
//! A device that cannot be read keeps its place, so that the indices of the others stay those of `nvidia-smi`.

use std::fmt;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::nvml::{GpuError, instance_ids};

/// A device, or an instance of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GpuId {
    /// In the driver's order, which is CUDA's with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub index: u32,
    /// Empty if it cannot be read.
    pub uuid: String,
    /// The place of an instance on its device.
    pub instance: Option<u32>,
}

/// A selection of devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelection {
    /// Those that an engine with this `CUDA_VISIBLE_DEVICES` computes on. `None`: the variable is not set.
    Visible(Option<String>),
    /// The devices that are named for slots. Each slot's engines compute on one of them.
    Slots(String),
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instance {
            Some(_) => write!(f, "{} of GPU {}", self.uuid, self.index),
            None => write!(f, "GPU {}", self.index),
        }
    }
}

impl GpuId {
    /// Returns the name in `CUDA_VISIBLE_DEVICES`.
    #[must_use]
    pub fn cuda_name(&self) -> String {
        if self.instance.is_some() { self.uuid.clone() } else { self.index.to_string() }
    }

    /// Returns the driver's handle.
    pub(super) fn open<'a>(&self, nvml: &'a Nvml) -> Result<Device<'a>, NvmlError> {
        let device = nvml.device_by_index(self.index)?;
        match self.instance {
            Some(instance) => device.mig_device_by_index(instance),
            None => Ok(device),
        }
    }
}

/// An instance of a divided device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListedInstance {
    pub(super) place: u32,
    pub(super) uuid: String,
    /// GPU instance and compute instance.
    pub(super) ids: Option<(u32, u32)>,
}

/// A device in the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListedGpu {
    /// Empty if it cannot be read.
    pub(super) uuid: String,
    pub(super) is_divided: bool,
    pub(super) instances: Vec<ListedInstance>,
}

/// The devices of this machine, in the driver's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GpuList(pub(super) Vec<ListedGpu>);

impl GpuList {
    /// # Errors
    /// If the driver cannot count its devices, or has none.
    pub(super) fn read(nvml: &Nvml) -> Result<Self, GpuError> {
        let count = nvml.device_count()?;
        if count == 0 {
            return Err(GpuError::NoDevice);
        }
        Ok(Self((0..count).map(|index| listed(nvml, index)).collect()))
    }

    /// # Errors
    /// If the selection leaves no device.
    pub(super) fn selected(&self, selection: &GpuSelection) -> Result<Vec<GpuId>, GpuError> {
        match selection {
            GpuSelection::Visible(variable) => self.visible(variable.as_deref()),
            GpuSelection::Slots(names) => self.one_per_engine(Some(names), false),
        }
    }

    /// Returns the devices that an engine with this `CUDA_VISIBLE_DEVICES` computes on, in its order. If an instance of
    /// a divided device is among them, CUDA gives the process this instance and nothing else.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn visible(&self, variable: Option<&str>) -> Result<Vec<GpuId>, GpuError> {
        let mut named = self.named(variable, false);
        if let Some(first) = named.iter().find(|id| id.instance.is_some()) {
            named = vec![first.clone()];
        }
        self.require_devices(named, variable)
    }

    /// Returns the devices that this variable names, each for an engine of its own. A divided device counts as its
    /// first instance, or as all of them with `all_instances`.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn one_per_engine(&self, variable: Option<&str>, all_instances: bool) -> Result<Vec<GpuId>, GpuError> {
        self.require_devices(self.named(variable, all_instances), variable)
    }

    /// Returns every device and every instance. A divided device without instances is included.
    pub(super) fn all(&self) -> Vec<GpuId> {
        let parts = |index: usize| match self.parts(index, true) {
            parts if parts.is_empty() => {
                vec![GpuId { index: number(index), uuid: self.0[index].uuid.clone(), instance: None }]
            }
            parts => parts,
        };
        (0..self.0.len()).flat_map(parts).collect()
    }

    fn require_devices(&self, named: Vec<GpuId>, variable: Option<&str>) -> Result<Vec<GpuId>, GpuError> {
        match variable {
            _ if !named.is_empty() => Ok(named),
            Some(variable) => Err(GpuError::NoneVisible(variable.to_owned(), self.0.len())),
            None => Err(GpuError::NoDevice),
        }
    }

    /// Returns the named devices. As in CUDA, the list ends at the first entry that names no device. A device that is
    /// named twice leaves no device.
    fn named(&self, variable: Option<&str>, all_instances: bool) -> Vec<GpuId> {
        let Some(list) = variable else {
            return (0..self.0.len()).flat_map(|index| self.parts(index, all_instances)).collect();
        };
        let mut named: Vec<GpuId> = Vec::new();
        for entry in list.split(',') {
            let parts = self.select(entry.trim(), all_instances);
            if parts.is_empty() {
                break;
            }
            named.extend(parts);
        }
        let twice = named.iter().enumerate().any(|(at, one)| named[..at].contains(one));
        if twice { Vec::new() } else { named }
    }

    /// Returns a whole device, or the instances of a divided one: all with `all_instances`, else the first.
    fn parts(&self, index: usize, all_instances: bool) -> Vec<GpuId> {
        let gpu = &self.0[index];
        if !gpu.is_divided {
            return vec![GpuId { index: number(index), uuid: gpu.uuid.clone(), instance: None }];
        }
        let most = if all_instances { usize::MAX } else { 1 };
        gpu.instances.iter().take(most).map(|instance| id(index, instance)).collect()
    }

    /// Selects by index, by the unique beginning of a UUID, or by `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`.
    fn select(&self, entry: &str, all_instances: bool) -> Vec<GpuId> {
        if let Ok(index) = entry.parse::<usize>() {
            return if index < self.0.len() { self.parts(index, all_instances) } else { Vec::new() };
        }
        let gpus = self.0.iter().enumerate();
        if let Some(instance) = entry.strip_prefix("MIG-") {
            let instances = gpus.flat_map(|(index, gpu)| gpu.instances.iter().map(move |one| (index, gpu, one)));
            let is_named = |(_, gpu, one): &(usize, &ListedGpu, &ListedInstance)| {
                let by_place = one.ids.map(|(gi, ci)| format!("{}/{gi}/{ci}", gpu.uuid));
                by_place.as_deref() == Some(instance) || one.uuid.starts_with(entry)
            };
            let named = instances.filter(is_named).map(|(index, _, one)| id(index, one));
            return unique_match(named);
        }
        let named = gpus.filter(|(_, gpu)| entry.starts_with("GPU-") && gpu.uuid.starts_with(entry));
        unique_match(named.map(|(index, _)| index))
            .into_iter()
            .flat_map(|index| self.parts(index, all_instances))
            .collect()
    }
}

/// Returns the one element, or none if there are several.
fn unique_match<T>(mut all: impl Iterator<Item = T>) -> Vec<T> {
    let first = all.next();
    first.filter(|_| all.next().is_none()).into_iter().collect()
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn id(index: usize, instance: &ListedInstance) -> GpuId {
    GpuId { index: number(index), uuid: instance.uuid.clone(), instance: Some(instance.place) }
}

/// Returns the selected devices; without a selection all devices and all instances.
///
/// # Errors
/// If the driver reports no device, or none is selected.
pub fn listed_gpus(nvml: &Nvml, selection: Option<&GpuSelection>) -> Result<Vec<GpuId>, GpuError> {
    let list = GpuList::read(nvml)?;
    selection.map_or_else(|| Ok(list.all()), |selection| list.selected(selection))
}

/// Calls `read` with a device's handle. Returns `None` if the driver has no handle of it.
pub fn with_device<T>(nvml: &Nvml, id: &GpuId, read: impl FnOnce(&Device<'_>) -> T) -> Option<T> {
    Some(read(&id.open(nvml).ok()?))
}

fn listed(nvml: &Nvml, index: u32) -> ListedGpu {
    let Ok(device) = nvml.device_by_index(index) else { return ListedGpu::default() };
    let is_divided = device.mig_mode().is_ok_and(|mode| mode.current != 0);
    // Some places have no instance.
    let places = if is_divided { device.mig_device_count().unwrap_or(0) } else { 0 };
    let instance = |place| {
        let instance = device.mig_device_by_index(place).ok()?;
        let uuid = instance.uuid().unwrap_or_default();
        Some(ListedInstance { place, uuid, ids: instance_ids(nvml, &instance) })
    };
    let instances = (0..places).filter_map(instance).collect();
    ListedGpu { uuid: device.uuid().unwrap_or_default(), is_divided, instances }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(uuid: &str) -> ListedGpu {
        ListedGpu { uuid: uuid.to_owned(), ..ListedGpu::default() }
    }

    /// Returns two whole devices, one that cannot be read, one that is divided, and one that is divided without
    /// instances.
    fn list() -> GpuList {
        let instance = |place, uuid: &str, gi| ListedInstance { place, uuid: uuid.to_owned(), ids: Some((gi, 0)) };
        let instances = vec![instance(0, "MIG-aa11", 7), instance(2, "MIG-aa22", 9)];
        let divided = ListedGpu { uuid: "GPU-33dd".to_owned(), is_divided: true, instances };
        let empty = ListedGpu { is_divided: true, ..whole("GPU-44ee") };
        GpuList(vec![whole("GPU-11aa"), whole("GPU-11bb"), whole(""), divided, empty])
    }

    fn names(found: Result<Vec<GpuId>, GpuError>) -> Vec<String> {
        found.unwrap_or_default().iter().map(GpuId::cuda_name).collect()
    }

    #[test]
    fn devices_are_selected_by_index_and_by_the_beginning_of_a_uuid() {
        let seen = |variable| names(list().visible(Some(variable)));
        assert_eq!(seen("1,0"), ["1", "0"]);
        assert_eq!(seen("GPU-11b, GPU-11aa"), ["1", "0"]);
        assert_eq!(seen("0,2,1"), ["0", "2", "1"], "one that cannot be read keeps its place");
    }

    #[test]
    fn the_selection_ends_at_the_first_entry_that_names_no_device() {
        let seen = |variable| names(list().visible(Some(variable)));
        assert_eq!(seen("1,-1,0"), ["1"]);
        assert_eq!(seen("0,7,1"), ["0"]);
        for none in ["", "-1", "9", "NoDevFiles", "GPU-11", "GPU-99", "0,0", "MIG-bb", "GPU-", "4", "MIG-aa"] {
            assert!(seen(none).is_empty(), "{none}");
        }
        assert_eq!(list().visible(Some("9")), Err(GpuError::NoneVisible("9".to_owned(), 5)));
    }

    #[test]
    fn an_instance_is_selected_by_its_uuid_by_its_place_and_by_its_device() {
        let seen = |variable| names(list().visible(Some(variable)));
        for first in ["MIG-aa11", "MIG-aa1", "MIG-GPU-33dd/7/0", "3", "GPU-33dd"] {
            assert_eq!(seen(first), ["MIG-aa11"], "{first}");
        }
        assert_eq!(seen("MIG-GPU-33dd/9/0"), ["MIG-aa22"]);
        assert!(seen("MIG-GPU-33dd/8/0").is_empty());
    }

    #[test]
    fn a_process_sees_one_instance_and_nothing_else_and_slots_see_each() {
        let list = list();
        assert_eq!(names(list.visible(None)), ["MIG-aa11"]);
        assert_eq!(names(list.visible(Some("0,MIG-aa22,1"))), ["MIG-aa22"]);
        assert_eq!(names(list.one_per_engine(None, true)), ["0", "1", "2", "MIG-aa11", "MIG-aa22"]);
        assert_eq!(names(list.one_per_engine(Some("MIG-aa22,MIG-aa11"), false)), ["MIG-aa22", "MIG-aa11"]);
        assert_eq!(names(list.one_per_engine(Some("3,0"), true)), ["MIG-aa11", "MIG-aa22", "0"]);
        assert_eq!(names(list.one_per_engine(Some("3,0"), false)), ["MIG-aa11", "0"]);
        assert_eq!(list.all().len(), 6);
    }
}
