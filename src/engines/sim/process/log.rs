//! Log lines in vLLM's form: its own on standard output, the web server's and tracebacks on standard error.

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use crate::facts::EngineVersion;

type Sink = Box<dyn Write + Send>;

/// Where the lines go. Cheap to clone; lines of several tasks are not mixed.
#[derive(Clone)]
pub(crate) struct Log {
    /// Since 0.10 every line begins with the process that wrote it.
    names_process: bool,
    core_name: Cow<'static, str>,
    sinks: Arc<Mutex<(Sink, Sink)>>,
    /// Whether they are the process's own streams.
    own: bool,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("core_name", &self.core_name).finish_non_exhaustive()
    }
}

impl Log {
    /// Lines in the form of this release, on the process's own streams.
    #[must_use]
    pub(crate) fn stdio(version: EngineVersion) -> Self {
        Self { own: true, ..Self::new(version, Box::new(std::io::stdout()), Box::new(std::io::stderr())) }
    }

    #[must_use]
    pub(crate) fn new(version: EngineVersion, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Self {
            names_process: version >= EngineVersion::new(0, 10, 0),
            core_name: if version >= EngineVersion::new(0, 20, 0) { "EngineCore" } else { "EngineCore_DP0" }.into(),
            sinks: Arc::new(Mutex::new((out, err))),
            own: false,
        }
    }

    /// The same for the process of one of several engines.
    pub(super) fn of_engine(&self, number: usize) -> Self {
        Self { core_name: format!("EngineCore_DP{number}").into(), ..self.clone() }
    }

    /// A line of the process that serves HTTP.
    pub(super) fn api(&self, file: &str, message: impl fmt::Display) {
        self.vllm("INFO", "APIServer", file, &message);
    }

    /// A line of the same process about what it does otherwise than asked.
    pub(super) fn warning(&self, file: &str, message: impl fmt::Display) {
        self.vllm("WARNING", "APIServer", file, &message);
    }

    /// A line of the engine's process.
    pub(super) fn core(&self, file: &str, message: impl fmt::Display) {
        self.vllm("INFO", &self.core_name, file, &message);
    }

    /// Errors of the process that serves HTTP; each line of the message becomes one of the log.
    pub(super) fn api_error(&self, file: &str, message: &str) {
        message.lines().for_each(|line| self.vllm("ERROR", "APIServer", file, &line));
    }

    /// The same of the engine's process.
    pub(super) fn core_error(&self, file: &str, message: &str) {
        message.lines().for_each(|line| self.vllm("ERROR", &self.core_name, file, &line));
    }

    /// A line of uvicorn, the web server.
    pub(super) fn uvicorn(&self, message: impl fmt::Display) {
        self.write(&self.of_api(&format!("INFO:     {message}")), true);
    }

    /// Lines as the process that serves HTTP writes them to standard error, each with its end.
    pub(super) fn of_api(&self, text: &str) -> String {
        self.of("APIServer", text)
    }

    /// The same of the engine's process.
    pub(super) fn of_core(&self, text: &str) -> String {
        self.of(&self.core_name, text)
    }

    fn of(&self, process: &str, text: &str) -> String {
        let prefix = if self.names_process { prefix(process) } else { String::new() };
        text.lines().flat_map(|line| [prefix.as_str(), line, "\n"]).collect()
    }

    /// Text as it is, to standard error.
    pub(super) fn raw(&self, text: &str) {
        self.write(text, true);
    }

    /// Closes both streams for good: what is written later is lost.
    pub(super) fn close(&self) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        *sinks = (Box::new(std::io::sink()), Box::new(std::io::sink()));
        // The numbers stay taken: a socket that got one of them would be written to by whoever prints.
        if self.own
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
        // A log that nobody reads any more does not end the server.
        let _ = sink.write_all(line.as_bytes()).and_then(|()| sink.flush());
    }
}

fn prefix(process: &str) -> String {
    format!("({process} pid={}) ", std::process::id())
}
