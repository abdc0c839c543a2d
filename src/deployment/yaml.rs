//! YAML documents as trees with the line of every node. Their depth and size are limited.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::error::LineProblem;

/// The largest depth of lists and mappings within each other.
const MAX_DEPTH: usize = 64;

/// The largest number of nodes, with every alias replaced by its anchor's nodes.
const MAX_NODES: usize = 200_000;

/// The largest number of lines within brackets that are indented for the parser.
const MAX_INDENTED: usize = 64;

/// More than the indentation of any key.
const INDENTATION: usize = 200;

/// The begin of the message for a text that is not YAML.
const NOT_YAML: &str = "not valid YAML: ";

/// One node with its line.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    pub(super) line: usize,
    pub(super) value: YamlValue,
    /// The number of nodes in this tree.
    size: usize,
}

/// The content of a node. Scalars are texts.
#[derive(Clone, Debug)]
pub(super) enum YamlValue {
    Null,
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

impl YamlNode {
    /// Returns the value of a key. Of two equal keys the later one counts.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let YamlValue::Map(entries) = &self.value else { return None };
        entries.iter().rev().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let YamlValue::Text(text) = &self.value { Some(text) } else { None }
    }

    pub(super) fn items(&self) -> &[Self] {
        if let YamlValue::List(items) = &self.value { items } else { &[] }
    }

    pub(super) fn entries(&self) -> &[(String, Self)] {
        if let YamlValue::Map(entries) = &self.value { entries } else { &[] }
    }

    /// Returns the text of a key, if it is a scalar.
    pub(super) fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }
}

/// Reads all documents of a text.
///
/// # Errors
/// If the text is not YAML, or is larger or deeper than the limits.
pub(super) fn read_documents(text: &str) -> Result<Vec<YamlNode>, LineProblem> {
    let mut read = read_once(text);
    let mut text = Cow::Borrowed(text);
    for _ in 0..MAX_INDENTED {
        let Err(problem) = &read else { break };
        let Some(indented) = indented(&text, problem) else { break };
        text = Cow::Owned(indented);
        read = read_once(&text);
    }
    read
}

fn read_once(text: &str) -> Result<Vec<YamlNode>, LineProblem> {
    let mut tree = TreeBuilder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| LineProblem::new(error.marker().line(), format!("{NOT_YAML}{}", error.info())))?;
        tree.take(event, span.start.line())?;
    }
    Ok(tree.documents)
}

/// Indents a line that the parser refuses although other parsers accept it: a line within brackets that is not indented
/// deeper than the key before them. Kubernetes and Compose read such files.
fn indented(text: &str, problem: &LineProblem) -> Option<String> {
    let reason = problem.problem.strip_prefix(NOT_YAML)?;
    let number = problem.line?.checked_sub(1)?;
    let line = text.split_inclusive('\n').nth(number)?;
    let is_bracket = reason == "invalid indentation" && line.trim_start().starts_with([']', '}']);
    if !is_bracket && reason != "invalid indentation in flow construct" {
        return None;
    }
    let start: usize = text.split_inclusive('\n').take(number).map(str::len).sum();
    Some(format!("{}{}{}", &text[..start], " ".repeat(INDENTATION), &text[start..]))
}

/// An open list or mapping.
struct OpenNode {
    line: usize,
    anchor: usize,
    size: usize,
    items: Vec<YamlNode>,
    is_map: bool,
}

/// Builds trees from the events of the parser.
#[derive(Default)]
struct TreeBuilder {
    documents: Vec<YamlNode>,
    open: Vec<OpenNode>,
    anchors: HashMap<usize, YamlNode>,
    nodes: usize,
}

