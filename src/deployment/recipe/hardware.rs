//! The keys under which recipes list hardware: a profile such as `h100`, a generation, and a brand.

use std::collections::BTreeMap;

use crate::facts::Device;

/// Values by a key of hardware.
pub(super) type ByHardware<T> = BTreeMap<String, T>;

/// The key that applies to all hardware.
pub(super) const ANY: &str = "default";

const NVIDIA: &str = "nvidia";
const AMD: &str = "amd";

/// Words in the driver's name of a GPU, its generation, and its profiles by the number of GPUs. 0 stands for any
/// number. Profiles of workstations are for an exact number.
type KnownGpu = (&'static str, &'static str, &'static [(u32, &'static str)]);

/// Source: `taxonomy.yaml` of github.com/vllm-project/recipes.
const GPUS: [KnownGpu; 19] = [
    ("H100", "hopper", &[(0, "h100")]),
    ("H200", "hopper", &[(0, "h200")]),
    ("H20", "hopper", &[(0, "h20")]),
    ("GH200", "hopper", &[]),
    ("B200", "blackwell", &[(0, "b200")]),
    ("B300", "blackwell", &[(0, "b300")]),
    ("GB200", "blackwell", &[(0, "gb200")]),
    ("GB300", "blackwell", &[(1, "dgx_station_gb300"), (0, "gb300")]),
    ("GB10", "blackwell", &[(0, "dgx_spark_gb10")]),
    ("RTX PRO 6000", "blackwell", &[(1, "rtx_pro_6000"), (2, "rtx_pro_6000_2x"), (8, "rtx_pro_6000_8x")]),
    ("RTX PRO 5000", "blackwell", &[(1, "rtx_pro_5000"), (4, "rtx_pro_5000_4x")]),
    ("RTX 5090", "blackwell", &[(1, "rtx_5090"), (2, "rtx_5090_2x")]),
    ("RTX 4090", "ada", &[(2, "rtx_4090_2x")]),
    ("A100", "ampere", &[(0, "a100")]),
    ("L40S", "ada", &[]),
    ("MI300X", AMD, &[(0, "mi300x")]),
    ("MI325X", AMD, &[(0, "mi325x")]),
    ("MI350X", AMD, &[(0, "mi350x")]),
    ("MI355X", AMD, &[(0, "mi355x")]),
];

/// The keys of one machine's hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HardwareKeys {
    profile: Option<&'static str>,
    generation: Option<&'static str>,
    brand: Option<&'static str>,
}

impl HardwareKeys {
    /// Finds the keys by the driver's name of the first GPU, or else by its compute capability.
    pub(super) fn of(device: Device, name: Option<&str>) -> Self {
        let Device::Cuda(gpu) = device else {
            return Self { generation: Some("cpu"), ..Self::default() };
        };
        let words: Vec<&str> = name.unwrap_or_default().split([' ', '-']).collect();
        let is_named = |wanted: &str| {
            let wanted: Vec<&str> = wanted.split(' ').collect();
            words.windows(wanted.len()).any(|found| found == wanted)
        };
        let known = GPUS.iter().find(|(name, ..)| is_named(name));
        let by_capability = match gpu.capability {
            Some((9, _)) => Some("hopper"),
            Some((10..=12, _)) => Some("blackwell"),
            Some((8, 9)) => Some("ada"),
            Some((8, _)) => Some("ampere"),
            _ => None,
        };
        let generation = known.map(|(_, generation, _)| *generation).or(by_capability);
        let is_known = name.is_some() || gpu.capability.is_some();
        let brand = if generation == Some(AMD) { AMD } else { NVIDIA };
        // An instance of a partitioned device (MIG) has neither its memory nor its speed.
        let profile = known.filter(|_| !is_named("MIG")).and_then(|(.., profiles)| {
            let count = gpu.count.unwrap_or(1);
            profiles.iter().find(|(number, _)| *number == 0 || *number == count).map(|(_, profile)| *profile)
        });
        Self { profile, generation, brand: is_known.then_some(brand) }
    }

