//! The format of vLLM's recipes. Sources: `strategies/*.yaml`, `CONTRIBUTING.md` and `src/lib/command-synthesis.js` of
//! github.com/vllm-project/recipes, August 2026.

use crate::engine::{RecipeFormat, RecipeStrategy};

pub(super) static RECIPES: RecipeFormat = RecipeFormat {
    min_release_key: "min_vllm_version",
    strategy_args_key: "vllm_args",
    strategies: &[
        RecipeStrategy {
            name: "single_node_tp",
            args: &[],
            size_flag: "tensor-parallel-size",
            may_use_fewer: true,
            min_devices: 1,
        },
        RecipeStrategy {
            name: "single_node_tep",
            args: &["--enable-expert-parallel"],
            size_flag: "tensor-parallel-size",
            may_use_fewer: false,
            min_devices: 2,
        },
        RecipeStrategy {
            name: "single_node_dep",
            args: &["--enable-expert-parallel"],
            size_flag: "data-parallel-size",
            may_use_fewer: false,
            min_devices: 2,
        },
    ],
    shared_flags: &[
        "trust-remote-code",
        "tokenizer-mode",
        "config-format",
        "load-format",
        "hf-overrides",
        "generation-config",
        "override-generation-config",
        "chat-template",
        "chat-template-content-format",
        "default-chat-template-kwargs",
        "enable-auto-tool-choice",
        "tool-call-parser",
        "tool-parser-plugin",
        "reasoning-parser",
        "reasoning-parser-plugin",
        "reasoning-config",
        "allowed-local-media-path",
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::vllm::FLAGS;

    #[test]
    fn every_flag_of_the_format_exists_in_a_release() {
        let tables: Vec<_> = FLAGS.releases(None, None).map(|release| FLAGS.for_version(release)).collect();
        let is_known = |name: &str| tables.iter().any(|table| table.find(name).is_some());
        let words = |strategy: &RecipeStrategy| {
            strategy.args.iter().map(|word| word.trim_start_matches("--")).chain([strategy.size_flag]).collect()
        };
        let of_strategies = RECIPES.strategies.iter().flat_map(|strategy| -> Vec<&str> { words(strategy) });
        let unknown: Vec<_> =
            of_strategies.chain(RECIPES.shared_flags.iter().copied()).filter(|n| !is_known(n)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
