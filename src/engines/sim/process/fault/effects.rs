//! The implementation of faults that affect log, processes and memory.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::engines::sim::process::log::ServedLog;
use crate::stats::f64_to_usize;

/// The lifetime of a process that others should end. It is finite, so that no process remains if they fail to do so.
pub(super) const CHILD_LIFETIME: Duration = Duration::from_mins(10);

/// The interval of progress lines during a slow start.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// The interval between two allocations of a leak.
const ALLOCATION_INTERVAL: Duration = Duration::from_millis(100);

const MEGABYTE: usize = 1_000_000;

/// Waits for this time, and writes progress lines meanwhile.
pub(super) async fn slow(log: &ServedLog, lasts: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < lasts {
        let percent = 100.0 * begin.elapsed().as_secs_f64() / lasts.as_secs_f64();
        log.raw(&format!("Loading safetensors checkpoint shards: {percent:3.0}% Completed\n"));
        tokio::time::sleep(PROGRESS_INTERVAL.min(lasts.saturating_sub(begin.elapsed()))).await;
    }
}

/// Writes this many megabytes of whole lines as fast as the log takes them.
pub(super) async fn flood(log: &ServedLog, megabytes: u64) {
    let line = "INFO 11-20 21:21:18 [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation \
                throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%\n";
    let line = log.of_core(line);
    let block = line.repeat(MEGABYTE.div_ceil(line.len()));
    for _ in 0..megabytes {
        log.raw(&block);
        // Lets other tasks run in between, such as the handling of a signal.
        tokio::task::yield_now().await;
    }
}

/// Allocates memory at a constant rate up to `cap` megabytes, and holds it while the future lives.
pub(super) async fn leak(megabytes_per_s: u64, cap: u64) {
    let [rate, cap] = [megabytes_per_s, cap].map(|megabytes| usize::try_from(megabytes).unwrap_or(usize::MAX));
    let cap = cap.saturating_mul(MEGABYTE);
    let (begin, mut held, mut total) = (Instant::now(), Vec::new(), 0);
    while total < cap {
        tokio::time::sleep(ALLOCATION_INTERVAL).await;
        let due = begin.elapsed().as_secs_f64() * f64::from(u32::try_from(rate).unwrap_or(u32::MAX)) * 1e6;
        let due = f64_to_usize(due).min(cap);
        // Filled, because reserved pages without content take no memory.
        held.push(vec![1_u8; due.saturating_sub(total)]);
        total = due;
    }
    std::future::pending::<()>().await;
    drop(held);
}

/// Sends a signal to this process. Returns if the signal is handled or ignored.
pub(super) fn raise(signal: Signal) {
    // Rust's own handler of SIGSEGV returns from the first one and uninstalls itself.
    for _ in 0..2 {
        let _ = nix::sys::signal::raise(signal);
    }
}

/// Starts a child in a session of its own that outlives its parent.
///
/// With `bare` it has no environment. With `orphan` its parent ends at once.
pub(super) fn spawn_escaped(bare: bool, orphan: bool) -> std::io::Result<Child> {
    let sleep = format!("exec setsid sleep {}", CHILD_LIFETIME.as_secs());
    let mut command = Command::new("sh");
    command.args(["-c", &if orphan { format!("({sleep}) & exit 0") } else { sleep }]).stdin(Stdio::null());
    if bare {
        command.env_clear();
    }
    start(&mut command)
}

/// Starts the process of the engine itself, as vLLM's front end does: this program with another title.
pub(super) fn engine_core() -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(super::ENGINE_CORE).args(["sim", "engine-core"]).stdin(Stdio::null());
    start(&mut command)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the simulated engine is another program, whose launcher ends its children"
)]
fn start(command: &mut Command) -> std::io::Result<Child> {
    command.spawn()
}
