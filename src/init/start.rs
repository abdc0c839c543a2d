//! Further first points of a study, each with its source.

use super::InitError;
use crate::config::Config;
use crate::deployment::{Recipe, RecipePoint, RecipeTarget};
use crate::engine::Engine;
use crate::execution::ExecutionEnvironment;
use crate::facts::EngineVersion;
use crate::job::{FirstPoint, is_connection_flag};
use crate::trial::is_secret;

/// The source of further first points.
#[derive(Clone, Debug)]
pub(crate) enum StartSource {
    /// The configurations that a recipe recommends for the devices of this machine.
    Recipe(Box<Recipe>),
    /// The best configuration of an earlier study in the database.
    Study { name: String, trial: u32, config: Config },
}

/// The first points of a source, and notes about flags that are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SourcePoints {
    pub points: Vec<FirstPoint>,
    pub notes: Vec<String>,
}

impl StartSource {
    /// Returns the name of the study that informs the sampler as well.
    pub(super) fn prior(&self) -> Option<&str> {
        match self {
            Self::Recipe(_) => None,
            Self::Study { name, .. } => Some(name),
        }
    }

    /// Returns the first points that this release can launch with the fixed flags of a study.
    ///
    /// # Errors
    /// If a recipe is for another model.
    pub(super) fn points(
        &self,
        engine: &dyn Engine,
        installed: &ExecutionEnvironment,
        model: &str,
        fixed: &Config,
    ) -> Result<SourcePoints, InitError> {
        match self {
            Self::Recipe(recipe) => recipe_points(recipe, engine, installed, model, fixed),
            Self::Study { name, trial, config } => {
                let source = format!("study {name}, trial {trial}");
                Ok(study_point(source, config, engine, installed.version, fixed))
            }
        }
    }

    /// Returns the text that identifies the source.
    pub(super) fn identity(&self) -> String {
        match self {
            Self::Recipe(recipe) => format!("recipe {}", recipe.file),
            Self::Study { name, trial, .. } => format!("study {name} {trial}"),
        }
    }
}

fn recipe_points(
    recipe: &Recipe,
    engine: &dyn Engine,
    installed: &ExecutionEnvironment,
    model: &str,
    fixed: &Config,
) -> Result<SourcePoints, InitError> {
    let Some(table) = engine.flag_table(installed.version) else {
        let problem = format!("{} has no known flags, so --start cannot read a recipe", engine.kind());
        return Err(InitError::new(problem, "write the flags into [[start]] of the study file"));
    };
    let gpu_name = installed.gpu_name.as_deref();
    let target = RecipeTarget { model, version: installed.version, device: installed.device, gpu_name, study: fixed };
    let found = recipe.first_points(&target, table)?;
    let point = |RecipePoint { source, flags }| FirstPoint::start(source, flags);
    Ok(SourcePoints { points: found.points.into_iter().map(point).collect(), notes: found.notes })
}

fn study_point(
    source: String,
    config: &Config,
    engine: &dyn Engine,
    version: EngineVersion,
    fixed: &Config,
) -> SourcePoints {
    let (config, left_out) = launchable(config, engine, version, fixed);
    let mut found = SourcePoints::default();
    if !left_out.is_empty() {
        found.notes.push(format!("{source}: left out {}", left_out.join(", ")));
    }
    if config.is_empty() {
        found.notes.push(format!("{source}: no flags are left, so it is not launched"));
    } else {
        found.points.push(FirstPoint::start(source, config));
    }
    found
}

/// Divides a configuration into the flags that a launch of the study can have, and the reasons why the others are left
/// out.
pub(super) fn launchable(
    config: &Config,
    engine: &dyn Engine,
    version: EngineVersion,
    fixed: &Config,
) -> (Config, Vec<String>) {
    let table = engine.flag_table(version);
    let (mut kept, mut left_out) = (Config::new(), Vec::new());
    for (name, value) in config.iter() {
        let one = Config::new().with(name, value.clone());
        let refusal = table.and_then(|table| table.render(&one).err());
        if is_connection_flag(name) || is_secret(name) {
            left_out.push(format!("{name} (the connection)"));
        } else if let Some(refusal) = refusal {
            left_out.push(format!("{name} ({refusal})"));
        } else if let Some(fixed) = fixed.get(name) {
            if fixed != value {
                left_out.push(format!("{name} {value} (fixed: {fixed})"));
            }
        } else {
            kept.set(name, value.clone());
        }
    }
    (kept, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::default_engine;

    #[test]
    fn an_earlier_winner_keeps_the_flags_that_this_study_can_launch() {
        let config = Config::new()
            .with("max-num-seqs", 64_i64)
            .with("max-model-len", 4096_i64)
            .with("port", 8000_i64)
            .with("no-such-flag", true)
            .with("block-size", 32_i64);
        let fixed = Config::new().with("max-model-len", 8192_i64).with("block-size", 32_i64);
        let version = EngineVersion::new(0, 32, 0);
        let found = study_point("study a, trial 7".to_owned(), &config, &*default_engine(), version, &fixed);
        let expected = FirstPoint::start("study a, trial 7", Config::new().with("max-num-seqs", 64_i64));
        assert_eq!(found.points, [expected]);
        let [note] = found.notes.as_slice() else { panic!("{:?}", found.notes) };
        for part in ["max-model-len 4096 (fixed: 8192)", "port (the connection)", "no-such-flag (unrecognized"] {
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn a_winner_without_launchable_flags_is_named_and_not_launched() {
        let (none, version) = (Config::new(), EngineVersion::new(0, 32, 0));
        let found = study_point("study a, trial 0".to_owned(), &none, &*default_engine(), version, &none);
        assert_eq!((found.points.len(), found.notes.len()), (0, 1));
    }
}
