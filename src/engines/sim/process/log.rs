//! Log lines in vLLM's form. vLLM's own go to standard output; those of the web server and tracebacks go to standard
//! error.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::facts::EngineVersion;

type Sink = Box<dyn Write + Send>;

/// The two streams of the log. Cheap to clone; lines of concurrent tasks are not mixed.
#[derive(Clone)]
pub(crate) struct ServedLog {
    /// Whether every line begins with the name of its process, as since 0.10.
    names_process: bool,
    /// The name of the engine's process in log lines.
    core_name: Cow<'static, str>,
    /// Standard output and standard error.
    sinks: Arc<Mutex<(Sink, Sink)>>,
    /// Whether the streams are those of this process.
    is_stdio: bool,
}

impl fmt::Debug for ServedLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("core_name", &self.core_name).finish_non_exhaustive()
    }
}

impl ServedLog {
    /// Creates a log in the form of this release, on the streams of this process.
    #[must_use]
    pub(crate) fn stdio(version: EngineVersion) -> Self {
        Self { is_stdio: true, ..Self::new(version, Box::new(std::io::stdout()), Box::new(std::io::stderr())) }
    }

    #[must_use]
    pub(crate) fn new(version: EngineVersion, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self {
            names_process: version >= EngineVersion::new(0, 10, 0),
            core_name: if version >= EngineVersion::new(0, 20, 0) { "EngineCore" } else { "EngineCore_DP0" }.into(),
            sinks: Arc::new(Mutex::new((out, err))),
            is_stdio: false,
        }
    }

    /// Returns this log for the process of one of several engines.
    pub(super) fn of_engine(&self, number: usize) -> Self {
        Self { core_name: format!("EngineCore_DP{number}").into(), ..self.clone() }
    }

    /// Writes a line of the process that serves HTTP.
    pub(super) fn api_info(&self, file: &str, message: impl fmt::Display) {
        self.vllm("INFO", "APIServer", file, &message);
    }

    /// Writes a warning of the process that serves HTTP.
    pub(super) fn warning(&self, file: &str, message: impl fmt::Display) {
        self.vllm("WARNING", "APIServer", file, &message);
    }

    /// Writes a line of the engine's process.
    pub(super) fn core_info(&self, file: &str, message: impl fmt::Display) {
        self.vllm("INFO", &self.core_name, file, &message);
    }

    /// Writes errors of the process that serves HTTP, one log line for each line of the message.
    pub(super) fn api_error(&self, file: &str, message: &str) {
        message.lines().for_each(|line| self.vllm("ERROR", "APIServer", file, &line));
    }

    /// Like `api_error`, but for the engine's process.
    pub(super) fn core_error(&self, file: &str, message: &str) {
        message.lines().for_each(|line| self.vllm("ERROR", &self.core_name, file, &line));
    }

    /// Writes a line of uvicorn, the web server.
    pub(super) fn uvicorn(&self, message: impl fmt::Display) {
        self.write(&self.of_api(&format!("INFO:     {message}")), true);
    }

    /// Formats lines of the process that serves HTTP for standard error, each with its line end.
    pub(super) fn of_api(&self, text: &str) -> String {
        self.of("APIServer", text)
    }

    /// Like `of_api`, but for the engine's process.
    pub(super) fn of_core(&self, text: &str) -> String {
        self.of(&self.core_name, text)
    }

    fn of(&self, process: &str, text: &str) -> String {
        let prefix = if self.names_process { prefix(process) } else { String::new() };
        text.lines().flat_map(|line| [prefix.as_str(), line, "\n"]).collect()
    }

    /// Writes unchanged text to standard error.
    pub(super) fn raw(&self, text: &str) {
        self.write(text, true);
    }

    /// Closes both streams permanently: later output is lost.
    pub(super) fn close(&self) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        *sinks = (Box::new(std::io::sink()), Box::new(std::io::sink()));
        // The descriptors stay occupied. Otherwise a socket could get one of these numbers and receive printed output.
        if self.is_stdio
            && let Ok(null) = std::fs::File::options().write(true).open("/dev/null")
        {
            let _ = nix::unistd::dup2_stdout(&null);
            let _ = nix::unistd::dup2_stderr(&null);
        }
    }

    fn vllm(&self, level: &str, process: &str, file: &str, message: &dyn fmt::Display) {
        let time = Timestamp::now().strftime("%m-%d %H:%M:%S");
        let line = if self.names_process {
            format!("{}{level} {time} [{file}:1] {message}\n", prefix(process))
        } else {
            format!("{level} {time} {file}:1] {message}\n")
        };
        self.write(&line, false);
    }

    fn write(&self, line: &str, to_err: bool) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        let (out, err) = &mut *sinks;
        let sink = if to_err { err } else { out };
        // A closed log does not end the server.
        let _ = sink.write_all(line.as_bytes()).and_then(|()| sink.flush());
    }
}

fn prefix(process: &str) -> String {
    format!("({process} pid={}) ", std::process::id())
}
