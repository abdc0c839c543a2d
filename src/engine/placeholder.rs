//! Placeholders in a study's arguments for values that only the launch can provide: its port, its name, its log.
//!
//! Wrappers need them: `docker run --name {name} -p 127.0.0.1:{port}:{port} ...` and `docker stop {name}`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::document::nearest;

/// All names that are valid between braces. `PlaceholderValues` describes their values.
pub const PLACEHOLDERS: [&str; 7] = ["port", "name", "log", "trial", "devices", "processors", "env"];

/// The placeholder that becomes several arguments: `-e NAME` for each variable. It must be an argument of its own.
const VARIABLES_PLACEHOLDER: &str = "env";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlaceholderError {
    #[error("`{{{name}}}` is not a placeholder; there are {}", PLACEHOLDERS.map(|known| format!("{{{known}}}")).join(", "))]
    Unknown { name: String },
    #[error("`{{env}}` becomes several arguments and cannot be a part of {0:?}")]
    NotAlone(String),
    #[error("`{{flags}}` becomes several arguments and cannot be a part of {0:?}")]
    FlagsNotAlone(String),
    #[error("`{{env}}` is only valid in `command`")]
    OnlyInCommand,
}

impl PlaceholderError {
    /// Returns the correction of the error.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { name } => match nearest(name, PLACEHOLDERS) {
                Some(near) => format!("did you mean `{{{near}}}`?"),
                None => format!("write `{{{{{name}}}}}` for literal braces"),
            },
            Self::NotAlone(_) | Self::FlagsNotAlone(_) => "write it as an argument of its own".to_owned(),
            Self::OnlyInCommand => "remove it: every launch gets the variables of [engine.env]".to_owned(),
        }
    }
}

/// The values of one launch for the placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceholderValues {
    /// The port on which the server listens.
    pub port: u16,
    /// A name unique to this launch. It has letters, digits, `.`, `_` and `-`, like the names of containers and jobs.
    pub name: String,
    /// The log's absolute path.
    pub log: PathBuf,
    /// The trial's number.
    pub trial: u32,
    /// The GPUs that the launch may use, in the form of `CUDA_VISIBLE_DEVICES`, or `all` without a restriction.
    pub devices: String,
    /// The CPU numbers that the launch may use, for instance `0-3,8`.
    pub processors: String,
    /// Names of the variables that `{env}` passes on as `-e NAME`. The wrapper takes the values from its own
    /// environment, so that no secret appears in a command line.
    pub variables: Vec<String>,
}

impl PlaceholderValues {
    /// Replaces the placeholders in each argument. `{env}` becomes two arguments for each variable.
    #[must_use]
    pub fn fill_words(&self, words: &[String]) -> Vec<String> {
        let mut filled = Vec::with_capacity(words.len());
        for word in words {
            if pieces(word) == [Piece::Placeholder(VARIABLES_PLACEHOLDER)] {
                filled.extend(self.variables.iter().flat_map(|name| ["-e".to_owned(), name.clone()]));
            } else {
                filled.push(self.fill_text(word));
            }
        }
        filled
    }

    /// Replaces the placeholders in the values of variables.
    #[must_use]
    pub fn fill_variables(&self, variables: BTreeMap<String, String>) -> BTreeMap<String, String> {
        variables.into_iter().map(|(name, value)| (name, self.fill_text(&value))).collect()
    }

    fn fill_text(&self, word: &str) -> String {
        let fill = |piece: Piece<'_>| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Placeholder("port") => self.port.to_string(),
            Piece::Placeholder("name") => self.name.clone(),
            Piece::Placeholder("log") => self.log.display().to_string(),
            Piece::Placeholder("trial") => self.trial.to_string(),
            Piece::Placeholder("devices") => self.devices.clone(),
            Piece::Placeholder("processors") => self.processors.clone(),
            // Not reached: the reader of the study file refuses other names, and `{env}` within an argument.
            Piece::Placeholder(other) => format!("{{{other}}}"),
        };
        pieces(word).into_iter().map(fill).collect()
    }
}

/// Checks an argument of `command`. `{env}` is valid there.
///
/// # Errors
/// If a placeholder does not exist, or `{env}` is a part of an argument.
pub fn check_command_word(word: &str) -> Result<(), PlaceholderError> {
    match pieces(word).as_slice() {
        [Piece::Placeholder(VARIABLES_PLACEHOLDER)] => Ok(()),
        pieces if pieces.contains(&Piece::Placeholder(VARIABLES_PLACEHOLDER)) => {
            Err(PlaceholderError::NotAlone(word.to_owned()))
        }
        pieces => check_placeholders(pieces),
    }
}

/// Checks an argument or value that may not contain `{env}`.
///
/// # Errors
/// If a placeholder does not exist, or is `{env}`.
pub fn check_word(word: &str) -> Result<(), PlaceholderError> {
    let pieces = pieces(word);
    if pieces.contains(&Piece::Placeholder(VARIABLES_PLACEHOLDER)) {
        Err(PlaceholderError::OnlyInCommand)
    } else {
        check_placeholders(&pieces)
    }
}

/// Returns whether an argument contains this placeholder.
#[must_use]
pub fn has_placeholder(word: &str, name: &str) -> bool {
    pieces(word).contains(&Piece::Placeholder(name))
}

