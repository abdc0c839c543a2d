//! `[model]`: the model and its shape.

use std::path::{Path, PathBuf};

use super::EngineJob;
use super::paths::StudyPaths;
use crate::document::{DocumentError, Section};
use crate::facts::{ModelShape, hub_cache, is_gguf};

/// The model of a study.
#[derive(Clone, Debug)]
pub struct ModelJob {
    /// The path or name as the study file spells it.
    pub written: String,
    /// The argument that the engine gets: the path of a directory or a file, or a name.
    pub argument: String,
    /// The directory of `config.json`. Without a shape, the directory of the model; empty if it was not found.
    pub directory: PathBuf,
    pub shape: ModelShape,
    /// The `LoRA` adapter that requests address instead of the model.
    pub adapter: Option<String>,
    /// Whether the shape was read from a `config.json`. If not, only the size of the vocabulary may be known.
    pub has_shape: bool,
}

impl ModelJob {
    pub(super) fn read(section: &Section<'_>, paths: &StudyPaths, engine: &EngineJob) -> Result<Self, DocumentError> {
        let path: String = section.required("path")?;
        let adapter: Option<String> = section.optional("adapter")?;
        if adapter.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(section.error("adapter", "is empty", Some("name an adapter of lora-modules".to_owned())));
        }
        let found = paths.find(&path);
        if let Some(file) = found.as_ref().filter(|file| engine.engine.reads_gguf() && is_gguf(file)) {
            let shape = ModelShape::read(file).map_err(|error| section.error("path", error.to_string(), None))?;
            let directory = file.parent().map(Path::to_owned).unwrap_or_default();
            let argument = file.to_string_lossy().into_owned();
            return Ok(Self { written: path, argument, directory, shape, adapter, has_shape: true });
        }
        if engine.engine.reads_gguf() {
            let hint = "name the model's .gguf file; of a divided model, its first part".to_owned();
            return Err(section.error("path", format!("{path:?} is not a GGUF file"), Some(hint)));
        }
        let has_config = found.as_ref().is_some_and(|found| found.join("config.json").exists());
        if engine.engine.rules().is_none() && !has_config {
            return Ok(Self { adapter, ..Self::without_shape(section, path, found)? });
        }
        let (argument, directory) = if let Some(directory) = found {
            (directory.to_string_lossy().into_owned(), directory)
        } else {
            // Like the engine, prefer the study's variables to those of the tuner's own environment.
            let cache = hub_cache(|name| engine.env.get(name).cloned().or_else(|| std::env::var(name).ok()));
            let Some(directory) = cache.as_deref().and_then(|cache| in_hub_cache(cache, &path)) else {
                let hint = "give a directory that holds config.json, or a hub name whose files are in the local cache \
                            (`hf download NAME`; HF_HOME or HF_HUB_CACHE in [engine.env] name another cache)";
                let cache = cache.map_or_else(String::new, |cache| format!(" {}", cache.display()));
                let problem = format!("{path:?} is neither a directory nor a model in the local hub cache{cache}");
                return Err(section.error("path", problem, Some(hint.to_owned())));
            };
            (path.clone(), directory)
        };
        let shape = ModelShape::read(&directory).map_err(|error| {
            let hint = "name the directory that contains the weights and their config.json";
            section.error("path", error.to_string(), Some(hint.to_owned()))
        })?;
        Ok(Self { written: path, argument, directory, shape, adapter, has_shape: true })
    }

    /// Reads a model for engines that need no shape: a file, a directory or only a name.
    fn without_shape(section: &Section<'_>, path: String, found: Option<PathBuf>) -> Result<Self, DocumentError> {
        let vocab_size: Option<u64> = section.optional("vocab_size")?;
        if vocab_size.is_some_and(|size| size < 2) {
            return Err(section.error("vocab_size", "must be at least 2", None));
        }
        let argument = found.as_ref().map_or_else(|| path.clone(), |found| found.to_string_lossy().into_owned());
        let directory = match found {
            Some(file) if file.is_file() => file.parent().map(Path::to_owned).unwrap_or_default(),
            Some(directory) => directory,
            None => PathBuf::new(),
        };
        let shape = ModelShape { vocab_size, ..ModelShape::from_json(&serde_json::json!({})) };
        Ok(Self { written: path, argument, directory, shape, adapter: None, has_shape: false })
    }
}

/// Finds `org/name` in the cache of `huggingface_hub`: `models--org--name/snapshots/REVISION`.
fn in_hub_cache(cache: &Path, name: &str) -> Option<PathBuf> {
    if name.split('/').count() != 2 || name.starts_with(['/', '.']) {
        return None;
    }
    newest_snapshot(&cache.join(format!("models--{}", name.replace('/', "--"))))
}

/// Returns the revision that `main` refers to, or any other revision that contains a `config.json`.
fn newest_snapshot(model: &Path) -> Option<PathBuf> {
    let snapshots = model.join("snapshots");
    let main = std::fs::read_to_string(model.join("refs/main")).ok();
    let main = main.map(|revision| snapshots.join(revision.trim()));
    let others = std::fs::read_dir(&snapshots).into_iter().flatten().flatten().map(|entry| entry.path());
    main.into_iter().chain(others).find(|directory| directory.join("config.json").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cached_revision_of_main_is_taken() -> std::io::Result<()> {
        let cache = tempfile::tempdir()?;
        for revision in ["aaa", "bbb"] {
            let directory = cache.path().join("snapshots").join(revision);
            std::fs::create_dir_all(&directory)?;
            std::fs::write(directory.join("config.json"), "{}")?;
        }
        std::fs::create_dir_all(cache.path().join("refs"))?;
        std::fs::write(cache.path().join("refs/main"), "bbb\n")?;
        assert_eq!(newest_snapshot(cache.path()), Some(cache.path().join("snapshots/bbb")));
        Ok(())
    }
}
