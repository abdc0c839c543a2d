//! `completions`: scripts that complete commands, options and their values in a shell.

use clap::{Args, Command};
use clap_complete::Shell;

use super::failure::CommandFailure;
use super::output::print;

#[derive(Debug, Args)]
pub(super) struct CompletionsCommand {
    /// The shell that reads the script.
    #[arg(value_enum)]
    shell: Shell,
}

impl CompletionsCommand {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        print(&script(self.shell, &super::command()))
    }
}

fn script(shell: Shell, program: &Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(program), program.get_name(), &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns the command without its hidden subcommands, which the generators would offer as well.
fn visible(command: &Command) -> Command {
    let shown = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(command.is_disable_help_flag_set())
        .args(command.get_arguments().cloned())
        .groups(command.get_groups().cloned())
        .subcommands(command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).map(visible));
    match command.get_version() {
        Some(version) => shown.version(version.to_owned()).propagate_version(command.is_propagate_version_set()),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_gets_all_commands_and_options_that_are_not_hidden() {
        let program = crate::cli::command();
        for shell in Shell::value_variants() {
            let script = script(*shell, &program);
            for command in program.get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
                for long in command.get_arguments().filter_map(clap::Arg::get_long) {
                    assert!(script.contains(long), "{shell}: {} --{long}", command.get_name());
                }
            }
            assert!(!script.contains("engine-core"), "{shell}: a hidden command");
        }
    }
}
