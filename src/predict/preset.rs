//! Finds the preset of a GPU by the driver's name for it.

use crate::twin::DevicePreset;

/// Words in the driver's name of a GPU, and the preset.
const NAMES: [(&str, &str); 9] = [
    ("A100", "a100"),
    ("H100", "h100"),
    ("H200", "h200"),
    ("B200", "b200"),
    ("L40S", "l40s"),
    ("L4", "l4"),
    ("A10", "a10"),
    ("RTX 4090", "rtx4090"),
    ("RTX PRO 6000", "rtxpro6000"),
];

/// Returns the preset for a description of GPUs such as `8xNVIDIA H100 80GB HBM3`. `None` for kinds without a preset,
/// and for several kinds.
#[must_use]
pub fn preset_of(described: &str) -> Option<&'static DevicePreset> {
    // Several kinds together have no preset. Neither has an instance of a partitioned device (MIG).
    if described.contains(" + ") || described.contains(" MIG ") {
        return None;
    }
    let words: Vec<&str> = described.split([' ', '-']).collect();
    let named = |name: &str| {
        let name: Vec<&str> = name.split(' ').collect();
        words.windows(name.len()).any(|words| words == name)
    };
    let (_, preset) = NAMES.iter().find(|(name, _)| named(name))?;
    DevicePreset::find(preset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_driver_lead_to_a_preset_or_to_none() {
        for (name, preset) in [
            ("1xNVIDIA A100-SXM4-80GB", Some("a100")),
            ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
            ("8xNVIDIA H100 80GB HBM3", Some("h100")),
            ("8xNVIDIA H200", Some("h200")),
            ("2xNVIDIA L40S", Some("l40s")),
            ("1xNVIDIA L4", Some("l4")),
            ("1xNVIDIA A10", Some("a10")),
            ("1xNVIDIA GeForce RTX 4090", Some("rtx4090")),
            ("1xNVIDIA RTX PRO 6000 Blackwell Server Edition", Some("rtxpro6000")),
            ("8xNVIDIA B200", Some("b200")),
            ("1xNVIDIA L40", None),
            ("1xNVIDIA A10G", None),
            ("1xNVIDIA A30", None),
            ("1xNVIDIA L4 + 1xNVIDIA A10", None),
        ] {
            assert_eq!(preset_of(name).map(|preset| preset.name), preset, "{name}");
        }
        assert!(NAMES.iter().all(|(_, preset)| DevicePreset::find(preset).is_some()));
    }
}
