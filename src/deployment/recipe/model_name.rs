//! Comparison of a study's model with the checkpoints of a recipe.

/// Returns whether both name the same checkpoint: their last parts are equal, without regard to case. A study's model
/// may be a name of the hub, a directory, or a directory of the hub's cache.
pub(super) fn is_same_checkpoint(model: &str, checkpoint: &str) -> bool {
    checkpoint_name(model).eq_ignore_ascii_case(checkpoint_name(checkpoint))
}

/// Returns the last part of a name. A snapshot in the hub's cache has its name in the directory `models--ORG--NAME`.
fn checkpoint_name(model: &str) -> &str {
    let mut parts = model.rsplit('/').filter(|part| !part.is_empty());
    let cached = model.split('/').rev().find_map(|part| part.strip_prefix("models--")?.rsplit("--").next());
    cached.or_else(|| parts.next()).unwrap_or(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_recognised_by_its_last_part() {
        for (model, is_same) in [
            ("Qwen/Qwen3-8B", true),
            ("examples/models/qwen3-8b/", true),
            ("/hub/models--Qwen--Qwen3-8B/snapshots/0f1e", true),
            ("Qwen/Qwen3-8B-FP8", false),
            ("/data/Qwen/Qwen3-8B/final", false),
            ("", false),
        ] {
            assert_eq!(is_same_checkpoint(model, "Qwen/Qwen3-8B"), is_same, "{model}");
        }
    }
}
