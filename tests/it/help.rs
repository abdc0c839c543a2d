//! The help texts for users. A change shows up in review; `INSTA_UPDATE=always cargo test` accepts it.

use crate::shell::commands;
use crate::support::Workplace;

#[test]
fn help_texts_are_as_reviewed() {
    let workplace = Workplace::new();
    let commands = commands(&workplace);
    assert!(commands.len() >= 21, "{commands:?}");
    for command in [""].into_iter().chain(commands.iter().map(String::as_str)) {
        let arguments: Vec<_> = [command, "--help"].into_iter().filter(|word| !word.is_empty()).collect();
        let ended = workplace.run(&arguments);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        let name = if command.is_empty() { "setpoint" } else { command };
        insta::assert_snapshot!(format!("help_{name}"), ended.stdout);
    }
    // The arguments of this subcommand are the engine's, but `--help` still describes the subcommand.
    let sim = workplace.run(&["sim", "serve", "--help"]);
    assert_eq!(sim.code, Some(0), "{}", sim.stderr);
    assert!(sim.stdout.contains("--sim-time-scale"), "{}", sim.stdout);
}
