//! Lines of an engine's log that may name a cause. A log also contains configurations, links to documentation and
//! texts of users. For example, a prompt about running out of memory is no failure.

use std::sync::LazyLock;

use regex::Regex;

use super::{lost_device, traceback};

/// One line of a log without the prefix before its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogLine<'a> {
    /// The process that wrote the line, according to its prefix. Empty if there is none.
    process: &'a str,
    /// The message, including its indentation.
    message: &'a str,
    level: Level,
    /// The exception at the end of a traceback on this line, without the prefix of the traceback's header.
    raised: Option<&'a str>,
    /// Whether it is a `what():` line. C++ describes an uncaught exception there.
    is_what: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    /// Levels below an error, and dumps of requests.
    Quiet,
    /// Text without a logger: tracebacks, argparse, the interpreter itself.
    Plain,
}

/// Marks that precede a user's text.
const PROMPTS: [&str; 4] = ["prompt:", "prompt=", "'prompt'", "\"prompt\""];

/// Endings of exception names, for exceptions that do not end a traceback but are logged or printed alone.
const EXCEPTIONS: [&str; 9] = [
    "Error",
    "Exception",
    "error",
    "KeyboardInterrupt",
    "OutOfResources",
    "OfflineModeIsEnabled",
    "BackendCompilerFailed",
    "Unsupported",
    "Timeout",
];

/// Prefixes besides vLLM's own: `[rank0]: ` of torch, `[default0]:` of torchrun, `[1,0]<stderr>:` of mpirun, `0: ` of
/// `srun --label`, `vllm-1  | ` of docker compose, `2026-11-24T09:11:41.5Z stderr F ` of Kubernetes.
static LABEL: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^(?:\[(?:rank|default)\d+\]: ?|\[\d+,\d+\](?:<std(?:err|out)>)?: ?|\d{1,5}: |[a-z0-9._-]*-\d+ +\| ?|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-][\d:]+) (?:std(?:err|out) [FP] )?)",
    )
});

/// Prefixes of C++ loggers. Examples: `[rank3]:[E1124 09:11:41.123 ProcessGroupNCCL.cpp:1896] ` and
/// `[E ProcessGroupNCCL.cpp:916] ` of torch, `E1124 09:11:41.123456 123 a.cc:1] ` of glog,
/// `[2024-08-02 01:57:45,520 E 97 38] a.cc:1: ` of Ray.
static NATIVE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^(?:\[?(?P<glog>[EWIF])(?:\d{3,4} [\d:.]+)?(?: +\d+)? [\w./-]+\.\w+:\d+\] |\[\d{4}-\d\d-\d\d [\d:,.]+ (?P<ray>[EWIFC]) \d+ \d+\] (?:[\w./() -]+:\d+: )?)",
    )
});

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|error| panic!("bug: the pattern {pattern:?}: {error}"))
}

/// Reads a log.
pub(super) fn read(log: &str) -> Vec<LogLine<'_>> {
    let mut lines: Vec<LogLine<'_>> = log.lines().map(LogLine::read).collect();
    for (at, raised) in traceback::find_exceptions(&lines) {
        lines[at].raised = Some(raised);
    }
    for at in 1..lines.len() {
        let above = lines[at - 1].message();
        let is_what = lines[at].message().starts_with("what():") && above.contains("terminate called after throwing");
        lines[at].is_what = is_what;
    }
    lines
}

