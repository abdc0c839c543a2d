//! Parser from command-line arguments to a configuration. It follows the engine's own parser: argparse of Python 3.11
//! with the additions of `vllm/utils/argparse_utils.py`.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

use super::book::FlagSpelling;
use super::read::human_integer;
use super::{BoolStyle, Flag, FlagError, FlagKind, FlagTable};
use crate::config::{Config, Value};

impl FlagTable {
    /// Reads `--name value`, `--name=value`, `--switch` and `--no-switch`. The last occurrence wins.
    ///
    /// # Errors
    /// If this release does not have a flag or does not accept its value. The error is about the first such flag.
    pub fn parse(self, arguments: &[String]) -> Result<Config, FlagError> {
        let mut config = Config::new();
        self.read_all(arguments, |read| {
            let (flag, value) = read?;
            config.set(flag.name, value);
            Ok(())
        })?;
        Ok(config)
    }

    /// Like [`parse`](Self::parse), but leaves out the flags that cannot be read. Their errors are returned in order.
    #[must_use]
    pub fn parse_lenient(self, arguments: &[String]) -> (Config, Vec<FlagError>) {
        let (mut config, mut errors) = (Config::new(), Vec::new());
        let all = self.read_all(arguments, |read| {
            match read {
                Ok((flag, value)) => config.set(flag.name, value),
                Err(error) => errors.push(error),
            }
            Ok(())
        });
        errors.extend(all.err());
        (config, errors)
    }

    /// Returns whether an argument is a flag of this release, possibly with an attached value. Every argument of the
    /// form `--flag.field` counts. Unlike [`parse`](Self::parse), this function does not search for a similar flag,
    /// which takes a hundred times as long.
    #[must_use]
    pub fn is_flag_argument(self, argument: &str) -> bool {
        is_dotted(argument) || matches!(self.classify(argument), ArgumentKind::Option(..))
    }

    /// Passes each flag with its value, or its error, to `take`. The reading ends if `take` returns an error.
    fn read_all(
        self,
        arguments: &[String],
        mut take: impl FnMut(Result<(Flag, Value), FlagError>) -> Result<(), FlagError>,
    ) -> Result<(), FlagError> {
        let mut dotted = DottedFields::default();
        let mut rest = UnreadArguments { table: self, rest: arguments };
        while let Some(argument) = rest.next() {
            if is_dotted(argument) {
                dotted.take(argument, &mut rest).or_else(|error| take(Err(error)))?;
                continue;
            }
            match self.classify(argument) {
                ArgumentKind::Value => take(Err(FlagError::Positional(argument.clone())))?,
                ArgumentKind::Ambiguous(error) => take(Err(error))?,
                ArgumentKind::Unknown(name) => {
                    take(Err(self.unknown(name)))?;
                    // The values of an unknown flag are skipped. Otherwise each value would cause another error.
                    while rest.value().is_some() {}
                }
                ArgumentKind::Option(spelling, inline) => {
                    let flag = Flag::of(spelling.flag);
                    take(flag.read_option(spelling, inline, &mut rest).map(|value| (flag, value)))?;
                }
            }
        }
        for (key, value) in dotted.values {
            let text = Json::Object(value).to_string();
            match self.classify(&key) {
                ArgumentKind::Option(spelling, None) if !spelling.negates => {
                    let flag = Flag::of(spelling.flag);
                    take(flag.read(&text).map(|value| (flag, value)))?;
                }
                ArgumentKind::Ambiguous(error) => take(Err(error))?,
                _ => take(Err(self.unknown(key.trim_start_matches('-'))))?,
            }
        }
        Ok(())
    }

