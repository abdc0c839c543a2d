//! Exports a script with one `docker run`.

use std::fmt::Write;

use super::{ExportedServer, HUB_CACHE, ModelPlace, PORT};
use crate::export::shell::{comment, lines, quote};
use crate::export::{ExportError, ExportedTrial, Exporter};

pub(in crate::export) struct DockerExporter;

impl Exporter for DockerExporter {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn summary(&self) -> &'static str {
        "a shell script with one `docker run`; its arguments are passed on to the engine"
    }

    fn executable(&self) -> bool {
        true
    }

    fn has_image(&self) -> bool {
        true
    }

    fn export(&self, winner: &ExportedTrial<'_>) -> Result<String, ExportError> {
        let server = ExportedServer::of(winner)?;
        let mut script = String::from("#!/bin/sh\n");
        for line in &server.comments {
            comment(&mut script, line);
        }
        let text = format!("Further arguments are passed on to the engine. PORT is the port on this host ({PORT}).");
        comment(&mut script, &text);
        script.push_str("set -eu\n");
        for name in &server.secrets {
            // Writing to a string cannot fail.
            let _ = writeln!(script, ": \"${{{name}:?is a secret and was not stored: set it}}\"");
            let _ = writeln!(script, "export {name}");
        }
        let _ = writeln!(script, "exec {} \"$@\"", lines(&words(&server)));
        Ok(script)
    }
}

/// Returns the quoted words of the command.
fn words(server: &ExportedServer) -> Vec<String> {
    let mut words: Vec<_> = ["docker", "run", "--rm", "--name"].map(str::to_owned).to_vec();
    words.push(server.name.clone());
    if server.gpus > 0 {
        words.extend(["--gpus".to_owned(), server.gpus.to_string()]);
    }
    // Processes of tensor parallelism exchange data through the host's shared memory.
    words.extend(["--ipc", "host"].map(str::to_owned));
    words.extend(["--publish".to_owned(), format!("\"${{PORT:-{PORT}}}:{PORT}\"")]);
    words.extend(volume(server));
    for name in &server.secrets {
        words.extend(["--env".to_owned(), name.clone()]);
    }
    for (name, value) in &server.env {
        words.extend(["--env".to_owned(), quote(&format!("{name}={value}"))]);
    }
    let (program, subcommands) = server.starts.in_image.split_first().unwrap_or((&"", &[]));
    words.extend(["--entrypoint".to_owned(), quote(program), quote(&server.image)]);
    words.extend(subcommands.iter().map(|word| quote(word)));
    words.extend(server.words().iter().map(|word| word.render(quote, |name| format!("\"${name}\""))));
    words
}

/// Returns the options for the model, or for the cache of downloaded models.
fn volume(server: &ExportedServer) -> [String; 2] {
    match &server.model {
        ModelPlace::Hub(_) => {
            let source = "${HF_HOME:-$HOME/.cache/huggingface}";
            ["--volume".to_owned(), format!("\"{source}:{HUB_CACHE}\"")]
        }
        ModelPlace::Local(path) => {
            let fields = ["type=bind".to_owned(), field("source", path), field("target", path), "readonly".to_owned()];
            ["--mount".to_owned(), quote(&fields.join(","))]
        }
    }
}

/// Returns a field of `--mount`, which is a row of CSV.
fn field(name: &str, value: &str) -> String {
    let field = format!("{name}={value}");
    if field.contains([',', '"']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}
