//! The preflight: the server's own parser, and the memory that `llama-fit-params` of the same build computes.
//!
//! `llama-server ARGUMENTS --version` ends when all arguments before `--version` were parsed. `llama-fit-params` creates
//! the model and the context as the server does, without an allocation (`common/fit.cpp`).

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::failure::diagnose;
use super::release::{InstalledBuild, probe};
use super::resolve::{SlotContext, slots_of};
use crate::config::Config;
use crate::engine::{EngineEvidence, PreflightCommands, ProcessExit};
use crate::facts::{HostLimits, ModelShape};
use crate::flag::FlagTable;

const ALLOCATOR: &str = "llama-fit-params";

/// The flag with the model's file.
const MODEL: &str = "model";

/// The checks by the programs of one build.
#[derive(Debug)]
pub(super) struct LlamaCppPreflight {
    /// The server's flags.
    pub(super) table: FlagTable,
    /// The names of the flags that all programs of the build have.
    pub(super) common: BTreeSet<String>,
}

impl LlamaCppPreflight {
    /// Returns the configuration of the allocator. `None` if the arguments cannot be read.
    fn allocated(&self, arguments: &[String]) -> Option<Config> {
        let asked = self.table.parse(arguments).ok()?;
        let mut kept = Config::new();
        for (flag, value) in asked.iter().filter(|(flag, _)| self.common.contains(*flag)) {
            kept.set(flag, value.clone());
        }
        // Its own default is one sequence with the length of the training. It does not know the server's automatic numbers.
        kept.set("parallel", i64::try_from(slots_of(&asked)).unwrap_or(i64::MAX));
        if let Some(model) = asked.get_str(MODEL).and_then(|path| ModelShape::read(Path::new(path)).ok()) {
            let context = SlotContext::of(&asked, &model);
            kept.set("ctx-size", i64::try_from(context.unpadded).unwrap_or(i64::MAX));
        }
        Some(kept)
    }
}

impl PreflightCommands for LlamaCppPreflight {
    fn engine(&self) -> &'static str {
        "llama.cpp"
    }

    fn describe(&self, program: &str) -> Vec<String> {
        probe(&[program.to_owned()]).unwrap_or_else(|| vec![program.to_owned(), "--version".to_owned()])
    }

    fn read_description(&self, output: &str) -> Option<(String, String)> {
        let found = InstalledBuild::read(output)?;
        let device = if found.has_no_device() { "cpu" } else { "cuda" };
        Some((found.build.to_string(), device.to_owned()))
    }

    fn parser(&self, program: &str, arguments: &[String]) -> Vec<String> {
        let words = std::iter::once(program).chain(arguments.iter().map(String::as_str)).chain(["--version"]);
        words.map(str::to_owned).collect()
    }

    fn allocator(&self, program: &str, arguments: &[String]) -> Option<Vec<String>> {
        let allocator = Path::new(program).with_file_name(ALLOCATOR);
        let config = self.allocated(arguments).filter(|config| config.get(MODEL).is_some())?;
        let words = self.table.render(&config).ok().filter(|_| allocator.is_file())?;
        let all = [allocator.to_string_lossy().into_owned()].into_iter().chain(words);
        Some(all.chain(["--fit-print", "on"].map(str::to_owned)).collect())
    }

    /// Reads lines such as `Host 93 180 97`: the MiB of weights, cache and compute buffers on a device.
    fn read_allocation(&self, output: &str) -> Result<Map<String, Json>, String> {
        let mut resolved = Map::new();
        for (device, [weights, cache, compute]) in output.lines().filter_map(read_line) {
            resolved.insert(
                format!("memory_mib_{}", device.to_lowercase()),
                json!({"weights": weights, "cache": cache, "compute": compute}),
            );
            // The weights are a mapped file, and need not be resident.
            let needed = cache.saturating_add(compute);
            let limit = HostLimits::detect().memory.map(|bytes| bytes >> 20);
            if let Some(limit) = limit.filter(|limit| device == "Host" && needed > *limit) {
                return Err(format!(
                    "the cache ({cache} MiB) and the compute buffers ({compute} MiB) exceed the host's memory ({limit} MiB)"
                ));
            }
        }
        Ok(resolved)
    }

    fn reason(&self, output: &str) -> String {
        let evidence = EngineEvidence {
            log: output,
            exit: Some(ProcessExit::Code(1)),
            under_load: false,
            oom_kills: 0,
            ended_by_tuner: false,
            own_models: &[],
        };
        diagnose(&evidence).message
    }
}

/// Reads the name of a device and its three sizes in MiB. `None` for another line.
fn read_line(line: &str) -> Option<(&str, [u64; 3])> {
    let mut words = line.split_whitespace();
    let device = words.next()?;
    let sizes: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some((device, sizes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::llama_cpp::help::common_names;
    use crate::engines::llama_cpp::{KNOWN_BUILD, KNOWN_FLAGS, KNOWN_HELP};

    fn preflight() -> LlamaCppPreflight {
        LlamaCppPreflight { table: KNOWN_FLAGS.for_version(KNOWN_BUILD), common: common_names(KNOWN_HELP) }
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_allocator_gets_the_flags_of_all_programs_and_the_number_of_slots() {
        let allocated = |line: &str| preflight().allocated(&words(line)).unwrap().to_string();
        let line = "-m m.gguf -c 4096 --batch-size 512 --cache-ram 64 --no-cache-prompt --metrics";
        assert_eq!(allocated(line), "batch-size=512 ctx-size=4096 model=m.gguf parallel=4");
        assert_eq!(allocated("-m m.gguf -np 8"), "model=m.gguf parallel=8");
        assert_eq!(preflight().allocator("/none/llama-server", &words("-m m.gguf")), None, "it is not installed");
    }

    #[test]
    fn the_memory_of_each_device_is_read() {
        let output = "0.00.1 I llama_fit_params: printing estimated memory\nHost 93 180 97 \n";
        let found = preflight().read_allocation(output).unwrap();
        assert_eq!(json!(found), json!({"memory_mib_host": {"weights": 93, "cache": 180, "compute": 97}}));
        let error = preflight().read_allocation("Host 93 99999999999 97").unwrap_err();
        assert!(error.starts_with("the cache (99999999999 MiB) and the compute buffers (97 MiB) exceed"), "{error}");
    }
}
