//! `man`: one manual page per command.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::GlobalOptions;
use super::examples::examples_of;
use super::failure::CommandFailure;
use super::folder::write_folder;
use super::output::note;
use crate::export::ExportedFile;

#[derive(Debug, Args)]
pub(super) struct ManCommand {
    /// Folder to write. It must be new or empty.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl ManCommand {
    pub(super) fn run(&self, global: &GlobalOptions) -> Result<(), CommandFailure> {
        let pages = pages().map_err(|error| CommandFailure::unexpected(format!("cannot render the pages: {error}")))?;
        write_folder(&self.directory, &pages)
            .map_err(|failure| failure.with_hint("name a new folder within one that exists and can be written"))?;
        let directory = self.directory.display();
        note(global, &format!("{} pages in {directory}; read one: man {directory}/setpoint.1", pages.len()));
        Ok(())
    }
}

/// Returns the pages of all commands that are not hidden.
fn pages() -> std::io::Result<Vec<ExportedFile>> {
    let mut program = super::command_without_examples().disable_help_subcommand(true);
    program.build();
    let source = format!("setpoint {}", program.get_version().unwrap_or_default());
    let mut pages = Vec::new();
    add_pages(&program, &source, "setpoint", &mut pages)?;
    Ok(pages)
}

/// Adds the pages of a command and of its subcommands. `path` is its name with those of its parents.
fn add_pages(command: &Command, source: &str, path: &str, pages: &mut Vec<ExportedFile>) -> std::io::Result<()> {
    let man = Man::new(command.clone()).source(source);
    let content = String::from_utf8_lossy(&page(&man, command, path)?).into_owned();
    pages.push(ExportedFile { name: man.get_filename(), content });
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        add_pages(subcommand, source, &format!("{path} {}", subcommand.get_name()), pages)?;
    }
    Ok(())
}

/// Renders one page. Notes and examples keep their lines, which [`Man::render`] would fill as paragraphs.
fn page(man: &Man, command: &Command, path: &str) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        notes_section(&notes.to_string(), &mut page)?;
    }
    examples_section(examples_of(path), &mut page)?;
    man.render_version_section(&mut page)?;
    Ok(page)
}

/// Writes a section with the line ends of the text. Longer lines are broken, but neither adjusted nor hyphenated.
fn notes_section(text: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::default();
    roff.control("SH", ["NOTES"]).control("na", []).control("nh", []);
    for line in text.trim_end().lines() {
        if line.trim().is_empty() {
            roff.control("PP", []);
        } else {
            roff.text([roman(line)]).control("br", []);
        }
    }
    roff.control("ad", []).control("hy", []);
    roff.to_writer(page)
}

/// Writes a section whose lines are never filled, so that they can be copied.
fn examples_section(examples: &[&str], page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::default();
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in examples.iter().flat_map(|example| example.lines()) {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.to_writer(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_option_of_its_command() {
        let (pages, program) = (pages().unwrap(), crate::cli::command());
        let page = |name: &str| &pages.iter().find(|page| page.name == name).unwrap().content;
        for command in program.get_subcommands() {
            let content = page(&format!("setpoint-{}.1", command.get_name()));
            // `--licenses` needs no command, so that only the page of the program has it.
            let of_all = program.get_arguments().filter(|argument| argument.is_global_set());
            for long in of_all.chain(command.get_arguments()).filter_map(clap::Arg::get_long) {
                assert!(
                    content.contains(&format!("\\-\\-{}", long.replace('-', "\\-"))),
                    "{}: {long}",
                    command.get_name()
                );
            }
            assert!(page("setpoint.1").contains(&format!("setpoint\\-{}(1)", command.get_name())));
        }
        for long in program.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(page("setpoint.1").contains(&format!("\\-\\-{}", long.replace('-', "\\-"))), "setpoint: {long}");
        }
        assert!(page("setpoint-sim-serve.1").contains("sim\\-time\\-scale"), "options of the simulation");
        assert!(pages.iter().all(|page| !page.name.contains("engine-core")), "a hidden command");
        assert_eq!(pages.len(), program.get_subcommands().count() + 2, "those, `setpoint` and `sim serve`");
    }
}
