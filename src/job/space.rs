//! `[space]`: the search space of the study, from a file, from the study itself, or from both.

use std::collections::BTreeSet;
use std::path::Path;

use super::EngineJob;
use super::paths::StudyPaths;
use crate::config::Config;
use crate::document::{Document, DocumentError, Section, nearest};
use crate::engine::LAUNCH_FLAGS;
use crate::facts::{EngineVersion, ModelShape};
use crate::space::{Space, SpaceFile, built_in, built_in_for, built_in_paths, read_parameters};
use crate::trial::is_secret;

#[derive(Clone, Debug)]
pub struct SpaceJob {
    pub space: Space,
    /// The file's name and its range of releases, if the space comes from a file.
    pub file: Option<(String, Option<EngineVersion>, Option<EngineVersion>)>,
}

impl SpaceJob {
    pub(super) fn read(
        section: &Section<'_>,
        paths: &StudyPaths,
        engine: &EngineJob,
        model: &ModelShape,
    ) -> Result<Self, DocumentError> {
        let file: Option<String> = section.optional("file")?;
        let base = file.as_deref().map(|name| read_file(section, name, paths, engine, model)).transpose()?;
        let mut space = base.as_ref().map(|file| file.space.clone()).unwrap_or_default();
        let file = file.zip(base).map(|(name, base)| (name, base.first_version, base.last_version));

        let fixed: Config = section.optional("fixed")?.unwrap_or_default();
        space.fixed = space.fixed.merged(&fixed);
        let mut known = space.fixed.clone();
        for parameter in &space.parameters {
            // A condition of the study may name a parameter of the file; its value does not matter here.
            known.set(parameter.name.clone(), true);
        }
        let own = section.optional_section("parameters", |table| read_parameters(table, &known, model))?;
        for parameter in own.unwrap_or_default() {
            match space.parameters.iter_mut().find(|existing| existing.name == parameter.name) {
                Some(existing) => *existing = parameter,
                None => space.parameters.push(parameter),
            }
        }
        if let Some(names) = section.optional::<Vec<String>>("only")? {
            let parameters = || space.parameters.iter().map(|parameter| parameter.name.as_str());
            if let Some(unknown) = names.iter().find(|name| !parameters().any(|known| known == *name)) {
                let hint = nearest(unknown, parameters()).map(|near| format!("did you mean `{near}`?"));
                return Err(section.error("only", format!("{unknown:?} is not a parameter of the space"), hint));
            }
            space = space.retain_only(&names.into_iter().collect::<BTreeSet<_>>());
        }
        space.parameters.retain(|parameter| space.fixed.get(&parameter.name).is_none());
        if let Some((child, parent)) = space.orphan() {
            let hint = format!("fix `{parent}`, or add it as a parameter above `{child}`");
            let problem =
                format!("`{child}` would never be set: it depends on `{parent}`, which is neither fixed nor above it");
            return Err(section.error("only", problem, Some(hint)));
        }
        let names = space.parameters.iter().map(|parameter| parameter.name.as_str());
        if let Some(name) = names.chain(fixed.iter().map(|(name, _)| name)).find(|name| LAUNCH_FLAGS.contains(name))
            && engine.engine.rules().is_some()
        {
            return Err(section.error("fixed", format!("`{name}` is chosen by setpoint for every launch"), None));
        }
        if let Some((name, _)) = space.fixed.iter().find(|(name, _)| is_secret(name)) {
            let hint = "set it in [engine.env] or in the tuner's own environment".to_owned();
            let problem = format!("`{name}` would be stored, and visible to every user of this machine");
            return Err(section.error("fixed", problem, Some(hint)));
        }
        Ok(Self { space, file })
    }

    /// Returns the built-in space for this release that corresponds to the named one.
    pub(super) fn built_in_for(&self, version: EngineVersion) -> Option<&'static str> {
        self.file.as_ref().and_then(|(name, ..)| built_in_for(name, version))
    }

    /// Returns an explanation if the file's space does not suit the release.
    pub(super) fn mismatch(&self, product: &str, version: EngineVersion) -> Option<String> {
        let (name, first, last) = self.file.as_ref()?;
        match (first, last) {
            (Some(first), _) if version < *first => {
                Some(format!("{name} is for {product} from {first} on; this is {version}"))
            }
            (_, Some(last)) if version > *last => {
                Some(format!("{name} is for {product} up to {last}; this is {version}"))
            }
            _ => None,
        }
    }
}

fn read_file(
    section: &Section<'_>,
    name: &str,
    paths: &StudyPaths,
    engine: &EngineJob,
    model: &ModelShape,
) -> Result<SpaceFile, DocumentError> {
    let document = match (paths.find(name), built_in(Path::new(name))) {
        (Some(path), _) => Document::read(&path)?,
        (None, Some(text)) => Document::from_text(name, text),
        (None, None) => {
            let near = nearest(name, built_in_paths()).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
            let hint = format!(
                "{near}`setpoint spaces` lists the built-in files; paths are relative to the study file or the working \
                 directory"
            );
            return Err(section.error("file", format!("{name} does not exist"), Some(hint)));
        }
    };
    let file = document.parse(|root| SpaceFile::read(root, model))?;
    let kind = engine.engine.kind();
    if !engine.engine.takes_space_of(&file.engine) {
        return Err(section.error("file", format!("{name} is for engine {:?}, not {kind:?}", file.engine), None));
    }
    Ok(file)
}