impl TreeBuilder {
    fn take(&mut self, event: Event<'_>, line: usize) -> Result<(), LineProblem> {
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_null = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if is_null { YamlValue::Null } else { YamlValue::Text(text.into_owned()) };
                self.add(YamlNode { line, value, size: 1 }, anchor)
            }
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor);
                let mut node =
                    known.cloned().ok_or_else(|| LineProblem::new(line, "not valid YAML: unknown anchor"))?;
                node.line = line;
                self.add(node, 0)
            }
            Event::SequenceStart(anchor, _) => self.begin(line, anchor, false),
            Event::MappingStart(anchor, _) => self.begin(line, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(open) => {
                    let (anchor, node) = (open.anchor, open.finish());
                    self.add(node, anchor)
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn begin(&mut self, line: usize, anchor: usize, is_map: bool) -> Result<(), LineProblem> {
        if self.open.len() >= MAX_DEPTH {
            return Err(LineProblem::new(
                line,
                format!("lists and mappings are nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        self.open.push(OpenNode { line, anchor, size: 1, items: Vec::new(), is_map });
        Ok(())
    }

    fn add(&mut self, node: YamlNode, anchor: usize) -> Result<(), LineProblem> {
        self.nodes += node.size;
        if self.nodes > MAX_NODES {
            return Err(LineProblem::new(node.line, format!("the text has more than {MAX_NODES} YAML nodes")));
        }
        if anchor > 0 {
            self.nodes += node.size;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => {
                open.size += node.size;
                open.items.push(node);
            }
            None => self.documents.push(node),
        }
        Ok(())
    }
}

impl OpenNode {
    fn finish(self) -> YamlNode {
        let value = if self.is_map { YamlValue::Map(entries(self.items)) } else { YamlValue::List(self.items) };
        YamlNode { line: self.line, value, size: self.size }
    }
}

/// Pairs keys and values, and inserts the entries of merge keys (`<<`) before all others.
fn entries(items: Vec<YamlNode>) -> Vec<(String, YamlNode)> {
    let (mut merged, mut own) = (Vec::new(), Vec::new());
    let mut items = items.into_iter();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        let name = match key.value {
            YamlValue::Text(name) => name,
            // A key without a name cannot be looked for.
            YamlValue::Null | YamlValue::List(_) | YamlValue::Map(_) => continue,
        };
        match value.value {
            YamlValue::Map(entries) if name == "<<" => merged.extend(entries),
            YamlValue::List(maps) if name == "<<" => {
                // The first mapping of a list has precedence, so it comes last.
                merged.extend(maps.into_iter().rev().flat_map(|map| match map.value {
                    YamlValue::Map(entries) => entries,
                    YamlValue::Null | YamlValue::Text(_) | YamlValue::List(_) => Vec::new(),
                }));
            }
            value_only => own.push((name, YamlNode { value: value_only, ..value })),
        }
    }
    // A merged entry that the mapping itself replaces is left out.
    merged.retain(|(name, _)| !own.iter().any(|(known, _)| known == name));
    merged.extend(own);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> LineProblem {
        read_documents(text).map(|documents| documents.len()).unwrap_err()
    }

    #[test]
    fn nodes_have_lines_and_merge_keys_are_resolved() {
        let text = "x: &a {image: i, b: 1}\ny:\n  <<: *a\n  b: 2\n---\n- 'null'\n- null\n";
        let documents = read_documents(text).unwrap();
        let y = documents[0].get("y").unwrap();
        assert_eq!((y.text_of("image"), y.text_of("b"), y.get("b").unwrap().line), (Some("i"), Some("2"), 4));
        assert_eq!(documents[1].items().iter().map(YamlNode::text).collect::<Vec<_>>(), [Some("null"), None]);
    }

    #[test]
    fn brackets_may_close_at_the_column_of_their_key() {
        let text = "a:\n  b: [\n    x, y\n  ]\n  c: {\n    d: 1\n  }\n  e: 2\n";
        let documents = read_documents(text).unwrap();
        let a = documents[0].get("a").unwrap();
        assert_eq!((a.get("b").unwrap().items().len(), a.text_of("e")), (2, Some("2")));
        assert_eq!(a.get("e").unwrap().line, 8);
    }

    #[test]
    fn syntax_depth_and_size_are_limited_with_the_line() {
        let error = problem("a: 1\nb: [1\nc: 2\n");
        assert!(error.problem.starts_with("not valid YAML: ") && error.line.is_some_and(|line| line > 1), "{error:?}");
        assert!(problem(&"- ".repeat(1000)).problem.contains("deeper than 64 levels"));
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{},", level - 1).repeat(10);
            bomb = format!("{bomb}a{level}: &a{level} [{before}]\n");
        }
        assert!(problem(&bomb).problem.contains("more than 200000"));
    }
}
