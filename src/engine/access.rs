//! Removal of API keys from an engine's command line, where every user of the machine could read them.

/// Removes `--api-key KEY...` and `--api-key=KEY` from the arguments of a command, and returns the keys. One flag may
/// have several keys. An underscore in the flag's name counts as a hyphen.
pub fn take_api_keys(words: &mut Vec<String>) -> Vec<String> {
    let mut keys = Vec::new();
    let mut is_key = false;
    words.retain(|word| {
        let name = word.split('=').next().unwrap_or(word).replace('_', "-");
        if name == "--api-key" {
            keys.extend(word.split_once('=').map(|(_, key)| key.to_owned()));
            is_key = !word.contains('=');
            return false;
        }
        is_key &= !word.starts_with('-');
        if is_key {
            keys.push(word.clone());
        }
        !is_key
    });
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_out_of_a_command_however_they_are_spelt() {
        for (line, keys, rest) in [
            ("vllm serve --api-key a --enforce-eager", vec!["a"], "vllm serve --enforce-eager"),
            ("vllm serve --api-key=a b", vec!["a"], "vllm serve b"),
            ("vllm serve --api_key a b --seed 1", vec!["a", "b"], "vllm serve --seed 1"),
            ("vllm serve --api-key", vec![], "vllm serve"),
            ("vllm serve --api-keys a", vec![], "vllm serve --api-keys a"),
        ] {
            let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(take_api_keys(&mut words), keys, "{line}");
            assert_eq!(words.join(" "), rest);
        }
    }
}
