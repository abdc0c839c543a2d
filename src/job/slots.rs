//! `[slots]`: the number of parallel trials and the share of the host that each of them gets.

use serde_json::{Value as Json, json};

use crate::document::{DocumentError, Section};
use crate::facts::Processors;

/// The slots that the study and the command line request. Fields that are `None` are derived from the host.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotsJob {
    /// The declared number of slots. `None` if their devices or the host determine it.
    pub count: Option<u32>,
    /// One device for each slot, named as in `CUDA_VISIBLE_DEVICES`.
    pub devices: Option<Vec<String>>,
    /// The processors of each slot. No two slots share one.
    pub processors: Option<Vec<Processors>>,
    /// The number of trials at a time, at most that of slots. Only the command line sets it.
    pub parallel: Option<u32>,
    /// The largest share of the objective that parallel trials may cost each other. Above it, trials run one at a time.
    pub max_interference: f64,
}

impl Default for SlotsJob {
    fn default() -> Self {
        Self { count: None, devices: None, processors: None, parallel: None, max_interference: 0.1 }
    }
}

impl SlotsJob {
    pub(super) fn read(section: &Section<'_>) -> Result<Self, DocumentError> {
        let count: Option<u32> = section.optional("count")?;
        let devices: Option<Vec<String>> = section.optional("devices")?;
        let processors: Option<Vec<String>> = section.optional("processors")?;
        let max_interference = section.optional_or("max_interference", Self::default().max_interference)?;
        if count == Some(0) {
            return Err(section.error("count", "must be at least 1", None));
        }
        if !(0.0..=1.0).contains(&max_interference) {
            let problem = format!("must be a share from 0 to 1, and is {max_interference}");
            return Err(section.error("max_interference", problem, None));
        }
        if let Some(devices) = &devices {
            let wrong = |name: &&String| name.trim().is_empty() || name.contains([',', ' ']);
            if devices.is_empty() || devices.iter().any(|name| wrong(&name)) {
                let hint = "name one device for each slot, for instance [\"0\", \"1\"]".to_owned();
                return Err(section.error("devices", format!("{devices:?} is not a list of devices"), Some(hint)));
            }
            if let Some(twice) = twice(devices) {
                return Err(section.error("devices", format!("{twice:?} is listed twice"), None));
            }
            if count.is_some() {
                let hint = "remove it: each device is a slot".to_owned();
                return Err(section.error("count", "cannot be combined with slots.devices", Some(hint)));
            }
        }
        let processors = processors.map(|lists| read_processors(section, &lists)).transpose()?;
        let slots = devices.as_ref().map_or(count, |devices| u32::try_from(devices.len()).ok());
        if let (Some(processors), Some(slots)) = (&processors, slots)
            && processors.len() != slots as usize
        {
            let problem = format!("has {} lists for {slots} slots", processors.len());
            return Err(section.error("processors", problem, None));
        }
        Ok(Self { count, devices, processors, parallel: None, max_interference })
    }

    /// Returns the part that decides the meaning of a measurement.
    pub(super) fn definition(&self) -> Json {
        let mut object = json!({});
        let count = self.devices.as_ref().map(Vec::len).or(self.count.map(|count| count as usize));
        if let Some(count) = count {
            object["count"] = json!(count);
        }
        if let Some(processors) = &self.processors {
            object["processors"] = json!(processors.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
        if let Some(parallel) = self.parallel {
            object["parallel"] = json!(parallel);
        }
        object
    }
}

fn read_processors(section: &Section<'_>, lists: &[String]) -> Result<Vec<Processors>, DocumentError> {
    let read = |list: &String| {
        let hint = || Some("give one list for each slot, for instance [\"0-7\", \"8-15\"]".to_owned());
        list.parse::<Processors>().map_err(|error| section.error("processors", error.to_string(), hint()))
    };
    let lists = lists.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    for (index, list) in lists.iter().enumerate() {
        let mut others = lists[..index].iter().map(|other| other.common(list));
        if let Some(common) = others.find(|common| !common.is_empty()) {
            return Err(section.error("processors", format!("{common} would belong to two slots"), None));
        }
    }
    Ok(lists)
}

fn twice(names: &[String]) -> Option<&String> {
    names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Document;

    fn read(text: &str) -> Result<SlotsJob, String> {
        let document = Document::from_text("a.toml", text);
        document.parse(SlotsJob::read).map_err(|error| format!("{}: {}", error.key, error.problem))
    }

    #[test]
    fn slots_are_counted_or_named() {
        let slots = read("devices = [\"0\", \"GPU-11aa\"]\nprocessors = [\"0-3\", \"4-7\"]").unwrap();
        assert_eq!(slots.definition(), json!({"count": 2, "processors": ["0-3", "4-7"]}));
        assert_eq!(read("count = 8").unwrap().definition(), json!({"count": 8}));
        assert_eq!(read("").unwrap(), SlotsJob::default());
    }

    #[test]
    fn conflicting_slots_are_refused() {
        for (text, problem) in [
            ("count = 0", "count: must be at least 1"),
            ("count = 2\ndevices = [\"0\"]", "count: cannot be combined with slots.devices"),
            ("devices = [\"0\", \"1\", \"0\"]", "devices: \"0\" is listed twice"),
            ("devices = [\"0,1\"]", "devices: [\"0,1\"] is not a list of devices"),
            ("devices = []", "devices: [] is not a list of devices"),
            ("processors = [\"0-3\", \"2-5\"]", "processors: 2-3 would belong to two slots"),
            ("processors = [\"a\"]", "processors: \"a\" is not a list of processors such as \"0-3,8\""),
            ("count = 2\nprocessors = [\"0\"]", "processors: has 1 lists for 2 slots"),
            ("max_interference = 1.5", "max_interference: must be a share from 0 to 1, and is 1.5"),
        ] {
            assert_eq!(read(text).unwrap_err(), problem, "{text}");
        }
    }
}
