//! Lines of an engine's log that may name a cause. A log also contains configurations, addresses of documentation and texts
//! of users: a prompt about running out of memory is no failure.

use std::sync::LazyLock;

use regex::Regex;

use super::{lost, traceback};

/// One line of a log without the prefix before its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// The process that wrote it, as its prefix names it; empty if there is none.
    process: &'a str,
    /// The message, its indentation kept.
    message: &'a str,
    level: Level,
    /// The exception that a traceback ends with on this line, without the prefix that the traceback's header has.
    raised: Option<&'a str>,
    /// Whether it is C++'s description of an exception that nobody caught.
    is_what: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Error,
    /// Below an error, and dumps of requests.
    Quiet,
    /// Without a logger: tracebacks, argparse, the interpreter itself.
    Plain,
}

/// Behind these words stands what a user has written.
const PROMPTS: [&str; 4] = ["prompt:", "prompt=", "'prompt'", "\"prompt\""];

/// Last words of the names of exceptions, for those that do not end a traceback: logged alone, or printed alone.
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

/// Lines of C++: `[rank3]:[E1124 09:11:41.123 ProcessGroupNCCL.cpp:1896] ` and `[E ProcessGroupNCCL.cpp:916] ` of torch,
/// `E1124 09:11:41.123456 123 a.cc:1] ` of glog, `[2024-08-02 01:57:45,520 E 97 38] a.cc:1: ` of Ray.
static NATIVE: LazyLock<Regex> = LazyLock::new(|| {
    compiled(
        r"^(?:\[?(?P<glog>[EWIF])(?:\d{3,4} [\d:.]+)?(?: +\d+)? [\w./-]+\.\w+:\d+\] |\[\d{4}-\d\d-\d\d [\d:,.]+ (?P<ray>[EWIFC]) \d+ \d+\] (?:[\w./() -]+:\d+: )?)",
    )
});

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|error| panic!("bug: the pattern {pattern:?}: {error}"))
}

/// Reads a log.
pub(super) fn read(log: &str) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = log.lines().map(Line::read).collect();
    for (at, raised) in traceback::raised(&lines) {
        lines[at].raised = Some(raised);
    }
    for at in 1..lines.len() {
        let above = lines[at - 1].message();
        let is_what = lines[at].message().starts_with("what():") && above.contains("terminate called after throwing");
        lines[at].is_what = is_what;
    }
    lines
}

impl<'a> Line<'a> {
    /// Reads `(EngineCore pid=7) ERROR 11-20 21:21:18 [core.py:1510] message`, the form without process or brackets of older
    /// releases, uvicorn's `ERROR:    message`, lines of C++, and lines without any of that.
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
            // Releases from 0.8 on write down, as errors, what was scheduled when a step failed.
            Some((place, _)) if place.contains("dump_input.py:") => new("", Level::Quiet),
            Some((_, message)) => new(message, level),
            None => new(after, level),
        }
    }

    pub(super) fn message(&self) -> &'a str {
        self.message.trim()
    }

    /// The message with its indentation.
    pub(super) fn text(&self) -> &'a str {
        self.message
    }

    /// Whether two lines belong to the same text: they have the same writer and the same kind of prefix.
    pub(super) fn continues(&self, other: &Self) -> bool {
        self.process == other.process && self.level == other.level
    }

    /// Part of a traceback above its exception, or a detail below it.
    pub(super) fn is_indented(&self) -> bool {
        self.level != Level::Quiet && self.message.starts_with([' ', '\t'])
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.level == Level::Quiet
    }

    /// What the line says of a failure, without the words of users; `None` if it says nothing of one.
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
        let is_complaint = self.exception().is_some() || is_last_word(self.message) || self.is_kernels_of_loss();
        if self.level == Level::Plain && !is_complaint {
            return None;
        }
        Some(without_prompt(self.message))
    }

    /// Whether nothing but the line itself shows that it is an error: it is neither logged as one, nor the end of a
    /// traceback, nor the kernel's or C++'s.
    pub(super) fn is_unfounded(&self) -> bool {
        self.level == Level::Plain && self.raised.is_none() && !self.is_what && !self.is_kernels_of_loss()
    }

    /// Whether it is a line of the kernel's own log about a device that is lost: `[ 12.3] NVRM: ...`,
    /// `... kernel: amdgpu 0000:03:00.0: ...`. The kernel writes a lot that is no failure.
    fn is_kernels_of_loss(&self) -> bool {
        static KERNEL: LazyLock<Regex> = LazyLock::new(|| {
            compiled(
                r"^(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ [\d:]+ \S+ |\d{4}-\d\d-\d\dT\S+ \S+ )?(?:kernel: ?)?(?:\[[ \d.]+\] ?)?(?:NVRM: |nvidia-nv(?:switch|link)\d*: |nvidia [\da-f]{4}:[\da-f]{2}:|amdgpu [\da-f]{4}:[\da-f]{2}:|\[drm[:\]])",
            )
        });
        let names = ["NVRM", "nvidia", "amdgpu", "drm"];
        self.level == Level::Plain
            && names.iter().any(|name| self.message.contains(name))
            && KERNEL.is_match(self.message)
            && lost::is_named_by(self.message, false)
    }

    /// The name of the exception that the line ends a traceback with, or that it has by its form.
    pub(super) fn exception(&self) -> Option<&'a str> {
        if let Some(raised) = self.raised {
            return traceback::name(raised);
        }
        if self.is_what {
            return Some("what()");
        }
        if self.level == Level::Quiet || self.is_indented() {
            return None;
        }
        let message = self.message.trim();
        let name = message.split_once(": ").map_or(message, |(name, _)| name);
        // `ray.exceptions.RayTaskError(RuntimeError)`
        let name = name.split('(').next().unwrap_or(name).trim_end_matches(':');
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._".contains(c));
        let last = name.rsplit('.').next().unwrap_or(name);
        // One word alone is the name of an exception without a message, or just a word.
        let suffices = |end: &&str| last.ends_with(end) && (message.len() > name.len() || last != "error");
        // `NVMLError_GpuIsLost`
        (is_name && (last.contains("Error_") || EXCEPTIONS.iter().any(suffices))).then_some(name)
    }
}

fn without_prompt(message: &str) -> &str {
    let end = PROMPTS.iter().filter_map(|prompt| message.find(prompt)).min();
    message[..end.unwrap_or(message.len())].trim()
}

/// Complaints that are neither logged nor exceptions: argparse's, the dynamic linker's, a container runtime's, and those of
/// what lies below Python.
fn is_last_word(message: &str) -> bool {
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

/// The innermost process that a prefix names, and the line without its prefix: `(Worker_TP0 pid=9) `, which several releases
/// write in colour, or a [`LABEL`].
fn split_process(line: &str) -> (&str, &str) {
    let (mut process, mut rest) = ("", skip_escapes(line));
    loop {
        let (found, after) = match rest.split_once(')') {
            Some((found, after)) if rest.starts_with('(') && found.contains(" pid=") => (found, after),
            // Logs have millions of lines: most show at their first character that they have no label.
            _ => match has_label(rest).then(|| LABEL.find(rest)).flatten() {
                Some(label) => rest.split_at(label.end()),
                None => return (process, rest),
            },
        };
        // A timestamp is no process.
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

/// Without `ESC [ ... m` at its beginning.
fn skip_escapes(mut text: &str) -> &str {
    while let Some((_, after)) = text.strip_prefix("\u{1b}[").and_then(|rest| rest.split_once('m')) {
        text = after;
    }
    text
}
