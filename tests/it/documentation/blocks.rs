//! Code blocks of a Markdown text, with the markers in the comments before them.

/// A code block that can run, and its markers.
#[derive(Debug, PartialEq)]
pub(super) struct CodeBlock {
    /// The line of its opening fence, from 1.
    pub(super) line: usize,
    pub(super) language: Language,
    pub(super) text: String,
    pub(super) markers: Vec<Marker>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Language {
    /// Commands, for `sh`.
    Shell,
    /// Commands behind `$ `. The other lines are lines of their output.
    Console,
    Toml,
    /// Lines behind `> ` for a program's standard input, and lines behind `< ` of its standard output.
    Dialogue,
}

/// A comment on a line of its own before a block.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Marker {
    /// `not run: REASON`.
    NotRun(String),
    /// `exit: 4`, or several: `exit: 0 or 6`.
    Exit(Vec<i32>),
    /// `setup: COMMAND`, run before the block.
    Setup(String),
    /// `file: NAME`. The block is a study file that a reader saves under this name.
    File(String),
    /// `gpus: N`. From this block on, a driver reports this number of GPUs.
    Gpus(usize),
    /// `server: FLAGS`. A simulated engine with these flags listens on the port 8000 during the block.
    Server(String),
    /// `needs: PROGRAM`. The block runs only if this program is installed.
    Needs(String),
    /// `dialogue: COMMAND`, the program of a dialogue.
    Dialogue(String),
}

/// Languages of blocks that show output or data.
const SHOWN: [&str; 3] = ["text", "json", "html"];

/// Returns the blocks that can run, or every problem with its line.
pub(super) fn extract(text: &str) -> Result<Vec<CodeBlock>, Vec<String>> {
    let (mut blocks, mut problems) = (Vec::new(), Vec::new());
    // A comment that is no marker is a problem only before a block: it may be an unknown or misspelt marker.
    let mut comments: Vec<(usize, Result<Marker, String>)> = Vec::new();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((line, content)) = lines.next() {
        let indent = content.len() - content.trim_start().len();
        if let Some(comment) = content.trim_start().strip_prefix("<!--") {
            comments.push((line, marker(comment)));
        } else if let Some(language) = content.trim_start().strip_prefix("```") {
            let inside = |content: &str| {
                let own = content.len() - content.trim_start().len();
                format!("{}\n", &content[indent.min(own)..])
            };
            let mut body = String::new();
            let mut is_closed = false;
            for (_, content) in lines.by_ref() {
                if content.trim() == "```" {
                    is_closed = true;
                    break;
                }
                body.push_str(&inside(content));
            }
            if !is_closed {
                problems.push(format!("{line}: the block does not end"));
            }
            let mut markers = Vec::new();
            for (line, comment) in comments.drain(..) {
                match comment {
                    Ok(marker) => markers.push(marker),
                    Err(problem) => problems.push(format!("{line}: {problem}")),
                }
            }
            match block(line, language.trim(), body, markers) {
                Ok(block) => blocks.extend(block),
                Err(problem) => problems.push(format!("{line}: {problem}")),
            }
        } else {
            problems.extend(lonely(&comments));
            comments.clear();
        }
    }
    problems.extend(lonely(&comments));
    if problems.is_empty() { Ok(blocks) } else { Err(problems) }
}

/// Returns a problem for each marker among comments that no block follows.
fn lonely(comments: &[(usize, Result<Marker, String>)]) -> Vec<String> {
    let markers = comments.iter().filter(|(_, comment)| comment.is_ok());
    markers.map(|(line, _)| format!("{line}: no block follows this marker")).collect()
}

/// Reads a comment, from behind its opening on.
fn marker(comment: &str) -> Result<Marker, String> {
    let Some(comment) = comment.trim().strip_suffix("-->") else {
        return Err("a marker is one line, and nothing follows it".to_owned());
    };
    let (name, value) = comment.split_once(':').unwrap_or((comment, ""));
    let (name, value) = (name.trim(), value.trim());
    if value.is_empty() && name != "server" {
        return Err(format!("the marker {name:?} needs a value: `{name}: ...`"));
    }
    let value = value.to_owned();
    match name {
        "not run" => Ok(Marker::NotRun(value)),
        "exit" => match value.split(" or ").map(str::parse).collect() {
            Ok(codes) => Ok(Marker::Exit(codes)),
            Err(_) => Err(format!("{value:?} is no exit code: `exit: 4` or `exit: 0 or 6`")),
        },
        "setup" => Ok(Marker::Setup(value)),
        "file" => Ok(Marker::File(value)),
        "gpus" => value.parse().map(Marker::Gpus).map_err(|_| format!("{value:?} is no number of GPUs")),
        "server" => Ok(Marker::Server(value)),
        "needs" => Ok(Marker::Needs(value)),
        "dialogue" => Ok(Marker::Dialogue(value)),
        _ => Err(format!("{name:?} is no marker")),
    }
}

