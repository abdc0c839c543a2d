//! The spelling of a described server's parameters, as arguments of the command line or as variables.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};
use toml::de::DeValue;

use crate::config::{Config, Value};
use crate::document::FromToml;
use crate::engine::is_variable;

/// The prefix of a spelling that names a variable of the environment.
const VARIABLE_PREFIX: &str = "env:";

/// The default spelling of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagStyle {
    /// `--name value`.
    Separate,
    /// `--name=value`.
    Equals,
    /// `-name value`.
    Short,
    /// `NAME=value` in the environment.
    Environment,
}

impl FlagStyle {
    pub(super) const ALL: [Self; 4] = [Self::Separate, Self::Equals, Self::Short, Self::Environment];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Separate => "separate",
            Self::Equals => "equals",
            Self::Short => "short",
            Self::Environment => "environment",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|style| style.name() == name)
    }

    /// Returns the default spelling of a parameter.
    fn spelling(self, name: &str) -> ParameterSpelling {
        ParameterSpelling::Name(match self {
            Self::Separate | Self::Equals => format!("--{name}"),
            Self::Short => format!("-{name}"),
            Self::Environment => format!("{VARIABLE_PREFIX}{}", name.to_uppercase().replace(['-', '.'], "_")),
        })
    }
}

/// The study's spelling of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParameterSpelling {
    /// A flag, or `env:NAME`. A flag that ends with `=` has its value attached.
    Name(String),
    /// The arguments for a switch that is on, and those for one that is off. An empty text stands for no argument.
    Switch { on: String, off: String },
}

impl FromToml for ParameterSpelling {
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        if let Some(name) = value.as_str() {
            let is_usable = name.strip_prefix(VARIABLE_PREFIX).map_or(!name.trim().is_empty(), is_variable);
            return if is_usable {
                Ok(Self::Name(name.to_owned()))
            } else {
                Err(format!("{name:?} is neither a flag nor an environment variable such as \"env:NAME\""))
            };
        }
        let expected = "expected a flag such as \"-t\", or { on = \"--flag\", off = \"--no-flag\" }";
        let mut table = BTreeMap::<String, String>::from_toml(value).map_err(|_| expected.to_owned())?;
        match (table.remove("on"), table.remove("off"), table.is_empty()) {
            (Some(on), Some(off), true) => Ok(Self::Switch { on, off }),
            _ => Err(expected.to_owned()),
        }
    }

    fn kind() -> String {
        "a flag, or a table with `on` and `off`".to_owned()
    }
}

impl ParameterSpelling {
    pub(super) fn definition(&self) -> Json {
        match self {
            Self::Name(name) => json!(name),
            Self::Switch { on, off } => json!({"on": on, "off": off}),
        }
    }
}

/// A configuration in the form that a server receives.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RenderedFlags {
    pub(super) words: Vec<String>,
    pub(super) variables: BTreeMap<String, String>,
}

impl RenderedFlags {
    /// Renders every parameter in the order of its name.
    pub(super) fn render(config: &Config, style: FlagStyle, spellings: &BTreeMap<String, ParameterSpelling>) -> Self {
        let mut rendered = Self::default();
        for (name, value) in config.iter() {
            let spelling = spellings.get(name).cloned().unwrap_or_else(|| style.spelling(name));
            rendered.add(&spelling, style, value);
        }
        rendered
    }

    fn add(&mut self, spelling: &ParameterSpelling, style: FlagStyle, value: &Value) {
        let name = match spelling {
            ParameterSpelling::Switch { on, off } => {
                let is_on = value.as_bool().unwrap_or_else(|| value.to_string() == "on");
                let word = if is_on { on } else { off };
                self.words.extend(word.split_whitespace().map(str::to_owned));
                return;
            }
            ParameterSpelling::Name(name) => name,
        };
        if let Some(variable) = name.strip_prefix(VARIABLE_PREFIX) {
            self.variables.insert(variable.to_owned(), value.to_string());
            return;
        }
        if let Some(flag) = name.strip_suffix('=') {
            self.words.push(format!("{flag}={value}"));
            return;
        }
        match (value.as_bool(), style) {
            (Some(true), _) => self.words.push(name.clone()),
            // A flag with one dash has no `--no-` form, so a false value adds no argument.
            (Some(false), _) => {
                self.words.extend(name.strip_prefix("--").map(|long| format!("--no-{long}")));
            }
            (None, FlagStyle::Equals) => self.words.push(format!("{name}={value}")),
            (None, _) => self.words.extend([name.clone(), value.to_string()]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(style: FlagStyle, spellings: &[(&str, ParameterSpelling)]) -> RenderedFlags {
        let config = Config::new().with("threads", 2_i64).with("fast", true).with("cache-reuse", false).with("p", 0.5);
        let spellings = spellings.iter().map(|(name, spelling)| ((*name).to_owned(), spelling.clone())).collect();
        RenderedFlags::render(&config, style, &spellings)
    }

    #[test]
    fn each_style_has_its_words_or_variables() {
        let words = |style| rendered(style, &[]).words.join(" ");
        assert_eq!(words(FlagStyle::Separate), "--no-cache-reuse --fast --p 0.5 --threads 2");
        assert_eq!(words(FlagStyle::Equals), "--no-cache-reuse --fast --p=0.5 --threads=2");
        assert_eq!(words(FlagStyle::Short), "-fast -p 0.5 -threads 2", "what is off is left out");
        let RenderedFlags { words, variables } = rendered(FlagStyle::Environment, &[]);
        let expected = [("CACHE_REUSE", "false"), ("FAST", "true"), ("P", "0.5"), ("THREADS", "2")];
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert!(words.is_empty());
    }

    #[test]
    fn single_parameters_can_be_spelt_in_their_own_way() {
        let switch = |on: &str, off: &str| ParameterSpelling::Switch { on: on.to_owned(), off: off.to_owned() };
        let name = |text: &str| ParameterSpelling::Name(text.to_owned());
        let spellings = [
            ("threads", name("-t")),
            ("fast", switch("--mode fast", "")),
            ("cache-reuse", switch("", "--cache off")),
            ("p", name("env:OMP_P")),
        ];
        let RenderedFlags { words, variables } = rendered(FlagStyle::Separate, &spellings);
        assert_eq!(words.join(" "), "--cache off --mode fast -t 2");
        assert_eq!(variables, BTreeMap::from([("OMP_P".to_owned(), "0.5".to_owned())]));
        assert_eq!(rendered(FlagStyle::Short, &[("p", name("--p="))]).words.join(" "), "-fast --p=0.5 -threads 2");
    }
}
