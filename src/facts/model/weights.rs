//! The weight files in the directory of `config.json`, and their total size.

use std::path::Path;

use serde_json::Value as Json;

/// Returns the total that the `safetensors` index states, or the sum of the files' sizes; `None` if there are no
/// weights.
pub(super) fn checkpoint_bytes(directory: &Path) -> Option<u64> {
    indexed_bytes(directory).or_else(|| summed_bytes(directory))
}

/// Returns the names of the weight files, in order.
pub(super) fn files(directory: &Path) -> Option<Vec<String>> {
    let names = std::fs::read_dir(directory).ok()?.flatten().filter_map(|file| file.file_name().into_string().ok());
    let mut weights: Vec<_> = names.filter(|name| WEIGHTS.iter().any(|ending| name.ends_with(ending))).collect();
    weights.sort_unstable();
    (!weights.is_empty()).then_some(weights)
}

/// Endings of files that hold weights.
const WEIGHTS: [&str; 3] = [".bin", ".pt", ".safetensors"];

fn indexed_bytes(directory: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(directory.join("model.safetensors.index.json")).ok()?;
    let index: Json = serde_json::from_str(&text).ok()?;
    index.get("metadata")?.get("total_size")?.as_u64().filter(|bytes| *bytes > 0)
}

fn summed_bytes(directory: &Path) -> Option<u64> {
    let files = std::fs::read_dir(directory).ok()?.flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|extension| extension == "safetensors"));
    // Files of the hub's cache are symbolic links.
    let sizes = weights.filter_map(|file| std::fs::metadata(file.path()).ok()).map(|metadata| metadata.len());
    Some(sizes.fold(0, u64::saturating_add)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_believed_before_the_files() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        assert_eq!(checkpoint_bytes(directory.path()), None);
        std::fs::write(at("model-00001-of-00002.safetensors"), [0; 100])?;
        std::fs::write(at("model-00002-of-00002.safetensors"), [0; 50])?;
        assert_eq!(checkpoint_bytes(directory.path()), Some(150));
        assert_eq!(files(directory.path()).map(|names| names.len()), Some(2));
        std::fs::write(at("model.safetensors.index.json"), r#"{"metadata": {"total_size": 142}}"#)?;
        assert_eq!(checkpoint_bytes(directory.path()), Some(142));
        Ok(())
    }
}
