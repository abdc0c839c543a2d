//! Adapters for low-rank adaptation (`LoRAConfig` in vLLM).

use super::{Candidate, ReleaseRange, Rule, Severity, Violation};
use crate::facts::EngineVersion;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "R19b",
        condition: "max-loras is at least 1, and max-cpu-loras at least max-loras",
        releases: ReleaseRange::starting_at(EngineVersion::V0_12),
        severity: Severity::Configuration,
        check: counts,
    },
    Rule {
        id: "R19c",
        condition: "LoRA adapters for modalities need a multimodal model",
        releases: ReleaseRange::starting_at(EngineVersion::V0_32),
        severity: Severity::Configuration,
        check: modalities,
    },
];

fn counts(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.is_on("enable-lora") {
        return None;
    }
    for name in ["max-loras", "max-lora-cls-labels"] {
        if let Some(count) = candidate.number(name).filter(|count| *count < 1) {
            let field = name.replace('-', "_");
            let message = format!("{field}: Input should be greater than or equal to 1, input_value={count}");
            return Some(Violation::new(message).unset(name));
        }
    }
    let most = candidate.number_or("max-loras", 1);
    let host = candidate.number("max-cpu-loras").filter(|count| *count > 0)?;
    (host < most).then(|| {
        Violation::new(format!("max_cpu_loras ({host}) must be >= max_loras ({most}).")).set("max-cpu-loras", most)
    })
}

fn modalities(candidate: &Candidate<'_>) -> Option<Violation> {
    let given = candidate.fields("default-mm-loras").is_some_and(|loras| !loras.is_empty());
    (given && !candidate.facts.model.multimodal).then(|| {
        let message = "Default modality-specific LoRA(s) were provided for a non multimodal model";
        Violation::new(message).unset("default-mm-loras")
    })
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::on_cpu;

    #[test]
    fn the_host_keeps_what_a_batch_uses() {
        assert_eq!(on_cpu("--enable-lora --max-loras 4 --max-cpu-loras 2"), Some("R19b"));
        assert_eq!(on_cpu("--enable-lora --max-loras 4 --max-cpu-loras 0"), None);
        assert_eq!(on_cpu("--max-loras 4 --max-cpu-loras 2"), None);
        assert_eq!(on_cpu("--enable-lora --max-loras 0"), Some("R19b"));
        assert_eq!(on_cpu("--max-loras 0"), None);
        assert_eq!(on_cpu(r#"--default-mm-loras {"image":"x"}"#), Some("R19c"));
    }
}
