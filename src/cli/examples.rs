//! Examples of the commands: the last section of each long help, and a section of each manual page.

use clap::Command;

/// The commands with their examples. A line that begins with `#` is a comment,
/// which names the needs of the lines behind it if a clean checkout lacks them. Tests parse each line, and run most.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "setpoint",
        &[
            "setpoint tune examples/quickstart.toml",
            "setpoint tune --model examples/models/qwen3-8b --engine sim --trials 6",
            "setpoint doctor",
        ],
    ),
    (
        "setpoint tune",
        &[
            "setpoint tune examples/quickstart.toml",
            "setpoint tune --model examples/models/qwen3-8b --engine sim --trials 6",
            "# with vLLM and this model:",
            "setpoint tune --model Qwen/Qwen3-8B --slo ttft_p99=500ms --time 8h",
        ],
    ),
    (
        "setpoint init",
        &[
            "setpoint init --model examples/models/qwen3-8b --engine sim -o study.toml",
            "# with vLLM and this model:",
            "setpoint init --model Qwen/Qwen3-8B --goal latency --workload code",
        ],
    ),
    (
        "setpoint check",
        &[
            "setpoint check examples/quickstart.toml --explain",
            "echo '{\"args\": [\"--max-num-seqs\", \"0\"]}' |\n    setpoint check --args-file - --model examples/models/qwen3-8b",
        ],
    ),
    (
        "setpoint bench",
        &[
            "# with a server on this port:",
            "setpoint bench --url http://127.0.0.1:8000 --concurrency 8 --num-requests 64",
            "setpoint bench --url http://127.0.0.1:8000 --rate 4 --goodput ttft:500",
        ],
    ),
    (
        "setpoint predict",
        &[
            "setpoint predict examples/quickstart.toml",
            "setpoint predict examples/quickstart.toml --config '{\"max-num-seqs\": 64}'",
        ],
    ),
    ("setpoint optimize", &["# with the messages above in a file:", "setpoint optimize --seed 7 < messages.jsonl"]),
    ("setpoint spaces", &["setpoint spaces", "setpoint spaces vllm/core.toml > space.toml"]),
    ("setpoint studies", &[AFTER_QUICKSTART, "setpoint studies", "setpoint studies --format json"]),
    (
        "setpoint trials",
        &[
            AFTER_QUICKSTART,
            "setpoint trials --state failed,rejected",
            "setpoint trials --where 'max-num-seqs >= 4' --sort p99_ttft_ms --first 5",
            "setpoint trials --last 5 --columns trial,state,max-num-seqs --format csv",
        ],
    ),
    (
        "setpoint report",
        &[AFTER_QUICKSTART, "setpoint report -o report.html", "setpoint report --format md > report.md"],
    ),
    (
        "setpoint serve",
        &[
            "# with a browser, until Ctrl-C:",
            "setpoint serve --port 8650",
            "SETPOINT_TOKEN=$(openssl rand -hex 16) setpoint serve --listen 0.0.0.0",
        ],
    ),
    (
        "setpoint watch",
        &[
            "# with a terminal, while a study runs or afterwards:",
            "setpoint watch",
            "setpoint watch --study quickstart --interval 2s",
        ],
    ),
    ("setpoint show", &[AFTER_QUICKSTART, "setpoint show 3", "setpoint show 3 --format json"]),
    (
        "setpoint best",
        &[
            AFTER_QUICKSTART,
            "setpoint best --top 3",
            "setpoint best --limit 'p99_ttft_ms<=5000' --limit 'p99_tpot_ms<=50'",
            "setpoint best --pareto output_throughput,p99_ttft_ms --format json",
        ],
    ),
    (
        "setpoint compare",
        &[
            AFTER_QUICKSTART,
            "setpoint compare baseline best",
            "setpoint compare 1 3 --all",
            "setpoint compare quickstart:best quickstart:2 --format json",
        ],
    ),
    (
        "setpoint sql",
        &[
            AFTER_QUICKSTART,
            "setpoint sql 'SELECT trial, output_throughput FROM v_metrics LIMIT 5'",
            "setpoint sql 'SELECT flag, value FROM v_flags' --format csv",
        ],
    ),
    ("setpoint importance", &[AFTER_QUICKSTART, "setpoint importance examples/quickstart.toml"]),
    (
        "setpoint import",
        &[
            "# with the output of `vllm bench serve --save-result`:",
            "setpoint import result.json --study earlier",
            AFTER_QUICKSTART,
            "setpoint export --format json -o best.json",
            "setpoint import best.json --db earlier.db",
        ],
    ),
    (
        "setpoint export",
        &[
            AFTER_QUICKSTART,
            "setpoint export -o serve.sh",
            "setpoint export --trial 3 --format json",
            "setpoint export --format optuna -o optuna.db",
        ],
    ),
    ("setpoint doctor", &["setpoint doctor", "setpoint doctor examples/quickstart.toml"]),
    ("setpoint reap", &["setpoint reap --dry-run", "setpoint reap --grace 30s"]),
    ("setpoint sim", &["setpoint sim serve examples/models/qwen3-8b --sim-device l4"]),
    (
        "setpoint sim serve",
        &[
            "setpoint sim serve examples/models/qwen3-8b --sim-device l4",
            "setpoint sim serve examples/models/qwen3-8b --max-num-seqs 8 --port 8001",
            "setpoint sim serve examples/models/qwen3-8b --sim-fault exit@kv:cause=no-kv",
        ],
    ),
    (
        "setpoint completions",
        &[
            "# into a folder that the shell reads:",
            "setpoint completions bash \\\n    > ~/.local/share/bash-completion/completions/setpoint",
            "setpoint completions zsh > ~/.zfunc/_setpoint",
            "setpoint completions fish > ~/.config/fish/completions/setpoint.fish",
        ],
    ),
    (
        "setpoint man",
        &["setpoint man pages", "mkdir -p ~/.local/share/man/man1 && mv pages/*.1 ~/.local/share/man/man1"],
    ),
];

