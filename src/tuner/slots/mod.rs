//! The slots of concurrent trials. A slot is a device, or a share of the host, with processors of its own. A launch
//! gets one slot for each device that it computes on.

mod interference;
mod pool;

use crate::config::Config;
use crate::document::DocumentError;
use crate::facts::{Core, Device, GpuError, GpuPlace, Processors, divide};
use crate::job::{Job, SlotsJob};

use super::watchdog::computes_elsewhere;
use crate::execution::ExecutionEnvironment;
pub use interference::Interference;
pub(super) use pool::{MemoryLevel, SlotPlace, SlotPool};

/// The slots of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Slots {
    list: Vec<Slot>,
    /// The largest number of concurrent trials.
    parallel: usize,
    /// The largest share of the objective that trials may cost each other.
    max_interference: f64,
    /// Whether the study divides the host into slots.
    divides_host: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Slot {
    /// The device as in `CUDA_VISIBLE_DEVICES`; `None` if slots have no devices of their own.
    device: Option<String>,
    /// Its processors; `None` if slots share all of them.
    processors: Option<Processors>,
}

/// Environment variables of every launch on a slot with a device.
const DEVICES_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
const DEVICE_ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

impl Slots {
    /// Returns one slot with all resources of the host, for one trial at a time.
    fn whole() -> Self {
        Self { list: vec![Slot::default()], parallel: 1, max_interference: 0.0, divides_host: false }
    }

    /// Resolves the slots that a study requests on this host. Adapts `installed`: its devices become interchangeable,
    /// and each concurrent trial gets an equal share of the host's memory.
    ///
    /// # Errors
    /// If the host lacks the requested resources, or if launches could not be kept apart.
    pub fn resolve(job: &Job, installed: &mut ExecutionEnvironment) -> Result<Self, DocumentError> {
        let Some(asked) = &job.slots else { return Ok(Self::whole()) };
        let error = |key: &str, problem: String, hint: &str| DocumentError {
            file: job.file.clone(),
            line: None,
            key: key.to_owned(),
            problem,
            hint: Some(hint.to_owned()),
        };
        let visible = job.engine.environment.get(DEVICES_VARIABLE).map(String::as_str);
        let port = job.engine.engine.port_variable(&Config::new());
        if let Some(name) = port
            .into_iter()
            .chain([DEVICES_VARIABLE])
            .find(|name| job.engine.env.contains_key(*name) && (*name != DEVICES_VARIABLE || asked.devices.is_some()))
        {
            let problem = "concurrent launches would have the same value".to_owned();
            return Err(error(&format!("engine.env.{name}"), problem, "remove it: each slot gets its own value"));
        }
        let on_gpu = matches!(installed.device, Device::Cuda(_)) && job.engine.engine.runs_model();
        let words = &job.engine.command;
        let elsewhere = computes_elsewhere(words);
        let (devices, problems) = devices(asked, on_gpu, elsewhere, visible)
            .map_err(|problem| error("slots.devices", problem, "list one device for each slot, or set slots.count"))?;
        for problem in problems {
            if !installed.gpu_notices.contains(&problem) {
                installed.gpu_notices.push(problem);
            }
        }
        let Some(count) = count(asked, devices.len()) else {
            return Err(error("slots.count", "is missing".to_owned(), "set it to the number of concurrent trials"));
        };
        let parallel = asked.parallel.map_or(count, |parallel| parallel as usize);
        if parallel > count {
            let problem = format!("{parallel} trials at a time do not fit on {count} slots");
            return Err(error("slots.parallel", problem, "reduce it, or declare more slots"));
        }
        let told = |word: &String| word == "{env}" || crate::engine::has_placeholder(word, "devices");
        if !devices.is_empty() && elsewhere && !words.iter().any(told) {
            let problem = format!("does not pass on {DEVICES_VARIABLE}: every launch would compute on the same device");
            let hint = "use {devices} as the wrapper's argument for devices or variables, or {env} for docker";
            return Err(error("engine.command", problem, hint));
        }
        let processors = processors(asked, &devices, count)
            .map_err(|problem| error("slots.processors", problem, "give one list for each slot"))?;
        if let Device::Cuda(gpu) = &mut installed.device
            && !devices.is_empty()
        {
            *gpu = gpu.interchangeable();
            // CUDA gives a process one instance of a divided device.
            let is_divided = devices.iter().any(|device| device.name.starts_with("MIG-"));
            gpu.count = if is_divided { Some(1) } else { u32::try_from(count).ok() };
        }
        installed.host.memory = installed.host.memory.map(|bytes| bytes / u64::try_from(parallel).unwrap_or(1).max(1));
        let mut devices = devices.into_iter().map(|device| device.name);
        let list = processors.into_iter().map(|processors| Slot { device: devices.next(), processors }).collect();
        Ok(Self { list, parallel, max_interference: asked.max_interference, divides_host: true })
    }

    /// Returns the largest number of concurrent trials.
    #[must_use]
    pub fn parallel(&self) -> usize {
        self.parallel
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns the largest share of the objective, from 0 to 1, that trials may cost each other.
    pub(super) fn max_interference(&self) -> f64 {
        self.max_interference
    }

    /// Describes the slots; `None` if trials run one at a time with all resources.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        if !self.divides_host {
            return None;
        }
        let devices: Vec<_> = self.list.iter().filter_map(|slot| slot.device.as_deref()).collect();
        let devices = if devices.is_empty() { String::new() } else { format!(", devices {}", devices.join(",")) };
        let lists: Vec<_> = self.list.iter().filter_map(|slot| Some(slot.processors.as_ref()?.to_string())).collect();
        let processors = if lists.is_empty() {
            ", all on the same processors".to_owned()
        } else {
            format!(", processors {}", lists.join(" | "))
        };
        let (count, parallel) = (self.list.len(), self.parallel);
        let trials = if parallel == 1 { "1 trial".to_owned() } else { format!("{parallel} trials") };
        Some(format!("{trials} at a time on {count} slots{devices}{processors}"))
    }
}

