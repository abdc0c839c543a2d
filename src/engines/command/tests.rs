//! Command lines and failures of described servers.

use std::path::PathBuf;

use super::*;
use crate::document::Document;
use crate::engine::ProcessExit;
use crate::facts::EngineVersion;
use crate::trial::FailureKind;

fn engine(text: &str) -> Arc<dyn Engine> {
    Document::from_text("study.toml", text).parse(read).unwrap()
}

fn line(engine: &dyn Engine, command: &[&str], args: &[&str]) -> String {
    let [command, args] = [command, args].map(|words| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let (devices, processors) = ("all".to_owned(), "0".to_owned());
    let (name, log) = ("n".to_owned(), PathBuf::from("/log"));
    let filling = crate::engine::PlaceholderValues {
        port: 8123,
        name,
        log,
        trial: 1,
        devices,
        processors,
        variables: Vec::new(),
    };
    let spec = LaunchSpec {
        command: &command,
        model: "/a.gguf",
        config: &Config::new().with("threads", 2_i64),
        args: &args,
        version: EngineVersion::LATEST,
        launch: Some(("127.0.0.1", &filling)),
    };
    engine.command_line(&spec).unwrap().words.join(" ")
}

#[test]
fn flags_stand_in_their_place_or_behind_the_command_and_nothing_else_is_added() {
    let engine = engine("");
    let command = ["serve", "-m={model}", "{flags}", "--port", "{port}"];
    assert_eq!(line(&*engine, &command, &[]), "serve -m=/a.gguf --threads 2 --port 8123");
    assert_eq!(line(&*engine, &["serve", "{port}"], &["{model}"]), "serve 8123 --threads 2 /a.gguf");
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(engine.check_command(&words("serve {model} {flags} {port}")), Ok(()));
    let not_alone = PlaceholderError::FlagsNotAlone("x{flags}".to_owned());
    assert_eq!(engine.check_command(&words("serve x{flags}")), Err(not_alone));
    let unknown = PlaceholderError::Unknown { name: "prt".to_owned() };
    assert_eq!(engine.check_command(&words("serve {prt}")), Err(unknown));
}

#[test]
fn a_failure_is_that_of_the_first_pattern_or_follows_from_the_exit() {
    let engine = engine(
        "failures = [{ pattern = 'no room', kind = 'host_memory' }, { pattern = 'bad (flag|word)', kind = 'invalid_argument' }]",
    );
    let of = |log: &str, exit, under_load| {
        let evidence =
            EngineEvidence { log, exit: Some(exit), under_load, oom_kills: 0, ended_by_tuner: false, own_models: &[] };
        let Failure { kind, message } = engine.diagnose(&evidence);
        (kind, message)
    };
    let expected = (FailureKind::InvalidArgument, "bad flag -x".to_owned());
    assert_eq!(of("start\nbad flag -x\nbye\n", ProcessExit::Code(1), false), expected);
    let expected = (FailureKind::StartupExit, "exit code 3; bye".to_owned());
    assert_eq!(of("start\nbye\n\n", ProcessExit::Code(3), false), expected);
    assert_eq!(of("", ProcessExit::Signal(11), true), (FailureKind::Crash, "signal 11; its log is empty".to_owned()));
    assert_eq!(of("no room", ProcessExit::Signal(9), true).0, FailureKind::Killed);
}

#[test]
fn a_server_that_announces_itself_needs_no_page_of_health() {
    assert_eq!(engine("").readiness().health.as_deref(), Some("/health"));
    assert_eq!(engine("ready_log = 'up'").readiness().health, None);
    let both = engine("ready_log = 'up'\nhealth = '/up'").readiness();
    assert!(both.health.as_deref() == Some("/up") && both.log.is_some_and(|log| log.is_match("it is up")));
}