const AFTER_QUICKSTART: &str = "# after `setpoint tune examples/quickstart.toml`:";

/// Returns the examples of a command, such as `setpoint tune`, or nothing if it has none.
pub(super) fn examples_of(path: &str) -> &'static [&'static str] {
    EXAMPLES.iter().find(|(known, _)| *known == path).map_or(&[], |(_, examples)| *examples)
}

/// Returns the command with its examples at the end of its long help, and the same for its subcommands.
pub(super) fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect();
    let command = names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, |subcommand| with_examples(subcommand, &format!("{path} {name}")))
    });
    let examples = examples_of(path);
    if examples.is_empty() {
        return command;
    }
    let notes = command.get_after_long_help().or(command.get_after_help());
    let notes = notes.map(|notes| format!("{}\n\n", notes.to_string().trim_end())).unwrap_or_default();
    let lines = examples.iter().flat_map(|example| example.lines()).map(|line| format!("\n  {line}"));
    let header = *command.get_styles().get_header();
    let section = format!("{notes}{header}Examples:{header:#}{}", lines.collect::<String>());
    command.after_long_help(section)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, command};
    use crate::engines::sim::process::SimOptions;

    /// Longest line, so that the help shows it unbroken on a terminal of 80 columns.
    const MAX_WIDTH: usize = 78;

    /// Returns the paths of all commands that are not hidden.
    fn paths(command: &Command, path: &str) -> Vec<String> {
        let below = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        let below = below.flat_map(|subcommand| paths(subcommand, &format!("{path} {}", subcommand.get_name())));
        [path.to_owned()].into_iter().chain(below).collect()
    }

    /// Returns the words of each call of the program in an example.
    fn calls(example: &str) -> Vec<Vec<String>> {
        // `shlex` takes a continued line for an empty word.
        let words = shlex::split(&example.replace("\\\n", " ")).unwrap_or_else(|| panic!("quotes: {example}"));
        let piped = words.split(|word| word == "|");
        let piped = piped.map(|words| words.split(|word| word == "<" || word == ">").next().unwrap_or_default());
        piped.filter(|words| words.first().is_some_and(|word| word == "setpoint")).map(<[String]>::to_vec).collect()
    }

    /// Returns the examples of a command that are no comments.
    fn lines_of(path: &str) -> impl Iterator<Item = &'static str> {
        examples_of(path).iter().copied().filter(|example| !example.starts_with('#'))
    }

    #[test]
    fn each_command_has_examples_of_itself_that_the_parser_accepts() {
        let paths = paths(&command(), "setpoint");
        for (path, _) in EXAMPLES {
            assert!(paths.iter().any(|known| known == path), "{path:?} is no command");
        }
        for path in paths {
            let mut own = 0;
            for call in lines_of(&path).flat_map(calls) {
                if let Err(error) = Cli::try_parse_from(&call) {
                    panic!("{call:?}: {error}");
                }
                if call[1..].starts_with(&["sim".to_owned(), "serve".to_owned()])
                    && let Err(refusal) = SimOptions::parse(&call[3..])
                {
                    panic!("{call:?}: {refusal:?}");
                }
                for file in
                    call.iter().filter(|word| ["examples/", "search_spaces/"].iter().any(|at| word.starts_with(at)))
                {
                    assert!(std::path::Path::new(file).exists(), "{file} is not part of a checkout");
                }
                own += usize::from(path.split(' ').zip(&call).all(|(name, word)| word == name));
            }
            assert!((1..=3).contains(&own), "{path:?} has {own} examples");
        }
    }

    #[test]
    fn examples_and_tables_in_notes_fit_into_80_columns() {
        fn check(command: &Command) {
            let notes = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for line in notes.lines().filter(|line| line.starts_with("  ")) {
                assert!(line.len() <= MAX_WIDTH, "{}: {} columns: {line}", command.get_name(), line.len());
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }

    #[test]
    fn the_long_help_ends_with_the_examples_and_keeps_other_notes() {
        let mut command = command();
        let mut help = |name: &str| command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
        assert!(
            help("compare").ends_with("compare quickstart:best quickstart:2 --format json\n"),
            "{}",
            help("compare")
        );
        let doctor = help("doctor");
        assert!(doctor.contains("Exit codes: 0 no check failed"), "{doctor}");
        assert!(
            doctor.ends_with("\n\nExamples:\n  setpoint doctor\n  setpoint doctor examples/quickstart.toml\n"),
            "{doctor}"
        );
    }
}
