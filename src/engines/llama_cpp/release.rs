//! The installed build, as the program describes itself: its number, its devices and its flags.

use std::path::Path;

use crate::facts::EngineVersion;

/// Prints the build, the devices and the flags. The program writes its version to standard error.
const PROBE: &str = r#"exec 2>&1; "$0" --version && "$0" --list-devices && "$0" --help"#;

/// The line before the names of the devices.
const DEVICES: &str = "Available devices:";

/// Returns the command that describes the installed program. `None` if the command names no `llama-server`.
pub(super) fn probe(command: &[String]) -> Option<Vec<String>> {
    let is_program = |word: &&String| Path::new(word).file_name().is_some_and(|name| name == "llama-server");
    let program = command.iter().find(is_program)?;
    Some(["sh", "-c", PROBE].map(str::to_owned).into_iter().chain([program.clone()]).collect())
}

/// The description of the installed program.
pub(super) struct InstalledBuild<'t> {
    pub(super) build: EngineVersion,
    devices: &'t str,
    /// The text of `--help`; empty if it is missing.
    pub(super) help: &'t str,
}

impl<'t> InstalledBuild<'t> {
    /// Reads the output of the probe, or a build alone, such as `b11434-3f5a7c1`. `None` without a build.
    pub(super) fn read(text: &'t str) -> Option<Self> {
        let (begin, rest) = text.split_once(DEVICES).unwrap_or((text, ""));
        let (devices, help) = rest.split_once("\n-----").unwrap_or((rest, ""));
        Some(Self { build: read_build(begin)?, devices, help })
    }

    /// Returns whether the program computes on processors only.
    pub(super) fn has_no_device(&self) -> bool {
        self.devices.trim() == "(none)"
    }
}

/// Reads `version: 0.6.0-dev (build 11434, commit 3f5a7c1)`, `version: 6000 (3f5a7c1)` of older builds, or `b11434`.
fn read_build(text: &str) -> Option<EngineVersion> {
    let number = |text: &str| {
        let digits = text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        format!("b{digits}").parse().ok()
    };
    let version = text.lines().find_map(|line| line.trim().strip_prefix("version: "));
    match version {
        Some(version) => match version.split_once("(build ") {
            Some((_, build)) => number(build),
            None => number(version),
        },
        None => text.trim().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_a_program_is_read() {
        let text = "version: 0.6.0-dev (build 11434, commit unknown)\nbuilt with GNU 12.2.0 for Linux x86_64\n\
                    Available devices:\n  (none)\n----- common params -----\n\n-h,    --help  print\n";
        let found = InstalledBuild::read(text).unwrap();
        assert_eq!((found.build, found.has_no_device()), (EngineVersion::build(11_434), true));
        assert!(found.help.contains("--help"));
        let gpu = text.replace("(none)", "CUDA0: NVIDIA H100 (81000 MiB, 80000 MiB free)");
        assert!(!InstalledBuild::read(&gpu).unwrap().has_no_device());
        for (text, expected) in [
            ("version: 6000 (3f5a7c1)\nbuilt with GNU 12.2.0", Some(6000)),
            ("b11434-unknown", Some(11_434)),
            ("sh: 1: llama-server: not found", None),
            ("0.32.0", None),
        ] {
            let build = InstalledBuild::read(text).map(|found| found.build);
            assert_eq!(build.filter(|build| build.minor == 0), expected.map(EngineVersion::build), "{text}");
        }
    }

    #[test]
    fn only_a_command_with_the_program_is_asked() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(probe(&words("numactl -N 0 /opt/llama-server")).unwrap()[3], "/opt/llama-server");
        assert_eq!(probe(&words("docker run image")), None);
    }
}