    /// Classifies one argument. Like argparse, it accepts an abbreviation of a flag if only one flag begins with it.
    fn classify(self, argument: &str) -> ArgumentKind<'_> {
        let Some(short) = argument.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            return ArgumentKind::Value;
        };
        let (key, inline) = match argument.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (argument, None),
        };
        // `-O 3` is `-O3` if the release has `--optimization-level`. Then `-O` does not abbreviate another name.
        if argument == "-O"
            && let Some(spelling) = self.column.by_spelling.get("--optimization-level")
        {
            return ArgumentKind::Option(spelling, None);
        }
        // `-O3` is a short flag with an attached value. Its long name depends on the release.
        if let Some(level) = short.strip_prefix('O').filter(|level| !level.is_empty()) {
            let name = if self.find("optimization-level").is_some() { "--optimization-level" } else { "-O" };
            if let Some(spelling) = self.column.by_spelling.get(name) {
                return ArgumentKind::Option(spelling, Some(level.strip_prefix('=').unwrap_or(level)));
            }
        }
        let long = short.starts_with('-');
        let key = if long && key.contains('_') { Cow::Owned(key.replace('_', "-")) } else { Cow::Borrowed(key) };
        if let Some(spelling) = self.column.by_spelling.get(key.as_ref()) {
            return ArgumentKind::Option(spelling, inline);
        }
        let first = self.column.spellings.partition_point(|spelling| spelling.text.as_str() < key.as_ref());
        let mut beginning =
            self.column.spellings[first..].iter().take_while(|spelling| spelling.text.starts_with(key.as_ref()));
        // `-n2` is `-n 2`.
        let attached = (!long && argument.is_char_boundary(2))
            .then(|| self.column.by_spelling.get(&argument[..2]))
            .flatten()
            .map(|spelling| ArgumentKind::Option(spelling, Some(&argument[2..])));
        match (beginning.next(), beginning.next(), attached) {
            (Some(only), None, None) => ArgumentKind::Option(only, inline),
            (None, None, Some(attached)) => attached,
            (None, None, None) if is_number(argument) || argument.contains(' ') => ArgumentKind::Value,
            (None, None, None) => ArgumentKind::Unknown(key_name(argument)),
            (one, other, _) => {
                let names: Vec<_> = one.into_iter().chain(other).map(|spelling| spelling.text.as_str()).collect();
                let matches = names.into_iter().chain(beginning.map(|spelling| spelling.text.as_str()));
                ArgumentKind::Ambiguous(FlagError::Ambiguous {
                    text: argument.to_owned(),
                    matches: matches.collect::<Vec<_>>().join(", "),
                })
            }
        }
    }
}

enum ArgumentKind<'a> {
    Option(&'static FlagSpelling, Option<&'a str>),
    Value,
    Ambiguous(FlagError),
    Unknown(&'a str),
}

fn key_name(argument: &str) -> &str {
    let name = argument.trim_start_matches('-');
    name.split('=').next().unwrap_or(name)
}

/// Returns whether the argument is a negative number. `-1` is a value; `-tp` and `--x` are flags.
fn is_number(argument: &str) -> bool {
    let Some(digits) = argument.strip_prefix('-') else { return false };
    let (whole, fraction) = digits.split_once('.').unwrap_or(("", digits));
    let all = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    all(whole) && all(fraction) && !fraction.is_empty()
}

/// The arguments that have not been read.
struct UnreadArguments<'a> {
    table: FlagTable,
    rest: &'a [String],
}

impl<'a> UnreadArguments<'a> {
    fn next(&mut self) -> Option<&'a String> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    /// Returns the next argument, if it is a value.
    fn value(&mut self) -> Option<&'a str> {
        let next = self.rest.first()?;
        // Fast path of the common case: text that does not begin with a dash is a value.
        let value =
            !next.starts_with('-') || matches!(self.table.classify(next), ArgumentKind::Value) && !is_dotted(next);
        if value { self.next().map(String::as_str) } else { None }
    }
}