impl<'a> LogLine<'a> {
    /// Reads `(EngineCore pid=7) ERROR 11-20 21:21:18 [core.py:1510] message`, the form without process or brackets of
    /// older releases, uvicorn's `ERROR:    message`, lines of C++, and lines without any prefix.
    fn read(line: &'a str) -> Self {
        let line = line.trim_end();
        let (process, rest) = split_process(line);
        let new = |message, level| Self { process, message, level, raised: None, is_what: false };
        let may_be_native = rest.starts_with(['[', 'E', 'W', 'I', 'F']);
        if let Some(native) = may_be_native.then(|| NATIVE.captures(rest)).flatten() {
            let level = native.name("glog").or_else(|| native.name("ray")).map_or("", |level| level.as_str());
            let level = if matches!(level, "E" | "F" | "C") { Level::Error } else { Level::Quiet };
            return new(&rest[native[0].len()..], level);
        }
        let (word, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_uppercase()).unwrap_or(rest.len()));
        let level = match word {
            "ERROR" | "CRITICAL" | "FATAL" => Level::Error,
            "INFO" | "WARNING" | "DEBUG" => Level::Quiet,
            _ => return new(rest, Level::Plain),
        };
        if let Some(message) = after.strip_prefix(':') {
            return new(message.trim_start(), level);
        }
        match after.split_once("] ") {
            // Releases from 0.8 on log the scheduled requests as an error when a step fails.
            Some((place, _)) if place.contains("dump_input.py:") => new("", Level::Quiet),
            Some((_, message)) => new(message, level),
            None => new(after, level),
        }
    }

    pub(super) fn message(&self) -> &'a str {
        self.message.trim()
    }

    /// Returns the message with its indentation.
    pub(super) fn text(&self) -> &'a str {
        self.message
    }

    /// Returns whether two lines belong to the same text: they have the same writer and the same kind of prefix.
    pub(super) fn continues(&self, other: &Self) -> bool {
        self.process == other.process && self.level == other.level
    }

    /// Returns whether the line is part of a traceback above its exception, or a detail below it.
    pub(super) fn is_indented(&self) -> bool {
        self.level != Level::Quiet && self.message.starts_with([' ', '\t'])
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.level == Level::Quiet
    }

    /// Returns the line's text about a failure, without text of users. `None` if the line is not about a failure.
    pub(super) fn complaint(&self) -> Option<&'a str> {
        if let Some(raised) = self.raised {
            return Some(without_prompt(raised));
        }
        if self.is_what {
            return self.message().strip_prefix("what():").map(str::trim);
        }
        if self.level == Level::Quiet || self.is_indented() || self.message.is_empty() {
            return None;
        }
        let is_complaint =
            self.exception().is_some() || is_bare_complaint(self.message) || self.is_kernel_device_loss();
        if self.level == Level::Plain && !is_complaint {
            return None;
        }
        Some(without_prompt(self.message))
    }

    /// Returns whether the line's own text is the only sign of an error. Such a line is not logged as an error, ends
    /// no traceback, and comes neither from the kernel nor from C++.
    pub(super) fn is_weak_evidence(&self) -> bool {
        self.level == Level::Plain && self.raised.is_none() && !self.is_what && !self.is_kernel_device_loss()
    }

    /// Returns whether it is a line of the kernel's own log about a lost device: `[ 12.3] NVRM: ...`,
    /// `... kernel: amdgpu 0000:03:00.0: ...`. Most other lines of the kernel are no failures.
    fn is_kernel_device_loss(&self) -> bool {
        static KERNEL: LazyLock<Regex> = LazyLock::new(|| {
            compiled(
                r"^(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ [\d:]+ \S+ |\d{4}-\d\d-\d\dT\S+ \S+ )?(?:kernel: ?)?(?:\[[ \d.]+\] ?)?(?:NVRM: |nvidia-nv(?:switch|link)\d*: |nvidia [\da-f]{4}:[\da-f]{2}:|amdgpu [\da-f]{4}:[\da-f]{2}:|\[drm[:\]])",
            )
        });
        let names = ["NVRM", "nvidia", "amdgpu", "drm"];
        self.level == Level::Plain
            && names.iter().any(|name| self.message.contains(name))
            && KERNEL.is_match(self.message)
            && lost_device::names_lost_device(self.message, false)
    }

    /// Returns the name of the exception that ends a traceback on this line, or that the line has by its form.
    pub(super) fn exception(&self) -> Option<&'a str> {
        if let Some(raised) = self.raised {
            return traceback::class_name(raised);
        }
        if self.is_what {
            return Some("what()");
        }
        if self.level == Level::Quiet || self.is_indented() {
            return None;
        }
        let message = self.message.trim();
        let name = message.split_once(": ").map_or(message, |(name, _)| name);
        // For instance `ray.exceptions.RayTaskError(RuntimeError)`.
        let name = name.split('(').next().unwrap_or(name).trim_end_matches(':');
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
        let last = name.rsplit('.').next().unwrap_or(name);
        // A single word may be an exception without a message, or just a word.
        let suffices = |end: &&str| last.ends_with(end) && (message.len() > name.len() || last != "error");
        // For instance `NVMLError_GpuIsLost`.
        (is_name && (last.contains("Error_") || EXCEPTIONS.iter().any(suffices))).then_some(name)
    }
}

fn without_prompt(message: &str) -> &str {
    let end = PROMPTS.iter().filter_map(|prompt| message.find(prompt)).min();
    message[..end.unwrap_or(message.len())].trim()
}

/// Returns whether the message is a complaint that is neither logged nor an exception. Such complaints come from
/// argparse, the dynamic linker, a container runtime, and the layers below Python.
fn is_bare_complaint(message: &str) -> bool {
    let first = [
        "terminate called after",
        "Fatal Python error",
        "!!!!!!! Segfault",
        "Segmentation fault",
        "NVIDIA-SMI has failed",
        "Failed to initialize NVML",
        "Unable to determine the device handle",
        "docker: ",
        "Cannot connect to the Docker daemon",
        "HW Exception by GPU",
        "Memory access fault by GPU",
    ];
    let within = [": error: ", "error while loading shared libraries: ", "nvidia-container-cli: "];
    within.iter().any(|words| message.contains(words)) || first.iter().any(|words| message.starts_with(words))
}

/// Returns the innermost process in a prefix, and the line without its prefix. A prefix is `(Worker_TP0 pid=9) `, in
/// colour in several releases, or a [`LABEL`].
fn split_process(line: &str) -> (&str, &str) {
    let (mut process, mut rest) = ("", skip_escapes(line));
    loop {
        let (found, after) = match rest.split_once(')') {
            Some((found, after)) if rest.starts_with('(') && found.contains(" pid=") => (found, after),
            // Logs have millions of lines. For most of them the first character excludes a label.
            _ => match has_label(rest).then(|| LABEL.find(rest)).flatten() {
                Some(label) => rest.split_at(label.end()),
                None => return (process, rest),
            },
        };
        // A timestamp does not name a process.
        if !found.starts_with("20") {
            process = found;
        }
        let after = skip_escapes(after);
        rest = if found.starts_with('(') { skip_escapes(after.strip_prefix(' ').unwrap_or(after)) } else { after };
    }
}

fn has_label(line: &str) -> bool {
    line.starts_with(['[', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) || line.contains("| ")
}

/// Removes `ESC [ ... m` at the beginning.
fn skip_escapes(mut text: &str) -> &str {
    while let Some((_, after)) = text.strip_prefix("\u{1b}[").and_then(|rest| rest.split_once('m')) {
        text = after;
    }
    text
}
