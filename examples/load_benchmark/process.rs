//! Server and clients as processes of their own, so that their CPU seconds and memory are told apart.
//!
//! A client is started by a small process between (`measure`), because the kernel gives the resources of ended children
//! as a sum (`RUSAGE_CHILDREN`): here that is one client and the children that it has waited for.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::resource::UsageWho;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::connection::get;
use crate::own::Own;
use crate::server::{Timing, usage};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The server's process; killed on drop.
pub struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    #[expect(clippy::disallowed_methods, reason = "the benchmark's own server, which dies with it")]
    pub fn spawn(timing: Timing) -> Result<Self> {
        let Timing { first_ms, gap_ms, tokens, prompt_tokens } = timing;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .args(["--first-ms", &first_ms.to_string(), "--gap-ms", &gap_ms.to_string()])
            .args(["--tokens", &tokens.to_string(), "--prompt-tokens", &prompt_tokens.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let port = line.trim().parse().map_err(|_| format!("the server printed no port but {line:?}"))?;
        Ok(Self { child, port })
    }

    /// What it has seen since it was asked last.
    pub fn own(&self) -> Result<Own> {
        Ok(serde_json::from_str(&get(self.port, "/own")?)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have died by itself; then there is nothing to end.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What one client's process took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Just before it was started, on the clock of `clock::now`.
    pub spawned_ns: u64,
    pub wall_s: f64,
    /// User and system, of its children too.
    pub cpu_s: f64,
    /// Of its largest process.
    pub max_rss_mb: f64,
    /// None when a signal ended it.
    pub exit_code: Option<i32>,
}

/// Runs a command by way of `measure`; what it prints goes to the file `log`.
#[expect(clippy::disallowed_methods, reason = "the program between, which ends with the client")]
pub fn run(command: &[String], env: &[(&str, &str)], log: &Path) -> Result<Cost> {
    let output = Command::new(std::env::current_exe()?)
        .arg("measure")
        .arg("--")
        .args(command)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stderr(File::create(log)?)
        .output()?;
    let answer = serde_json::from_slice(&output.stdout);
    Ok(answer.map_err(|_| format!("cannot run {}: {}", command[0], tail(log)))?)
}

/// The other side of [`run`]: starts the command, waits for its end, and writes a [`Cost`] as JSON.
#[expect(clippy::disallowed_methods, reason = "the client, which is waited for")]
pub fn measure(command: &[String]) -> Result<()> {
    let [program, arguments @ ..] = command else { return Err("no command was given".into()) };
    let spawned_ns = clock::now();
    // Standard output is this program's answer, so the client's goes where errors go.
    let status = Command::new(program).args(arguments).stdout(std::io::stderr()).status()?;
    let wall_s = clock::ms(clock::now() - spawned_ns) / 1e3;
    let (cpu_s, max_rss_mb) = usage(UsageWho::RUSAGE_CHILDREN);
    let cost = Cost { spawned_ns, wall_s, cpu_s, max_rss_mb, exit_code: status.code() };
    serde_json::to_writer(std::io::stdout(), &cost)?;
    std::io::stdout().flush()?;
    Ok(())
}

/// The last lines of a file.
pub fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
