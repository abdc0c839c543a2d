//! Verdicts by the engine's own programs, which run once for each question.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;

use super::{InstalledEngine, PreflightError, PreflightSetup, PreflightVerdict, RefusalStage};
use crate::engine::PreflightCommands;
use crate::server::{CommandEnd, end_of};

/// The programs of an installed engine, and their environment.
#[derive(Debug)]
pub(super) struct CommandHelper {
    commands: Arc<dyn PreflightCommands>,
    program: String,
    env: BTreeMap<String, String>,
}

impl CommandHelper {
    /// Describes the engine, and checks the arguments of the warm-up.
    pub(super) async fn start(
        commands: &Arc<dyn PreflightCommands>,
        setup: &PreflightSetup,
    ) -> Result<(Self, InstalledEngine), PreflightError> {
        let (commands, program) = (Arc::clone(commands), setup.executable.clone());
        let helper = Self { commands, program, env: setup.env.clone() };
        let none = BTreeMap::new();
        let described = helper.run(&helper.commands.describe(&helper.program), &none, setup.limits.import).await?;
        let (version, device) = helper.commands.read_description(&described.output).ok_or_else(|| {
            let (program, engine) = (&helper.program, helper.commands.engine());
            PreflightError::Start(format!("{program:?} does not describe itself as {engine}"))
        })?;
        let warm_up = helper.ask(&setup.warm_up, &none, setup.limits.warm_up).await?;
        Ok((helper, InstalledEngine { version, device, flags: None, missing_packages: BTreeSet::new(), warm_up }))
    }

    /// Returns the verdict on one command line. `env` is added to the environment for this question alone.
    pub(super) async fn ask(
        &self,
        args: &[String],
        env: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<PreflightVerdict, PreflightError> {
        let reject = |stage, message| Ok(PreflightVerdict::Reject { stage, message });
        let parsed = self.run(&self.commands.parser(&self.program, args), env, limit).await?;
        if !parsed.succeeded {
            return reject(RefusalStage::Arguments, self.commands.reason(&parsed.output));
        }
        let Some(allocator) = self.commands.allocator(&self.program, args) else {
            return Ok(PreflightVerdict::Accept { resolved: Map::new(), warnings: Vec::new() });
        };
        let allocated = self.run(&allocator, env, limit).await?;
        if !allocated.succeeded {
            return reject(RefusalStage::Configuration, self.commands.reason(&allocated.output));
        }
        match self.commands.read_allocation(&allocated.output) {
            Ok(resolved) => Ok(PreflightVerdict::Accept { resolved, warnings: Vec::new() }),
            Err(reason) => reject(RefusalStage::Configuration, reason),
        }
    }

    async fn run(
        &self,
        command: &[String],
        env: &BTreeMap<String, String>,
        limit: Duration,
    ) -> Result<CommandEnd, PreflightError> {
        let mut all = self.env.clone();
        all.extend(env.clone());
        end_of(command, &all, limit).await.map_err(PreflightError::Broken)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value as Json, json};

    use super::*;
    use crate::engine::PreflightProgram;
    use crate::preflight::{Preflight, PreflightLimits};
    use crate::server::Marker;

    /// Refuses the argument `bad` while it parses, and computes a memory of as many MiB as there are arguments.
    #[derive(Debug)]
    struct ShellEngine;

    fn shell(script: &str, program: &str, arguments: &[String]) -> Vec<String> {
        ["sh", "-c", script, program].into_iter().map(str::to_owned).chain(arguments.iter().cloned()).collect()
    }

    impl PreflightCommands for ShellEngine {
        fn engine(&self) -> &'static str {
            "the shell"
        }

        fn describe(&self, program: &str) -> Vec<String> {
            vec!["echo".to_owned(), program.to_owned()]
        }

        fn read_description(&self, output: &str) -> Option<(String, String)> {
            let (release, device) = output.trim().split_once(' ')?;
            Some((release.to_owned(), device.to_owned()))
        }

        fn parser(&self, program: &str, arguments: &[String]) -> Vec<String> {
            shell(r#"for word; do [ "$word" != bad ] || { echo "no $word" >&2; exit 1; }; done"#, program, arguments)
        }

        fn allocator(&self, program: &str, arguments: &[String]) -> Option<Vec<String>> {
            let script = r#"[ "$#" -gt 0 ] || exit 3; echo "$# $SPEED""#;
            (arguments != ["alone"]).then(|| shell(script, program, arguments))
        }

        fn read_allocation(&self, output: &str) -> Result<Map<String, Json>, String> {
            let (size, speed) = output.trim().split_once(' ').ok_or("no memory")?;
            if size == "3" {
                Err("3 are too many".to_owned())
            } else {
                Ok([(speed.to_owned(), json!(size))].into_iter().collect())
            }
        }

        fn reason(&self, output: &str) -> String {
            output.trim().to_owned()
        }
    }

    fn start(executable: &str) -> Preflight {
        Preflight::start(PreflightSetup {
            program: PreflightProgram::Commands(Arc::new(ShellEngine)),
            executable: executable.to_owned(),
            env: BTreeMap::from([("SPEED".to_owned(), "slow".to_owned())]),
            marker: Marker::helper(Path::new("/"), "test", "commands"),
            warm_up: vec!["alone".to_owned()],
            limits: PreflightLimits::default(),
        })
    }

    #[tokio::test]
    async fn the_parser_and_the_allocator_decide() {
        let preflight = start("b7 cpu");
        let installed = preflight.wait_until_ready().await.unwrap();
        assert_eq!((&*installed.version, &*installed.device, &installed.flags), ("b7", "cpu", &None));
        let accept = |resolved: Json| PreflightVerdict::Accept {
            resolved: resolved.as_object().unwrap().clone(),
            warnings: Vec::new(),
        };
        assert_eq!(installed.warm_up, accept(json!({})));
        let reject = |stage, message: &str| PreflightVerdict::Reject { stage, message: message.to_owned() };
        let fast = BTreeMap::from([("SPEED".to_owned(), "fast".to_owned())]);
        for (words, env, expected) in [
            ("a b", BTreeMap::new(), accept(json!({"slow": "2"}))),
            ("a b", fast, accept(json!({"fast": "2"}))),
            ("a bad b", BTreeMap::new(), reject(RefusalStage::Arguments, "no bad")),
            ("a b c", BTreeMap::new(), reject(RefusalStage::Configuration, "3 are too many")),
            ("", BTreeMap::new(), reject(RefusalStage::Configuration, "")),
        ] {
            let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
            assert_eq!(preflight.ask(&words, &env).await, Ok(expected), "{words:?}");
        }
        preflight.stop().await;
    }

    #[tokio::test]
    async fn a_program_that_is_another_one_gives_no_verdict() {
        let preflight = start("nothing");
        let error = preflight.wait_until_ready().await.unwrap_err();
        assert_eq!(error.to_string(), "\"nothing\" does not describe itself as the shell");
        assert!(error.is_final());
    }
}
