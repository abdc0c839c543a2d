//! Fast starts of engines in Python: a process that has imported the engine forks instead of a new interpreter.

/// The requirements of an engine's fast starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastStart {
    /// The interpreter of the launch command.
    pub python: String,
    /// The command with the path of its launcher script. `python -m MODULE` stays as it is.
    pub command: Vec<String>,
    /// Modules that most of the engine's processes import. A release may lack some.
    pub modules: &'static [&'static str],
}

impl FastStart {
    /// Returns the fast start of a command line that begins with `SCRIPT` or `python -m MODULE`. `program` is the name of
    /// the script. `None` for a wrapper, because a fork cannot run it.
    #[must_use]
    pub fn of_command(command: &[String], program: &str, modules: &'static [&'static str]) -> Option<Self> {
        let (first, rest) = command.split_first()?;
        let file_name = |word: &str| Some(std::path::Path::new(word).file_name()?.to_str()?.to_owned());
        let python = super::python_of(std::slice::from_ref(first), program)?;
        if !file_name(&python)?.starts_with("python") {
            return None;
        }
        let command = if file_name(first)?.starts_with("python") {
            // Other options of the interpreter would have no effect.
            (rest.first().is_some_and(|word| word == "-m") && rest.len() > 1).then(|| command.to_vec())?
        } else {
            let script = super::resolve_program(first)?.to_str()?.to_owned();
            std::iter::once(script).chain(rest.iter().cloned()).collect()
        };
        Some(Self { python, command, modules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_modules_start_fast_and_wrappers_do_not() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let script = directory.path().join("vllm");
        std::fs::write(&script, "#!/opt/venv/bin/python3\nimport sys\n")?;
        let script = script.to_string_lossy().into_owned();
        let python = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            FastStart::of_command(&words, "vllm", &["vllm"]).map(|fast| (fast.python, fast.command.join(" ")))
        };
        let serve = format!("{script} serve --port 1");
        assert_eq!(python(&serve), Some(("/opt/venv/bin/python3".to_owned(), serve.clone())));
        let module = "/usr/bin/python3 -m vllm.entrypoints.cli.main serve";
        assert_eq!(python(module), Some(("/usr/bin/python3".to_owned(), module.to_owned())));
        for line in
            [format!("numactl -N 0 {serve}"), "/usr/bin/python3 -X dev -m vllm".to_owned(), "sh -c x".to_owned()]
        {
            assert_eq!(python(&line), None, "{line}");
        }
        Ok(())
    }
}
