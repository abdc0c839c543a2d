//! llama.cpp's server, `llama-server`: its flags by build, rules, log, and the causes of its failures.

mod failure;
mod help;
mod log;
mod preflight;
mod preset;
mod release;
mod resolve;
mod rules;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, OnceLock};

use self::failure::diagnose;
use self::help::common_names;
use self::log::LlamaCppLog;
use self::preflight::LlamaCppPreflight;
use self::release::{InstalledBuild, probe};
use self::rules::LLAMA_CPP_RULES;
use super::EngineKind;
use crate::engine::{
    Engine, EngineEvidence, LaunchSpec, LogReader, MetricsPage, ModelNameCheck, PreflightProgram, Readiness,
    ReleasePage, ServerStarts, resolve_program,
};
use crate::facts::{Device, EngineVersion};
use crate::flag::{FlagBook, FlagError};
use crate::rule::EngineRules;
use crate::trial::{CommandLine, Failure};

/// The name in study files, and of the server's dialect.
const KIND: &str = "llama.cpp";

/// The build with the flags of [`KNOWN_FLAGS`].
const KNOWN_BUILD: EngineVersion = EngineVersion::build(11_434);

/// The text of the known build's `--help`.
const KNOWN_HELP: &str = include_str!("help-b11434.txt");

/// The flags of the known build.
pub(in crate::engines) static KNOWN_FLAGS: LazyLock<FlagBook> = LazyLock::new(|| flag_book(KNOWN_HELP, KNOWN_BUILD));

/// The variable with the server's API key (`--api-key` in `common/arg.cpp`).
const API_KEY_VARIABLE: &str = "LLAMA_API_KEY";

/// llama.cpp's server in the registry.
pub(super) static ENGINE: EngineKind = EngineKind {
    name: KIND,
    variables: &["LLAMA_", "GGML_"],
    read: |_| Ok(Arc::new(LlamaCppEngine::default())),
    built_in: Some(|| Arc::new(LlamaCppEngine::default())),
};

/// Images of the project, from `.devops/*.Dockerfile`.
static STARTS: ServerStarts = ServerStarts {
    program: &["llama-server"],
    in_image: &["/app/llama-server"],
    request: &["curl", "--fail", "--silent", "--max-time", "10", "{url}"],
    modules: &[],
    images: &["llama.cpp"],
};

const IMAGE: &str = "ghcr.io/ggml-org/llama.cpp";

/// The word before the model on the command line.
const MODEL_FLAG: &str = "-m";

/// Flags that may change the replies: number formats of the cache, kernels, and speculation, which is exact only up to
/// rounding.
const LOSSY_FLAGS: [&str; 8] = [
    "cache-type-k",
    "cache-type-v",
    "flash-attn",
    "repack",
    "spec-draft-model",
    "spec-draft-type-k",
    "spec-draft-type-v",
    "spec-type",
];

#[derive(Debug, Default)]
struct LlamaCppEngine {
    /// The installed program, if its flags were read.
    installed: OnceLock<InstalledFlags>,
}

/// The flags of the installed program.
#[derive(Debug)]
struct InstalledFlags {
    book: &'static FlagBook,
    build: EngineVersion,
    /// The names of the flags that all programs of the build have.
    common: BTreeSet<String>,
}

/// Creates a book of one build. It lives as long as the program.
fn flag_book(help: &str, build: EngineVersion) -> FlagBook {
    FlagBook::new("llama.cpp", Box::leak(help::flag_facts(help, build).into_boxed_str()), "{}")
}

impl LlamaCppEngine {
    fn book(&self) -> &'static FlagBook {
        self.installed.get().map_or(&*KNOWN_FLAGS, |installed| installed.book)
    }
}

impl Engine for LlamaCppEngine {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn default_command(&self) -> std::io::Result<Vec<String>> {
        Ok(vec!["llama-server".to_owned()])
    }

