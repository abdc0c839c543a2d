//! Words of an exported command line, with references in place of secrets.

use crate::trial::REDACTED;

/// A word of a command line. Secrets, which were not stored, are references to variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerWord(Vec<WordPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum WordPart {
    Text(String),
    /// The name of the variable with the secret.
    Secret(String),
}

impl ServerWord {
    /// Reads words without NUL bytes, which no argument can contain. The variable of a secret has the name of its flag,
    /// such as `API_KEY` for `--api-key`. The names are returned as well.
    pub(super) fn read_all(words: &[String]) -> (Vec<Self>, Vec<String>) {
        let (mut read, mut secrets, mut flag) = (Vec::new(), Vec::new(), None);
        for word in words {
            if let Some(name) = word.strip_prefix("--") {
                flag = Some(name.split(['=', '.']).next().unwrap_or(name));
            }
            let mut parts = Vec::new();
            for (index, text) in word.replace('\0', "").split(REDACTED).enumerate() {
                if index > 0 {
                    let name = unused_name(flag.unwrap_or_default(), &secrets);
                    parts.push(WordPart::Secret(name.clone()));
                    secrets.push(name);
                }
                if !text.is_empty() {
                    parts.push(WordPart::Text(text.to_owned()));
                }
            }
            read.push(Self(parts));
        }
        (read, secrets)
    }

    /// Returns the word in a format. `text` escapes a text, and `secret` writes a reference to a variable.
    pub(super) fn render(&self, text: impl Fn(&str) -> String, secret: impl Fn(&str) -> String) -> String {
        let part = |part: &WordPart| match part {
            WordPart::Text(content) => text(content),
            WordPart::Secret(name) => secret(name),
        };
        if self.0.is_empty() { text("") } else { self.0.iter().map(part).collect() }
    }

    /// Returns the word of a container's `args` and `command` in Kubernetes.
    pub(super) fn in_pod(&self) -> String {
        self.render(doubled_dollars, |name| format!("$({name})"))
    }
}

impl From<&str> for ServerWord {
    fn from(word: &str) -> Self {
        let parts = if word.is_empty() { Vec::new() } else { vec![WordPart::Text(word.replace('\0', ""))] };
        Self(parts)
    }
}

/// Escapes a text for Compose and for containers of Kubernetes. Both replace variables, `$NAME` and `$(NAME)`, and
/// read `$$` as one dollar sign.
pub(super) fn doubled_dollars(text: &str) -> String {
    text.replace('$', "$$")
}

/// Returns the name of a variable for a flag's secret that is not in `used`.
fn unused_name(flag: &str, used: &[String]) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = flag.chars().map(letter).collect();
    let name = if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name } else { "SECRET".to_owned() };
    let numbered = (2..).map(|number| format!("{name}_{number}"));
    std::iter::once(name.clone()).chain(numbered).find(|name| !used.contains(name)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_become_references_with_the_names_of_their_flags() {
        let words = ["--api-key", REDACTED, REDACTED, &format!("--header=Bearer {REDACTED}!"), "a$b", ""];
        let (words, secrets) = ServerWord::read_all(&words.map(str::to_owned));
        assert_eq!(secrets, ["API_KEY", "API_KEY_2", "HEADER"]);
        let words: Vec<_> = words.iter().map(ServerWord::in_pod).collect();
        assert_eq!(words, ["--api-key", "$(API_KEY)", "$(API_KEY_2)", "--header=Bearer $(HEADER)!", "a$$b", ""]);
    }

    #[test]
    fn a_secret_without_a_flag_has_a_name_as_well() {
        assert_eq!(ServerWord::read_all(&[REDACTED.to_owned()]).1, ["SECRET"]);
        assert_eq!(ServerWord::read_all(&[format!("--1={REDACTED}")]).1, ["SECRET"]);
    }
}