/// Returns the number of slots: that of their devices, else the declared count, else that of their processor lists,
/// else that of concurrent trials.
fn count(asked: &SlotsJob, devices: usize) -> Option<usize> {
    let of_devices = (devices > 0).then_some(devices);
    let declared = of_devices.or(asked.count.map(|count| count as usize));
    let of_lists = declared.or(asked.processors.as_ref().map(Vec::len));
    of_lists.or(asked.parallel.map(|parallel| parallel as usize))
}

/// Returns one device for each slot, and a notice for each device that cannot be read. The first list is empty if slots
/// have no devices of their own.
fn devices(
    asked: &SlotsJob,
    on_gpu: bool,
    elsewhere: bool,
    visible: Option<&str>,
) -> Result<(Vec<GpuPlace>, Vec<String>), String> {
    match &asked.devices {
        Some(names) => {
            let found = if on_gpu { GpuPlace::named(&names.join(",")) } else { Ok(Vec::new()) };
            if on_gpu
                && !elsewhere
                && let Some(problem) = absent(names, &found)
            {
                return Err(problem);
            }
            let known = found.unwrap_or_default();
            let node = |index: usize| known.get(index).filter(|_| known.len() == names.len())?.node;
            let named = names.iter().enumerate();
            let places = named.map(|(index, name)| GpuPlace { name: name.clone(), node: node(index) }).collect();
            Ok((places, Vec::new()))
        }
        None if on_gpu => {
            let found = GpuPlace::all(visible).map_err(|error| format!("cannot be read from the driver: {error}"))?;
            let (mut places, problems) = found;
            let count = asked.count.map_or(places.len(), |count| count as usize);
            if count > places.len() {
                return Err(format!("{} devices are too few for {count} slots", places.len()));
            }
            places.truncate(count);
            Ok((places, problems))
        }
        None => Ok((Vec::new(), Vec::new())),
    }
}

/// Returns the reason why these names are not distinct devices of this host, if the driver reports it. The driver does
/// not list parts of a device (`MIG-...`).
fn absent(names: &[String], found: &Result<Vec<GpuPlace>, GpuError>) -> Option<String> {
    if names.iter().any(|name| name.starts_with("MIG-")) {
        return None;
    }
    match found {
        // The list ends at the first name that is no device.
        Ok(found) => names.get(found.len()).map(|name| format!("{name:?} is not a device of this host")),
        Err(GpuError::NoneVisible(_, count)) => {
            Some(format!("{names:?} are not distinct devices of this host, which has {count}"))
        }
        Err(_) => None,
    }
}

/// Returns the processors of each slot; `None` if the slots share all of them.
fn processors(asked: &SlotsJob, devices: &[GpuPlace], count: usize) -> Result<Vec<Option<Processors>>, String> {
    let allowed = Processors::allowed();
    let Some(lists) = &asked.processors else {
        let nodes: Vec<_> = (0..count).map(|slot| devices.get(slot)?.node).collect();
        let divided = if count > 1 { divide(&Core::all(), &nodes) } else { None };
        return Ok(divided.map_or_else(|| vec![None; count], |lists| lists.into_iter().map(Some).collect()));
    };
    if lists.len() != count {
        return Err(format!("has {} lists for {count} slots", lists.len()));
    }
    match lists.iter().find(|list| list.common(&allowed) != **list) {
        Some(list) => Err(format!("{list} contains processors that this process may not use; allowed are {allowed}")),
        None => Ok(lists.iter().cloned().map(Some).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_repeated_device_names_are_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let places = |count: usize| {
            Ok((0..count).map(|device| GpuPlace { name: device.to_string(), node: None }).collect::<Vec<_>>())
        };
        assert_eq!(absent(&names(&["0", "1"]), &places(2)), None);
        let problem = absent(&names(&["0", "9", "1"]), &places(1)).unwrap();
        assert_eq!(problem, "\"9\" is not a device of this host");
        let twice = Err(GpuError::NoneVisible("0,GPU-11aa".to_owned(), 8));
        let problem = absent(&names(&["0", "GPU-11aa"]), &twice).unwrap();
        assert!(problem.contains("are not distinct devices of this host, which has 8"), "{problem}");
        assert_eq!(absent(&names(&["0", "MIG-11aa"]), &places(1)), None);
        assert_eq!(absent(&names(&["0"]), &Err(GpuError::NoDevice)), None, "nobody can tell");
    }

    #[test]
    fn the_processor_lists_and_not_the_concurrent_trials_decide_the_number_of_slots() {
        let lists = Some(["0", "1", "2", "3"].map(|list| list.parse().unwrap()).to_vec());
        let asked = SlotsJob { processors: lists, parallel: Some(2), ..SlotsJob::default() };
        assert_eq!(count(&asked, 0), Some(4));
        assert_eq!(count(&SlotsJob { parallel: Some(2), ..SlotsJob::default() }, 0), Some(2));
        assert_eq!(count(&SlotsJob { count: Some(3), parallel: Some(2), ..SlotsJob::default() }, 0), Some(3));
        assert_eq!(count(&asked, 8), Some(8));
        assert_eq!(count(&SlotsJob::default(), 0), None);
    }
}