    /// Returns the value of the profile.
    pub(super) fn exact<'m, T>(&self, map: &'m ByHardware<T>) -> Option<&'m T> {
        map.get(self.profile?)
    }

    /// Returns the value of the generation, or else that of the brand.
    pub(super) fn family<'m, T>(&self, map: &'m ByHardware<T>) -> Option<&'m T> {
        self.generation.and_then(|key| map.get(key)).or_else(|| map.get(self.brand?))
    }

    /// Returns the value of the most specific key.
    pub(super) fn nearest<'m, T>(&self, map: &'m ByHardware<T>) -> Option<&'m T> {
        self.exact(map).or_else(|| self.family(map)).or_else(|| map.get(ANY))
    }

    /// Returns whether this is the profile.
    pub(super) fn has_profile(&self, profile: &str) -> bool {
        self.profile == Some(profile)
    }

    /// Returns whether the hardware has this brand and generation. `None` allows any.
    pub(super) fn is_of(&self, brand: Option<&str>, generation: Option<&str>) -> bool {
        let is = |wanted: Option<&str>, own: Option<&str>| {
            wanted.is_none_or(|wanted| own.is_some_and(|own| own.eq_ignore_ascii_case(wanted)))
        };
        is(brand, self.brand) && is(generation, self.generation)
    }

    /// Returns the most specific key, for people.
    pub(super) fn label(&self) -> &'static str {
        self.profile.or(self.generation).unwrap_or("unknown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Gpu;

    #[test]
    fn names_and_capabilities_lead_to_the_keys_of_recipes() {
        let keys = |name, count, capability| {
            let gpu = Gpu { count: Some(count), capability, ..Gpu::default() };
            let HardwareKeys { profile, generation, brand } = HardwareKeys::of(Device::Cuda(gpu), name);
            (profile, generation, brand)
        };
        for (name, count, profile, generation) in [
            ("NVIDIA H100 80GB HBM3", 8, Some("h100"), "hopper"),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1, None, "hopper"),
            ("NVIDIA GH200 480GB", 1, None, "hopper"),
            ("NVIDIA GB300", 4, Some("gb300"), "blackwell"),
            ("NVIDIA GB300", 1, Some("dgx_station_gb300"), "blackwell"),
            ("NVIDIA GeForce RTX 4090", 1, None, "ada"),
            ("NVIDIA GeForce RTX 4090", 2, Some("rtx_4090_2x"), "ada"),
            ("NVIDIA A100-SXM4-80GB", 1, Some("a100"), "ampere"),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 8, Some("rtx_pro_6000_8x"), "blackwell"),
        ] {
            assert_eq!(keys(Some(name), count, None), (profile, Some(generation), Some("nvidia")), "{count} x {name}");
        }
        assert_eq!(keys(Some("AMD Instinct MI300X"), 8, None), (Some("mi300x"), Some("amd"), Some("amd")));
        assert_eq!(keys(None, 1, Some((12, 0))), (None, Some("blackwell"), Some("nvidia")));
        assert_eq!(keys(None, 1, None), (None, None, None));
        assert_eq!(HardwareKeys::of(Device::Cpu, None).label(), "cpu");
    }

    #[test]
    fn the_most_specific_key_wins() {
        let hardware = HardwareKeys::of(Device::gpu_of(1), Some("NVIDIA H100 80GB HBM3"));
        let map = |keys: &[&str]| -> ByHardware<String> { keys.iter().map(|k| ((*k).into(), (*k).into())).collect() };
        for (keys, expected) in [
            (&["h100", "hopper", "nvidia", "default"][..], Some("h100")),
            (&["hopper", "nvidia", "default"], Some("hopper")),
            (&["nvidia", "default"], Some("nvidia")),
            (&["h200", "blackwell", "amd"], None),
        ] {
            assert_eq!(hardware.nearest(&map(keys)).map(String::as_str), expected);
        }
        assert!(hardware.is_of(Some("NVIDIA"), Some("hopper")) && !hardware.is_of(None, Some("blackwell")));
    }
}