    /// Returns `COMMAND -m MODEL [flags] [arguments of the study] [--metrics] [--host --port]`.
    fn command_line(&self, spec: &LaunchSpec<'_>) -> Result<CommandLine, FlagError> {
        let mut command = spec.command.to_vec();
        command.push(MODEL_FLAG.to_owned());
        let line = LaunchSpec { command: &command, ..*spec }.command_line(self.book().for_version(spec.version))?;
        // Without this word the server has no metrics page.
        let is_added = spec.launch.is_some() && !line.words.iter().any(|word| word == "--metrics");
        Ok(if is_added { line.with_address_word("--metrics") } else { line })
    }

    fn flags(&self) -> Option<&'static FlagBook> {
        Some(self.book())
    }

    fn server_starts(&self) -> Option<&'static ServerStarts> {
        Some(&STARTS)
    }

    fn model_flag(&self) -> Option<&'static str> {
        Some(MODEL_FLAG)
    }

    /// Returns the image of a build for processors or for CUDA.
    fn container_image(&self, reported: &str, has_gpu: bool) -> Option<String> {
        let build: EngineVersion = reported.parse().ok().filter(|_| reported.starts_with('b'))?;
        Some(format!("{IMAGE}:{}-{build}", if has_gpu { "server-cuda" } else { "server" }))
    }

    fn preset(&self, arguments: &[String], version: EngineVersion) -> Option<Result<Vec<(String, String)>, String>> {
        Some(preset::entries(self.book().for_version(version), arguments))
    }

    fn lossy_flags(&self) -> &'static [&'static str] {
        &LOSSY_FLAGS
    }

    fn rules(&self) -> Option<&'static dyn EngineRules> {
        Some(LLAMA_CPP_RULES)
    }

    fn log_reader(&self) -> Option<&dyn LogReader> {
        Some(&LlamaCppLog)
    }

    fn diagnose(&self, evidence: &EngineEvidence<'_>) -> Failure {
        diagnose(evidence)
    }

    /// Returns `/health`, which answers with status 503 until the model is loaded.
    fn readiness(&self) -> Readiness {
        Readiness {
            health: Some("/health".to_owned()),
            log: None,
            model_name: ModelNameCheck::IfListed,
            release: ReleasePage { path: "/props", key: "build_info" },
        }
    }

    fn dialect(&self) -> &'static str {
        KIND
    }

    fn metrics(&self) -> Option<MetricsPage> {
        Some(MetricsPage::usual())
    }

    fn api_key_variable(&self) -> Option<&str> {
        Some(API_KEY_VARIABLE)
    }

    fn reads_gguf(&self) -> bool {
        true
    }

    fn version_probe(&self, command: &[String]) -> Option<Vec<String>> {
        probe(command)
    }

    /// Reads the build, and the flags of a build that is not known yet.
    fn read_release(&self, reported: &str) -> Option<EngineVersion> {
        let found = InstalledBuild::read(reported)?;
        if found.build != KNOWN_BUILD && !found.help.is_empty() {
            self.installed.get_or_init(|| InstalledFlags {
                book: Box::leak(Box::new(flag_book(found.help, found.build))),
                build: found.build,
                common: common_names(found.help),
            });
        }
        Some(found.build)
    }

    fn preflight(&self) -> Option<PreflightProgram> {
        let (build, common) = match self.installed.get() {
            Some(installed) => (installed.build, installed.common.clone()),
            None => (KNOWN_BUILD, common_names(KNOWN_HELP)),
        };
        let checks = LlamaCppPreflight { table: self.book().for_version(build), common };
        Some(PreflightProgram::Commands(Arc::new(checks)))
    }

    /// Returns the program of a direct command only. A wrapper may run it elsewhere.
    fn preflight_executable(&self, command: &[String]) -> Option<String> {
        let [program] = command else { return None };
        probe(command)?;
        Some(resolve_program(program)?.to_string_lossy().into_owned())
    }

    fn device(&self, _: &[String], reported: Option<&str>) -> Option<Device> {
        InstalledBuild::read(reported?)?.has_no_device().then_some(Device::Cpu)
    }

    fn first_space(&self, device: Device, _: bool) -> Option<&'static str> {
        Some(match device {
            Device::Cpu => "search_spaces/llama.cpp/cpu.toml",
            Device::Cuda(_) => "search_spaces/llama.cpp/gpu.toml",
        })
    }
}
