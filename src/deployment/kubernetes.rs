//! Kubernetes manifests: the containers that start a server, in objects of any kind.

use std::collections::BTreeMap;

use super::call::{ServerCall, ServerSearch};
use super::container::Container;
use super::field::WordField;
use super::interpolation::substitute_references;
use super::yaml::{YamlNode, YamlValue};

/// The `ConfigMap` objects of a file, by name.
type ConfigMaps<'y> = BTreeMap<&'y str, &'y [(String, YamlNode)]>;

/// Returns the servers in the documents of a manifest.
pub(super) fn servers_of_manifest(documents: &[YamlNode], search: ServerSearch<'_>) -> Vec<ServerCall> {
    let objects: Vec<_> = documents.iter().flat_map(objects).collect();
    let is_map = |object: &&&YamlNode| object.text_of("kind") == Some("ConfigMap");
    let maps = objects.iter().filter(is_map).filter_map(|map| Some((name(map)?, map.get("data")?.entries())));
    let maps: ConfigMaps<'_> = maps.collect();
    let mut calls = Vec::new();
    for object in &objects {
        let mut containers = Vec::new();
        find_containers(object, &mut containers);
        for node in containers {
            let container = container(node, &maps);
            for mut call in search.servers_of_container(&container, node.line) {
                let line = ["args", "command", "image"].iter().find_map(|key| Some(node.get(key)?.line));
                call.line = Some(line.unwrap_or(node.line));
                call.names = names(object, node);
                calls.push(call);
            }
        }
    }
    calls
}

/// Returns a document, or the objects of a `List`.
fn objects(document: &YamlNode) -> Vec<&YamlNode> {
    match document.get("items") {
        Some(items) if document.text_of("kind").is_some_and(|kind| kind.ends_with("List")) => {
            items.items().iter().collect()
        }
        _ => vec![document],
    }
}

fn name(object: &YamlNode) -> Option<&str> {
    object.get("metadata")?.text_of("name")
}

/// Returns the names that select a container: `OBJECT/CONTAINER`, and each of them.
fn names(object: &YamlNode, container: &YamlNode) -> Vec<String> {
    let own = container.text_of("name");
    let both = name(object).zip(own).map(|(object, own)| format!("{object}/{own}"));
    both.into_iter().chain(name(object).map(str::to_owned)).chain(own.map(str::to_owned)).collect()
}

/// Collects the elements of every list `containers`. Containers of the initialization end before the server.
fn find_containers<'y>(node: &'y YamlNode, found: &mut Vec<&'y YamlNode>) {
    match &node.value {
        YamlValue::Map(entries) => {
            for (key, value) in entries {
                if key == "containers" {
                    found.extend(value.items());
                } else {
                    find_containers(value, found);
                }
            }
        }
        YamlValue::List(items) => items.iter().for_each(|item| find_containers(item, found)),
        YamlValue::Null | YamlValue::Text(_) => {}
    }
}

fn container(node: &YamlNode, maps: &ConfigMaps<'_>) -> Container {
    let mut container = Container { image: node.text_of("image").map(WordField::new), ..Container::default() };
    for source in node.get("envFrom").map(YamlNode::items).unwrap_or_default() {
        read_source(source, maps, &mut container);
    }
    for variable in node.get("env").map(YamlNode::items).unwrap_or_default() {
        if let Some(name) = variable.text_of("name") {
            let value = variable_value(name, variable, maps, &container.env);
            container.env.insert(name.to_owned(), value);
        }
    }
    let words = |key: &str| {
        let items = node.get(key).map(YamlNode::items).filter(|items| !items.is_empty())?;
        let texts = items.iter().filter_map(YamlNode::text);
        Some(texts.map(|text| substitute_references(text, &container.env)).collect())
    };
    (container.entry_point, container.arguments) = (words("command"), words("args").unwrap_or_default());
    container
}

/// Reads one element of `envFrom`.
fn read_source(source: &YamlNode, maps: &ConfigMaps<'_>, container: &mut Container) {
    let reference = |kind: &str| source.get(kind)?.text_of("name");
    if let Some(secret) = reference("secretRef") {
        container.notes.push(format!("the variables of the secret `{secret}` are not in the file"));
    }
    if let Some(map) = reference("configMapRef") {
        match maps.get(map) {
            Some(entries) => {
                let fields =
                    entries.iter().filter_map(|(name, value)| Some((name.clone(), WordField::new(value.text()?))));
                container.env.extend(fields);
            }
            None => container.notes.push(format!("the variables of the config map `{map}` are not in the file")),
        }
    }
}

/// Returns the value of an element of `env`.
fn variable_value(
    name: &str,
    variable: &YamlNode,
    maps: &ConfigMaps<'_>,
    earlier: &BTreeMap<String, WordField>,
) -> WordField {
    let Some(from) = variable.get("valueFrom") else {
        return substitute_references(variable.text_of("value").unwrap_or_default(), earlier);
    };
    let key = |kind: &str| Some((from.get(kind)?.text_of("name")?, from.get(kind)?.text_of("key")?));
    if let Some((map, key)) = key("configMapKeyRef")
        && let Some(value) = maps.get(map).and_then(|entries| entries.iter().find(|(name, _)| name == key))
        && let Some(text) = value.1.text()
    {
        return WordField::new(text);
    }
    let source = match (key("secretKeyRef"), key("configMapKeyRef")) {
        (Some((secret, _)), _) => format!("the secret `{secret}`"),
        (None, Some((map, _))) => format!("the config map `{map}`"),
        (None, None) => "the cluster".to_owned(),
    };
    let mut field = WordField::default();
    field.push_unknown(&format!("$({name})"), format!("the variable `{name}` has its value from {source}"));
    field
}
