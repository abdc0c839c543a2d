//! `spaces`: the search spaces that ship with the program.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::failure::{CommandFailure, INVALID};
use super::output::{print, print_json};
use super::{GlobalOptions, OutputFormat};
use crate::document::nearest;
use crate::facts::EngineVersion;
use crate::report::spaces_table;
use crate::space::{SpaceFile, built_in, built_in_paths, read_built_in};

#[derive(Debug, Args)]
pub(super) struct SpacesCommand {
    /// Print this space as a TOML file, to save and edit.
    space: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Table, conflicts_with = "space")]
    format: OutputFormat,
}

impl SpacesCommand {
    pub(super) fn run(&self, _: &GlobalOptions) -> Result<(), CommandFailure> {
        if let Some(path) = &self.space {
            return match built_in(path) {
                Some(text) => print(text),
                None => match built_in(&Path::new("search_spaces").join(path)) {
                    Some(text) => print(text),
                    None => Err(unknown(path)),
                },
            };
        }
        let spaces: Vec<_> =
            built_in_paths().map(|path| Ok((path, read_built_in(path)?))).collect::<Result<_, CommandFailure>>()?;
        match self.format {
            OutputFormat::Table => print(&spaces_table(&spaces)),
            OutputFormat::Json => {
                let version = |version: Option<EngineVersion>| version.map(|version| version.to_string());
                let one = |(path, file): &(&str, SpaceFile)| {
                    json!({
                        "file": path, "engine": file.engine, "description": file.description,
                        "first_version": version(file.first_version), "last_version": version(file.last_version),
                        "parameters": file.space.parameters.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(),
                    })
                };
                print_json(&spaces.iter().map(one).collect())
            }
        }
    }
}

fn unknown(path: &Path) -> CommandFailure {
    let name = path.display().to_string();
    let failure = CommandFailure::new(INVALID, format!("{name} is not a space that ships with setpoint"));
    let end = path.file_name().map(|name| format!("/{}", name.to_string_lossy()));
    // Spaces of several engines may have the same name.
    let mut near: Vec<_> =
        built_in_paths().filter(|known| end.as_ref().is_some_and(|end| known.ends_with(end))).collect();
    if near.is_empty() {
        near.extend(nearest(&name, built_in_paths()));
    }
    match near.as_slice() {
        [] => failure.with_hint("`setpoint spaces` lists them"),
        near => failure.with_hint(format!("did you mean {}? `setpoint spaces` lists them", near.join(" or "))),
    }
}
