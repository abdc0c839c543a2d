//! Processes of the server and the clients, separate so that their CPU seconds and memory are separate.
//!
//! A client is started by a small process in between (`measure`), because the kernel reports the resources of ended
//! children as a sum (`RUSAGE_CHILDREN`). Here the sum covers one client and the children that it has waited for.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use nix::sys::resource::UsageWho;
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::clock::{self, ms};
use crate::connection::get;
use crate::own::Own;
use crate::server::{Timing, usage};

use setpoint::stats::to_f64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The server's process; killed on drop.
pub(crate) struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    #[expect(clippy::disallowed_methods, reason = "the benchmark's own server, which dies with it")]
    pub(crate) fn spawn(timing: Timing) -> Result<Self> {
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

    /// Returns the server's measurements since the last call.
    pub(crate) fn own(&self) -> Result<Own> {
        Ok(serde_json::from_str(&get(self.port, "/own")?)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The interval between readings of a client's CPU time; each reading costs about a microsecond.
const SAMPLE: Duration = Duration::from_millis(10);

/// The resources that one client's process used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// The instant just before the start, on the clock of `clock::now`.
    pub spawned_ns: u64,
    pub wall_s: f64,
    /// User and system time, including its children.
    pub cpu_s: f64,
    /// The resident set of its largest process.
    pub max_rss_mb: f64,
    /// `None` if a signal ended it.
    pub exit_code: Option<i32>,
    /// CPU seconds of all programs on this machine during the run.
    pub machine_cpu_s: f64,
    /// Instants, each with the CPU nanoseconds of the process until then, without its children.
    pub samples: Vec<(u64, u64)>,
}

impl Cost {
    /// Returns the CPU seconds until an instant, interpolated linearly between the samples.
    pub(crate) fn cpu_s_at(&self, at: u64) -> f64 {
        let next = self.samples.partition_point(|(instant, _)| *instant < at);
        let (t0, c0) = if next == 0 { (self.spawned_ns, 0) } else { self.samples[next - 1] };
        let (t1, c1) = self.samples.get(next).copied().unwrap_or((at, c0));
        let share = if t1 > t0 { ms(at.saturating_sub(t0)) / ms(t1 - t0) } else { 0.0 };
        (ms(c0) + ms(c1.saturating_sub(c0)) * share.min(1.0)) / 1e3
    }
}

/// Runs a command by way of `measure`. Its output goes to the file `log`.
#[expect(clippy::disallowed_methods, reason = "the program between, which ends with the client")]
pub(crate) fn run(command: &[String], env: &[(&str, &str)], log: &Path) -> Result<Cost> {
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

/// Starts the command, waits for its end, and writes a [`Cost`] as JSON: the counterpart of [`run`].
#[expect(clippy::disallowed_methods, reason = "the client, which is waited for")]
pub(crate) fn measure(command: &[String]) -> Result<()> {
    let [program, arguments @ ..] = command else { return Err("no command was given".into()) };
    let before = machine_cpu_s();
    let spawned_ns = clock::now();
    // Standard output carries this program's answer, so the client's output goes to standard error.
    let mut child = Command::new(program).args(arguments).stdout(std::io::stderr()).spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let (end, ended) = channel();
    let sampler = std::thread::spawn(move || sample(pid, &ended));
    let status = child.wait()?;
    let wall_s = ms(clock::now() - spawned_ns) / 1e3;
    let machine_cpu_s = machine_cpu_s() - before;
    drop(end);
    let samples = sampler.join().map_err(|_| "the sampling thread panicked")?;
    let (cpu_s, max_rss_mb) = usage(UsageWho::RUSAGE_CHILDREN);
    let cost = Cost { spawned_ns, wall_s, cpu_s, max_rss_mb, exit_code: status.code(), machine_cpu_s, samples };
    serde_json::to_writer(std::io::stdout(), &cost)?;
    std::io::stdout().flush()?;
    Ok(())
}

/// Samples the CPU time of a process until the other end of the channel is closed.
fn sample(pid: Pid, ended: &Receiver<()>) -> Vec<(u64, u64)> {
    let mut samples = Vec::new();
    let Ok(of_process) = ClockId::pid_cpu_clock_id(pid) else { return samples };
    while ended.recv_timeout(SAMPLE) == Err(RecvTimeoutError::Timeout) {
        if let Ok(cpu) = of_process.now() {
            samples.push((clock::now(), clock::nanos(cpu)));
        }
    }
    samples
}

/// Returns the CPU seconds since the machine's start that were not idle, from the first line of `/proc/stat`. They
/// include time that the hypervisor gave to others (steal).
fn machine_cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> =
        text.lines().next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    let busy: u64 = ticks.iter().take(8).enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, n)| n).sum();

    to_f64(busy) / to_f64(procfs::ticks_per_second())
}

/// Returns the last lines of a file.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
