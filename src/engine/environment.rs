//! Environment variables that affect an engine.
//!
//! By default an engine process inherits all of the tuner's environment. This module selects the variables that engines
//! read.

use std::collections::BTreeMap;

/// Name prefixes of variables that any engine may read, through libraries such as CUDA, NCCL or `PyTorch`.
const PREFIXES: [&str; 16] = [
    "CUDA_",
    "HF_",
    "HIP_",
    "LD_PRELOAD",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "PYTORCH_",
    "RANK",
    "RAY_",
    "ROCR_",
    "TORCH",
    "TRANSFORMERS_",
    "TRITON_",
    "XLA_",
];

/// Returns the variables that affect an engine: the inherited ones with a known prefix, and `own` from the study file.
/// A variable in `own` overrides the inherited one. `prefixes` adds the name prefixes of specific engines
/// (`engines::variable_prefixes`), such as `VLLM_`. The result may contain secrets, which callers must redact before
/// they store or display it.
#[must_use]
pub fn environment(own: &BTreeMap<String, String>, prefixes: &[&str]) -> BTreeMap<String, String> {
    let inherited = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
    overlay_variables(inherited, own, prefixes)
}

fn overlay_variables(
    inherited: impl Iterator<Item = (String, String)>,
    own: &BTreeMap<String, String>,
    prefixes: &[&str],
) -> BTreeMap<String, String> {
    let is_heeded = |name: &str| PREFIXES.iter().chain(prefixes).any(|prefix| name.starts_with(prefix));
    let heeded = inherited.filter(|(name, _)| is_heeded(name));
    let mut environment: BTreeMap<_, _> = heeded.collect();
    environment.extend(own.clone());
    environment
}

/// Returns whether this is a valid name of a shell variable.
#[must_use]
pub fn is_variable(name: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && name.chars().all(word) && !name.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn own_variables_stand_over_inherited_ones_that_engines_heed() {
        let inherited = variables(&[("VLLM_USE_V1", "0"), ("CUDA_VISIBLE_DEVICES", "1"), ("EDITOR", "vi")]);
        let own = variables(&[("VLLM_USE_V1", "1"), ("MINE", "2")]);
        let expected = variables(&[("VLLM_USE_V1", "1"), ("CUDA_VISIBLE_DEVICES", "1"), ("MINE", "2")]);
        assert_eq!(overlay_variables(inherited.into_iter(), &own, &["VLLM_"]), expected);
    }

    #[test]
    fn names_are_those_of_a_shell() {
        let names = ["VLLM_USE_V1", "_a1", "", "1A", "A-B", "A B", "Ä"];
        assert_eq!(names.map(is_variable), [true, true, false, false, false, false, false]);
    }
}