impl Flag {
    /// Returns the value of an option, which is attached with `=` or follows the option.
    fn read_option(
        &self,
        spelling: &FlagSpelling,
        inline: Option<&str>,
        rest: &mut UnreadArguments<'_>,
    ) -> Result<Value, FlagError> {
        if self.kind() == FlagKind::Bool {
            return match inline {
                None => Ok(Value::Bool(!spelling.negates)),
                Some(value) => self.explicit_bool(spelling, value).map(Value::Bool),
            };
        }
        let Some(first) = inline.or_else(|| rest.value()) else {
            let alone = self.kind() == FlagKind::Other || self.properties.bare;
            return if alone { Ok(Value::Bool(true)) } else { Err(FlagError::MissingValue(self.name.to_owned())) };
        };
        if self.kind() != FlagKind::List || inline.is_some() {
            return self.read(first);
        }
        let mut all = without_json_blanks(first).into_owned();
        while let Some(next) = rest.value() {
            all.push(' ');
            all.push_str(&without_json_blanks(next));
        }
        self.read(&all)
    }

    fn explicit_bool(&self, spelling: &FlagSpelling, value: &str) -> Result<bool, FlagError> {
        match (self.bool_style(), value.to_ascii_lowercase().as_str()) {
            (Some(BoolStyle::StoreBoolean), "true") => Ok(true),
            (Some(BoolStyle::StoreBoolean), "false") => Ok(false),
            _ => {
                let prefix = if spelling.negates { "no-" } else { "" };
                let name = format!("{prefix}{}", self.name);
                Err(FlagError::ExplicitBool { name, value: value.to_owned() })
            }
        }
    }
}

/// Removes the blanks between the fields of a JSON object, which would divide one word of a list into several.
fn without_json_blanks(word: &str) -> Cow<'_, str> {
    let object = word.trim_start().starts_with('{').then(|| serde_json::from_str::<Map<String, Json>>(word).ok());
    object.flatten().map_or(Cow::Borrowed(word), |fields| Cow::Owned(Json::Object(fields).to_string()))
}

/// Single fields of JSON flags, such as `--compilation-config.mode=3`. They are read after all other flags.
#[derive(Default)]
struct DottedFields {
    values: Vec<(String, Map<String, Json>)>,
}

/// Returns whether the argument is `--flag.field`. A dot after `=` belongs to the value and does not mark a field.
fn is_dotted(argument: &str) -> bool {
    let key = argument.split('=').next().unwrap_or(argument);
    argument.starts_with('-') && key.contains('.')
}

impl DottedFields {
    /// Takes a field and its value. The value is attached with `=` or is the next argument.
    fn take(&mut self, argument: &str, rest: &mut UnreadArguments<'_>) -> Result<(), FlagError> {
        let missing = || FlagError::MissingValue(key_name(argument).to_owned());
        let (key, text) = match argument.split_once('=') {
            Some((key, text)) => (key, text),
            None => (argument, rest.next().ok_or_else(missing)?.as_str()),
        };
        let (flag, path) = key.split_once('.').ok_or_else(missing)?;
        let flag = if flag.starts_with("--") { flag.replace('_', "-") } else { flag.to_owned() };
        let (path, value) = match path.strip_suffix('+') {
            Some(path) => (path, text.split(',').map(|item| Json::String(item.to_owned())).collect()),
            None => (path, json_or_text(text)),
        };
        let index = self.values.iter().position(|(known, _)| *known == flag).unwrap_or_else(|| {
            self.values.push((flag, Map::new()));
            self.values.len() - 1
        });
        insert(&mut self.values[index].1, path, value);
        Ok(())
    }
}

fn json_or_text(text: &str) -> Json {
    serde_json::from_str(text)
        .ok()
        .or_else(|| human_integer(text).map(Json::from))
        .unwrap_or_else(|| Json::String(text.to_owned()))
}

fn insert(map: &mut Map<String, Json>, path: &str, value: Json) {
    match path.split_once('.') {
        Some((first, rest)) => {
            let inner = map.entry(first).or_insert_with(|| Json::Object(Map::new()));
            if !inner.is_object() {
                *inner = Json::Object(Map::new());
            }
            if let Json::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
        None => match (map.get_mut(path), value) {
            (Some(Json::Array(items)), Json::Array(more)) => items.extend(more),
            (_, value) => {
                map.insert(path.to_owned(), value);
            }
        },
    }
}
