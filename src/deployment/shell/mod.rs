//! Shell texts, read without being executed: words, variables and the commands that start a server.

mod expand;
mod lexer;
mod parameter;
mod script;
mod word;

pub(super) use expand::{ShellValue, ShellVariables};
pub(super) use script::servers_of_script;
