//! The process of the simulated server.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Arguments, DEVICE, Result};

use setpoint::stats::to_f64;

/// The server's process; killed on drop.
pub(crate) struct Server {
    child: Child,
    pub port: u16,
}

impl Server {
    #[expect(clippy::disallowed_methods, reason = "the benchmark's own server, which is killed on drop")]
    pub(crate) fn start(program: &Path, arguments: &Arguments, scale: f64, schedule: &Path) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/models/qwen3-8b");
        let mut command = Command::new(program);
        command.args(["sim", "serve"]).arg(model);
        command.args(["--served-model-name", "m", "--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--max-num-seqs", &arguments.streams.to_string(), "--max-num-batched-tokens", "16384"]);
        command.args(["--max-model-len", "4096", "--no-enable-prefix-caching", "--sim-device", DEVICE]);
        command.args(["--sim-startup-s", "0.1", "--sim-noise", "0", "--sim-time-scale", &scale.to_string()]);
        command.arg("--sim-schedule").arg(schedule).args(arguments.flags.split_whitespace());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut server = Self { child, port };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server ended at once: {status}").into());
            }
            if begin.elapsed() > Duration::from_secs(20) {
                return Err("the server does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    /// Returns the seconds of processor time so far.
    pub(crate) fn cpu_s(&self) -> Result<f64> {
        let stat = procfs::process::Process::new(i32::try_from(self.child.id())?)?.stat()?;
        let ticks = to_f64(stat.utime + stat.stime) / to_f64(procfs::ticks_per_second());
        Ok(ticks)
    }

    /// Ends the server with SIGTERM, so that its schedule is complete.
    pub(crate) fn stop(mut self) -> Result<()> {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id())?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
