//! The commands and container images that start an engine's server.

use std::ops::Range;
use std::path::Path;

/// Commands and container images that start an engine's server, as users write them into scripts and manifests.
#[derive(Clone, Copy, Debug)]
pub struct ServerStarts {
    /// The usual program with its subcommand. It takes the model as its first argument or in `--model`.
    pub program: &'static [&'static str],
    /// The program with its subcommand in the engine's container image.
    pub in_image: &'static [&'static str],
    /// The command in this image that requests a page and fails if there is none. `{url}` is the page's address.
    pub request: &'static [&'static str],
    /// The arguments of a Python interpreter behind `-m`: a module, and its subcommand if it needs one.
    pub modules: &'static [&'static [&'static str]],
    /// Beginnings of image names whose entry point is the server. The registry, the owner and the tag do not count.
    pub images: &'static [&'static str],
}

impl ServerStarts {
    /// Returns the range of the words that start the server within a command, for instance of `vllm serve`. The words
    /// before it belong to wrappers, and the words behind it are the server's arguments.
    pub fn find<W: AsRef<str>>(&self, words: &[W]) -> Option<Range<usize>> {
        (0..words.len()).find_map(|at| {
            let rest = &words[at..];
            let length = self.program_length(rest).or_else(|| self.python_length(rest))?;
            Some(at..at + length)
        })
    }

    /// Returns whether the entry point of an image is the server.
    #[must_use]
    pub fn runs_in_image(&self, image: &str) -> bool {
        let path = image.split('@').next().unwrap_or(image);
        let name = path.rsplit('/').next().unwrap_or(path);
        self.images.iter().any(|known| name.starts_with(known))
    }

    fn program_length<W: AsRef<str>>(&self, words: &[W]) -> Option<usize> {
        let (name, rest) = self.program.split_first()?;
        let is_program = file_name(words.first()?.as_ref()) == Some(*name);
        let follows =
            words.len() > rest.len() && words[1..].iter().zip(rest).all(|(word, known)| word.as_ref() == *known);
        (is_program && follows).then_some(self.program.len())
    }

    /// Returns the number of words of `python [OPTION ...] -m MODULE` or of `python .../MODULE.py`.
    fn python_length<W: AsRef<str>>(&self, words: &[W]) -> Option<usize> {
        if !file_name(words.first()?.as_ref())?.starts_with("python") {
            return None;
        }
        let options =
            words[1..].iter().take_while(|word| word.as_ref().starts_with('-') && word.as_ref() != "-m").count();
        let rest = &words[1 + options..];
        let is_module = rest.first()?.as_ref() == "-m";
        let rest = &rest[usize::from(is_module)..];
        let length = |module: &&[&str]| {
            let first = rest.first()?.as_ref();
            let is_named = if is_module { first == module[0] } else { is_file_of(first, module[0]) };
            let follows = rest.len() >= module.len()
                && rest[1..].iter().zip(&module[1..]).all(|(word, known)| word.as_ref() == *known);
            (is_named && follows).then_some(module.len())
        };
        Some(1 + options + usize::from(is_module) + self.modules.iter().find_map(length)?)
    }
}

fn file_name(word: &str) -> Option<&str> {
    Path::new(word).file_name()?.to_str()
}

/// Returns whether the word is the path of the module's source file.
fn is_file_of(word: &str, module: &str) -> bool {
    word.strip_suffix(".py").is_some_and(|path| path.replace('/', ".").ends_with(module))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTS: ServerStarts = ServerStarts {
        program: &["engine", "serve"],
        in_image: &["engine", "serve"],
        request: &[],
        modules: &[&["engine.api.server"], &["engine.main", "serve"]],
        images: &["engine-server"],
    };

    #[test]
    fn the_server_is_found_behind_wrappers() {
        for (line, expected) in [
            ("engine serve m", Some(0..2)),
            ("numactl -N 0 /opt/bin/engine serve m", Some(3..5)),
            ("srun python3 -u -m engine.api.server --model m", Some(1..5)),
            ("python -m engine.main serve m", Some(0..4)),
            ("python /src/engine/api/server.py", Some(0..2)),
            ("engine bench serve", None),
            ("python -m engine.main bench", None),
            ("python", None),
            ("", None),
        ] {
            let words: Vec<_> = line.split(' ').collect();
            assert_eq!(STARTS.find(&words), expected, "{line}");
        }
    }

    #[test]
    fn images_are_recognised_without_registry_and_tag() {
        let images = ["a.io:5000/x/engine-server:v1", "engine-server-rocm@sha256:00", "x/engine", "engine-server/ui"];
        assert_eq!(images.map(|image| STARTS.runs_in_image(image)), [true, true, false, false]);
    }
}
