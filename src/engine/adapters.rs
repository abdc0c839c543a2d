//! The `LoRA` adapters that a server loads at its start.

use serde_json::Value as Json;

/// The flag with the adapters, as vLLM spells it (`vllm/entrypoints/openai/cli_args.py`).
pub const ADAPTERS_FLAG: &str = "lora-modules";

/// Returns the names in the value of [`ADAPTERS_FLAG`]: a list of words `NAME=PATH`, or of JSON objects without blanks.
#[must_use]
pub fn adapter_names(modules: &str) -> Vec<String> {
    let name = |module: &str| match serde_json::from_str::<Json>(module) {
        Ok(json) => json.get("name")?.as_str().map(str::to_owned),
        Err(_) => module.split_once('=').map(|(name, _)| name.to_owned()),
    };
    modules.split_whitespace().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_the_names_of_both_spellings() {
        let modules = r#"sql=/adapters/sql {"name":"chat","path":"org/chat"} 7"#;
        assert_eq!(adapter_names(modules), ["sql", "chat"]);
    }
}
