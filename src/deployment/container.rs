//! Containers: the options of `docker run`, and the image with its entry point and arguments.

use std::collections::BTreeMap;

use super::call::file_name;
use super::field::WordField;

/// Programs that run a container with the options of Docker.
const RUNTIMES: [&str; 4] = ["docker", "docker.io", "nerdctl", "podman"];

/// Short options of `docker run` without a value.
const SHORT_SWITCHES: [char; 5] = ['d', 'i', 'P', 'q', 't'];

/// Long options of `docker run` and `podman run` without a value.
const LONG_SWITCHES: [&str; 14] = [
    "--detach",
    "--help",
    "--init",
    "--interactive",
    "--no-healthcheck",
    "--no-hosts",
    "--oom-kill-disable",
    "--privileged",
    "--publish-all",
    "--quiet",
    "--read-only",
    "--replace",
    "--rm",
    "--tty",
];

/// A container as a command or a manifest describes it.
#[derive(Clone, Debug, Default)]
pub(super) struct Container {
    pub(super) image: Option<WordField>,
    /// The program that replaces the image's own. `None` if the image's program runs.
    pub(super) entry_point: Option<Vec<WordField>>,
    pub(super) arguments: Vec<WordField>,
    pub(super) env: BTreeMap<String, WordField>,
    pub(super) notes: Vec<String>,
}

/// Reads `docker run [OPTION ...] IMAGE [ARGUMENT ...]`. Words before it are wrappers.
/// `is_image` recognises images behind options that are unknown, as in `docker run $OPTIONS IMAGE`.
pub(super) fn container_of_words(words: &[WordField], is_image: impl Fn(&str) -> bool) -> Option<Container> {
    let runtime = words.iter().position(|word| RUNTIMES.contains(&file_name(&word.text)))?;
    let run =
        runtime + 1 + words[runtime + 1..].iter().take(2).position(|word| matches!(&*word.text, "run" | "create"))?;
    let mut container = Container::default();
    let mut rest = words[run + 1..].iter();
    while let Some(word) = rest.next() {
        if word.trouble.is_some() && rest.clone().any(|word| is_image(&word.text)) && !is_image(&word.text) {
            container.notes.push(format!("the options {} of the container are not known", word.text));
            continue;
        }
        if !word.text.starts_with('-') {
            container.image = Some(word.clone());
            container.arguments = rest.cloned().collect();
            return Some(container);
        }
        let (name, value) = match split_option(&word.text) {
            DockerOption::Switch => continue,
            DockerOption::Attached(name, value) => (name, WordField { text: value.to_owned(), ..word.clone() }),
            DockerOption::Separate(name) => (name, rest.next()?.clone()),
        };
        container.take_option(name, value);
    }
    None
}

enum DockerOption<'w> {
    Switch,
    /// An option with its value in the same word.
    Attached(&'w str, &'w str),
    /// An option whose value is the next word.
    Separate(&'w str),
}

fn split_option(word: &str) -> DockerOption<'_> {
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((name, value)) => DockerOption::Attached(name, value),
            None if LONG_SWITCHES.contains(&word) => DockerOption::Switch,
            None => DockerOption::Separate(word),
        };
    }
    // `-it` is two switches, and `-itp 80:80` two switches and an option.
    let letters = &word[1..];
    match letters.char_indices().find(|(_, letter)| !SHORT_SWITCHES.contains(letter)) {
        None => DockerOption::Switch,
        Some((at, letter)) => {
            let value = &letters[at + letter.len_utf8()..];
            let name = &letters[at..at + letter.len_utf8()];
            if value.is_empty() { DockerOption::Separate(name) } else { DockerOption::Attached(name, value) }
        }
    }
}

impl Container {
    fn take_option(&mut self, name: &str, value: WordField) {
        match name {
            "e" | "--env" => {
                if let Some((name, text)) = value.text.split_once('=') {
                    self.env.insert(name.to_owned(), WordField { text: text.to_owned(), ..value.clone() });
                } else {
                    let note = format!("the variable {} has its value from the environment of the command", value.text);
                    self.notes.push(note);
                }
            }
            "--env-file" => self.notes.push(format!("the variables in {} are not read", value.text)),
            "--entrypoint" => self.entry_point = Some(vec![value]),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(line: &str) -> Option<Container> {
        let words: Vec<_> = line.split(' ').map(WordField::new).collect();
        container_of_words(&words, |image| image == "image")
    }

    #[test]
    fn the_image_is_found_behind_options_of_all_forms() {
        for line in [
            "docker run --gpus all --rm -it -p 80:80 image --model m",
            "sudo docker run -itp 80:80 --ipc=host --name x image --model m",
            "podman container run -p80:80 --device nvidia.com/gpu=all image --model m",
            "/usr/bin/docker run image --model m",
        ] {
            let container = container(line).unwrap();
            assert_eq!(container.image.map(|image| image.text).as_deref(), Some("image"), "{line}");
            let arguments: Vec<_> = container.arguments.iter().map(|word| word.text.as_str()).collect();
            assert_eq!(arguments, ["--model", "m"]);
        }
        for line in ["docker run", "docker run --gpus", "docker ps image", "dockerd run image", "docker run -e"] {
            assert!(container(line).is_none(), "{line}");
        }
    }

    #[test]
    fn variables_and_the_entry_point_are_taken_from_the_options() {
        let container = container("docker run -e A=b --env=C=d -eE=f -e TOKEN --entrypoint bash i -c x").unwrap();
        let env: Vec<_> = container.env.iter().map(|(name, value)| format!("{name}={}", value.text)).collect();
        assert_eq!(env, ["A=b", "C=d", "E=f"]);
        assert_eq!(container.entry_point, Some(vec![WordField::new("bash")]));
        assert_eq!(container.notes, ["the variable TOKEN has its value from the environment of the command"]);
    }
}
