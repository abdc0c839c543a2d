//! Docker Compose files: the services that start a server, with interpolated variables.

use std::collections::BTreeMap;

use super::call::{ServerCall, ServerSearch};
use super::container::Container;
use super::error::LineProblem;
use super::field::WordField;
use super::interpolation::interpolate;
use super::yaml::{YamlNode, YamlValue};

/// Returns the servers of a Compose file. `variables` are those of the file `.env` beside it.
///
/// # Errors
/// If a command is not a list or a text with balanced quotes.
pub(super) fn servers_of_compose(
    root: &YamlNode,
    variables: &BTreeMap<String, String>,
    search: ServerSearch<'_>,
) -> Result<Vec<ServerCall>, LineProblem> {
    let mut calls = Vec::new();
    for (name, service) in root.get("services").map(YamlNode::entries).unwrap_or_default() {
        let container = container(service, variables)?;
        for mut call in search.servers_of_container(&container, service.line) {
            let line = service.get("command").or_else(|| service.get("image")).map_or(service.line, |node| node.line);
            call.line = Some(line);
            call.names = vec![name.clone()];
            for (name, value) in variables {
                call.secrets.add_variable(name, value);
            }
            calls.push(call);
        }
    }
    Ok(calls)
}

fn container(service: &YamlNode, variables: &BTreeMap<String, String>) -> Result<Container, LineProblem> {
    let entry_point = service.get("entrypoint").filter(|node| !matches!(node.value, YamlValue::Null));
    let mut container = Container {
        image: service.text_of("image").map(|image| interpolate(image, variables)),
        entry_point: entry_point.map(|node| words(node, variables)).transpose()?,
        arguments: service.get("command").map_or_else(|| Ok(Vec::new()), |node| words(node, variables))?,
        ..Container::default()
    };
    if let Some(environment) = service.get("environment") {
        read_environment(environment, variables, &mut container);
    }
    if service.get("env_file").is_some() {
        container.notes.push("the variables in `env_file` are not read".to_owned());
    }
    if service.get("extends").is_some() {
        container.notes.push("`extends` is not followed".to_owned());
    }
    Ok(container)
}

/// Returns the words of a command, which is a list or a text in the form of a shell's words.
fn words(node: &YamlNode, variables: &BTreeMap<String, String>) -> Result<Vec<WordField>, LineProblem> {
    match &node.value {
        YamlValue::Null => Ok(Vec::new()),
        YamlValue::List(items) => {
            Ok(items.iter().filter_map(YamlNode::text).map(|text| interpolate(text, variables)).collect())
        }
        YamlValue::Text(text) => {
            let words = shlex::split(text).ok_or_else(|| {
                LineProblem::new(node.line, "a quote of the command is never closed")
                    .with_hint("close the quote, or write the command as a list")
            })?;
            Ok(words.iter().map(|word| interpolate(word, variables)).collect())
        }
        YamlValue::Map(_) => Err(LineProblem::new(node.line, "the command is a mapping, but must be a list or a text")),
    }
}

/// Reads `environment`, which is a mapping or a list of `NAME=VALUE`.
fn read_environment(node: &YamlNode, variables: &BTreeMap<String, String>, container: &mut Container) {
    let pairs = match &node.value {
        YamlValue::Map(entries) => entries.iter().map(|(name, value)| (name.as_str(), value.text())).collect(),
        YamlValue::List(items) => items.iter().filter_map(YamlNode::text).map(divided).collect(),
        YamlValue::Null | YamlValue::Text(_) => Vec::new(),
    };
    for (name, value) in pairs {
        let field = if let Some(value) = value.or(variables.get(name).map(String::as_str)) {
            interpolate(value, variables)
        } else {
            let mut field = WordField::default();
            field.push_unknown("", format!("the variable `{name}` has its value from the environment of Compose"));
            field
        };
        container.env.insert(name.to_owned(), field);
    }
}

fn divided(text: &str) -> (&str, Option<&str>) {
    text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)))
}

/// Reads a file `.env`: lines of `NAME=VALUE`, with or without quotes.
pub(super) fn read_dot_env(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let line = line.trim().strip_prefix("export ").unwrap_or(line.trim());
        let (name, value) = line.split_once('=')?;
        let value = value.trim();
        let quoted = |quote: char| value.strip_prefix(quote)?.split(quote).next();
        let plain = || value.split(" #").next().unwrap_or(value).trim_end();
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or_else(plain);
        crate::engine::is_variable(name.trim()).then(|| (name.trim().to_owned(), value.to_owned()))
    };
    text.lines().filter(|line| !line.trim_start().starts_with('#')).filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_env_file_is_read_line_by_line() {
        let read = read_dot_env("# a=b\nA=b # c\nexport B='x y' \n C = \"d\"\n1=2\nnothing\n");
        let pairs: Vec<_> = read.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(pairs, ["A=b", "B=x y", "C=d"]);
    }
}