/// Replaces the placeholder `name` in an argument by `value`. Everything else stays unchanged, including doubled
/// braces.
pub(crate) fn substitute(word: &str, name: &str, value: &str) -> String {
    let (placeholder, mut rest, mut text) = (format!("{{{name}}}"), word, String::with_capacity(word.len()));
    while let Some(at) = rest.find(&placeholder) {
        let (before, after) = (&rest[..at], &rest[at + placeholder.len()..]);
        let is_literal = before.ends_with('{') && after.starts_with('}');
        text.push_str(before);
        text.push_str(if is_literal { &placeholder } else { value });
        rest = after;
    }
    text.push_str(rest);
    text
}

fn check_placeholders(pieces: &[Piece<'_>]) -> Result<(), PlaceholderError> {
    let unknown = |piece: &Piece<'_>| match piece {
        Piece::Placeholder(name) if !PLACEHOLDERS.contains(name) => Some((*name).to_owned()),
        _ => None,
    };
    pieces.iter().find_map(unknown).map_or(Ok(()), |name| Err(PlaceholderError::Unknown { name }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'w> {
    Text(&'w str),
    Placeholder(&'w str),
}

/// Splits an argument into text and placeholders. `{name}` with a name of lowercase letters and `_` is a placeholder.
/// `{{name}}` is the text `{name}`. Every other brace is literal. JSON values of flags do not contain these two forms.
fn pieces(word: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let (mut text, mut at) = (0, 0);
    let name_at = |start: usize| {
        let rest = &word[start..];
        let length = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
        (length > 0).then(|| &rest[..length])
    };
    while let Some(brace) = word[at..].find('{').map(|offset| at + offset) {
        let doubled = word[brace..].starts_with("{{");
        let inner = brace + if doubled { 2 } else { 1 };
        let closing = if doubled { "}}" } else { "}" };
        let Some(name) = name_at(inner).filter(|name| word[inner + name.len()..].starts_with(closing)) else {
            at = brace + 1;
            continue;
        };
        let end = inner + name.len() + closing.len();
        if text < brace {
            found.push(Piece::Text(&word[text..brace]));
        }
        found.push(if doubled { Piece::Text(&word[brace + 1..end - 1]) } else { Piece::Placeholder(name) });
        (text, at) = (end, end);
    }
    if text < word.len() {
        found.push(Piece::Text(&word[text..]));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filling() -> PlaceholderValues {
        PlaceholderValues {
            port: 8123,
            name: "setpoint-chat-3-0badcafe".to_owned(),
            log: PathBuf::from("/data/trial-0003.log"),
            trial: 3,
            devices: "2,3".to_owned(),
            processors: "8-15".to_owned(),
            variables: vec!["HF_TOKEN".to_owned(), "SETPOINT_LAUNCH".to_owned()],
        }
    }

    fn filled(line: &str) -> String {
        filling().fill_words(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).join(" ")
    }

    #[test]
    fn a_launch_fills_in_its_own_values() {
        let line = "docker run --name {name} {env} --gpus \"device={devices}\" --cpuset-cpus {processors} \
                    -p 127.0.0.1:{port}:{port} --label trial={trial} -v {log}:/log image";
        let expected = "docker run --name setpoint-chat-3-0badcafe -e HF_TOKEN -e SETPOINT_LAUNCH \
                        --gpus \"device=2,3\" --cpuset-cpus 8-15 -p 127.0.0.1:8123:8123 --label trial=3 -v /data/trial-0003.log:/log image";
        assert_eq!(filled(line), expected);
    }

    #[test]
    fn json_and_other_braces_stay_as_they_are_and_doubled_ones_are_literal() {
        for word in ["{\"a\":{\"b\":1}}", "{}", "{", "}{", "${HOME}", "{{.Names}}", "{port", "{1}", "", "{}}{{"] {
            assert_eq!((filled(word).as_str(), check_word(word)), (word, Ok(())), "{word}");
        }
        assert_eq!(filled("{{port}}={port}"), "{port}=8123");
        assert_eq!(filled("{{{port}}}"), "{{port}}", "the outer braces are no doubled ones around a name");
    }

    #[test]
    fn an_unknown_placeholder_is_refused_with_the_nearest_name() {
        let error = check_word("--port={prot}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`{prot}` is not a placeholder; there are {port}, {name}, {log}, {trial}, \
                    {devices}, {processors}, {env}"
        );
        assert_eq!(error.hint(), "did you mean `{port}`?");
        let error = check_word("{something_else}").unwrap_err();
        assert_eq!(error.hint(), "write `{{something_else}}` for literal braces");
        assert_eq!(check_word("{env}"), Err(PlaceholderError::OnlyInCommand));
        assert_eq!(check_command_word("{env}"), Ok(()));
        assert_eq!(check_command_word("x{env}"), Err(PlaceholderError::NotAlone("x{env}".to_owned())));
        assert!(has_placeholder("a{port}", "port") && !has_placeholder("{{port}}", "port"));
    }

    #[test]
    fn one_placeholder_is_replaced_and_literal_braces_stay() {
        assert_eq!(substitute("-m={model}:{port}", "model", "/a"), "-m=/a:{port}");
        assert_eq!(substitute("{{model}} {model}", "model", "m"), "{{model}} m");
    }

    proptest! {
        #[test]
        fn every_word_is_the_sum_of_its_pieces(word in "[a-c{}_\"é]{0,24}") {
            let joined: String = pieces(&word).iter().map(|piece| match piece {
                Piece::Text(text) => (*text).to_owned(),
                Piece::Placeholder(name) => format!("{{{name}}}"),
            }).collect();
            // Each doubled brace loses one of its two characters, and nothing else.
            prop_assert!(word.len() - joined.len() <= 2 * word.matches("{{").count());
            prop_assert_eq!(joined.replace(['{', '}'], ""), word.replace(['{', '}'], ""));
        }
    }
}