/// Returns the block if it can run. Blocks that show something have no markers.
fn block(line: usize, language: &str, text: String, markers: Vec<Marker>) -> Result<Option<CodeBlock>, String> {
    let has = |wanted: fn(&Marker) -> bool| markers.iter().any(wanted);
    let is_dialogue = has(|marker| matches!(marker, Marker::Dialogue(_)));
    let is_file = has(|marker| matches!(marker, Marker::File(_)));
    let is_left_out = has(|marker| matches!(marker, Marker::NotRun(_)));
    let language = match language {
        "sh" => Language::Shell,
        "console" => Language::Console,
        "toml" => Language::Toml,
        "" if is_dialogue => Language::Dialogue,
        shown if SHOWN.contains(&shown) && markers.is_empty() => return Ok(None),
        shown if SHOWN.contains(&shown) => return Err(format!("a block of {shown} does not run, and has no marker")),
        other => return Err(format!("{other:?} is no language of a block here")),
    };
    if is_left_out && markers.len() > 1 {
        return Err("a block that does not run has no other marker".to_owned());
    }
    if is_dialogue != (language == Language::Dialogue) {
        return Err("a dialogue is a block without a language".to_owned());
    }
    if is_file && language != Language::Toml {
        return Err("a marker of a file belongs to a block of toml".to_owned());
    }
    if language == Language::Toml && !is_file && !is_left_out {
        return Err("give `file: NAME` for a study file, or `not run: REASON` for a part of one".to_owned());
    }
    let begins = |line: &str| if language == Language::Console { line.starts_with("$ ") } else { !line.is_empty() };
    if !text.lines().any(begins) {
        return Err("the block has no command".to_owned());
    }
    Ok(Some(CodeBlock { line, language, text, markers }))
}

impl CodeBlock {
    /// Returns the text of a console block as a script, and the lines of output that it shows.
    pub(super) fn console(&self) -> (String, Vec<&str>) {
        let commands: Vec<_> = self.text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
        let script = commands.join("\n") + "\n";
        (script, self.text.lines().filter(|line| !line.starts_with("$ ") && *line != "...").collect())
    }

    /// Returns the lines of a dialogue that begin with this sign, without it.
    pub(super) fn spoken(&self, sign: &str) -> Vec<&str> {
        self.text.lines().filter_map(|line| line.strip_prefix(sign)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        extract(text).expect_err("a problem")
    }

    #[test]
    fn commands_are_found_with_their_lines_and_markers() {
        let text = "# Title\n\n```sh\na\n\nb\n```\n\n```text\noutput\n```\n<!-- setup: c d -->\n<!-- exit: 0 or 6 -->\n\
                    ```console\n$ e\nx\n...\n```\n";
        let found = extract(text).unwrap();
        assert_eq!(
            found,
            [
                CodeBlock { line: 3, language: Language::Shell, text: "a\n\nb\n".to_owned(), markers: Vec::new() },
                CodeBlock {
                    line: 14,
                    language: Language::Console,
                    text: "$ e\nx\n...\n".to_owned(),
                    markers: vec![Marker::Setup("c d".to_owned()), Marker::Exit(vec![0, 6])],
                },
            ]
        );
        assert_eq!(found[1].console(), ("e\n".to_owned(), vec!["x"]));
    }

    #[test]
    fn an_indented_block_loses_its_indentation() {
        let found = extract("1. First\n   <!-- not run: no GPU: none -->\n   ```sh\n   a\n     b\n   ```\n").unwrap();
        assert_eq!(found[0].text, "a\n  b\n");
        assert_eq!(found[0].markers, [Marker::NotRun("no GPU: none".to_owned())]);
    }

    #[test]
    fn a_dialogue_has_two_sides() {
        let found = extract("<!-- dialogue: a b -->\n```\n> 1\n< 2\n> 3\n```\n").unwrap();
        assert_eq!((found[0].spoken("> "), found[0].spoken("< ")), (vec!["1", "3"], vec!["2"]));
    }

    #[test]
    fn a_marker_without_a_reason_or_a_block_is_a_problem() {
        for (text, expected) in [
            ("<!-- not run: -->\n```sh\na\n```\n", "1: the marker \"not run\" needs a value"),
            ("<!-- not run -->\n```sh\na\n```\n", "1: the marker \"not run\" needs a value"),
            ("<!-- skip: x -->\n```sh\na\n```\n", "1: \"skip\" is no marker"),
            ("<!-- not run: x -->\n<!-- a\n```sh\na\n```\n", "2: a marker is one line"),
            ("<!-- exit: four -->\n```sh\na\n```\n", "1: \"four\" is no exit code"),
            ("<!-- not run: x -->\n\n```sh\na\n```\n", "1: no block follows this marker"),
            ("<!-- not run: x -->\n", "1: no block follows this marker"),
            ("<!-- not run: x -->\n```text\na\n```\n", "2: a block of text does not run"),
            ("<!-- not run: x -->\n<!-- exit: 1 -->\n```sh\na\n```\n", "3: a block that does not run"),
            ("<!-- file: a -->\n```sh\na\n```\n", "2: a marker of a file belongs to"),
        ] {
            let found = problems(text);
            assert!(found[0].starts_with(expected), "{text}: {found:?}");
        }
    }

    #[test]
    fn other_comments_are_allowed_away_from_blocks() {
        assert_eq!(extract("<!-- a list -->\n\ntext\n<!-- its end -->\n"), Ok(Vec::new()));
    }

    #[test]
    fn a_block_that_cannot_be_classified_is_a_problem() {
        for (text, expected) in [
            ("```\na\n```\n", "1: \"\" is no language"),
            ("```shell\na\n```\n", "1: \"shell\" is no language"),
            ("```toml\na = 1\n```\n", "1: give `file: NAME`"),
            ("```sh\n```\n", "1: the block has no command"),
            ("```console\na\n```\n", "1: the block has no command"),
            ("```sh\na\n", "1: the block does not end"),
        ] {
            let found = problems(text);
            assert!(found[0].starts_with(expected), "{text}: {found:?}");
        }
    }
}
