//! The Python interpreter of an engine's launcher script.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::resolve_program;

/// The maximum number of bytes that are read of a script's first line.
const MAX_SHEBANG: u64 = 512;

/// Returns the interpreter of `program` within a command that may begin with a wrapper (`srun ... vllm serve`).
///
/// An explicit interpreter (`python -m vllm...`) is the result itself. For a script, its `#!` line contains the
/// result.
#[must_use]
pub fn python_of(command: &[String], program: &str) -> Option<String> {
    let name = |word: &String| Path::new(word).file_name().and_then(|name| name.to_str()).map(str::to_owned);
    if let Some(python) = command.iter().find(|word| name(word).is_some_and(|name| name.starts_with("python"))) {
        return Some(python.clone());
    }
    let script = command.iter().find(|word| name(word).as_deref() == Some(program))?;
    let file = std::fs::File::open(resolve_program(script)?).ok()?;
    let mut first = String::new();
    BufReader::new(file.take(MAX_SHEBANG)).read_line(&mut first).ok()?;
    let mut words = first.strip_prefix("#!")?.split_whitespace();
    let interpreter = words.next()?;
    // In `#!/usr/bin/env python3` the interpreter is the second word.
    if interpreter.ends_with("/env") { words.next().map(str::to_owned) } else { Some(interpreter.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_found_behind_wrappers_and_in_scripts() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let script = directory.path().join("vllm");
        std::fs::write(&script, "#!/opt/venv/bin/python3\nimport sys\n")?;
        let script = script.to_string_lossy().into_owned();
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (command, expected) in [
            (format!("{script} serve"), Some("/opt/venv/bin/python3")),
            (format!("srun --gres=gpu:1 {script} serve"), Some("/opt/venv/bin/python3")),
            ("/usr/bin/python3.11 -m vllm.entrypoints.cli.main serve".to_owned(), Some("/usr/bin/python3.11")),
            ("docker run image".to_owned(), None),
        ] {
            assert_eq!(python_of(&words(&command), "vllm").as_deref(), expected, "{command}");
        }
        Ok(())
    }
}
