//! A helper process that answers line by line; it is started, bounded and ended like an engine.

use std::collections::{BTreeMap, VecDeque};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::{LaunchMembers, Marker, SpawnError, describe_exit, orphan, start, stop};

/// The largest length of one line in bytes. vLLM describes all its flags in 0.1 MB.
const MAX_LINE_BYTES: u64 = 8 << 20;

/// The number of bytes at the end of standard error that are kept.
const MAX_ERROR_BYTES: usize = 4 << 10;

/// The time that a helper may take to end after it has closed its output. Its last errors may take as long to arrive.
const END_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum PipeError {
    #[error("it stopped answering ({status}); the end of its standard error: {errors}")]
    Ended { status: String, errors: String },
    #[error("it wrote a line of more than {MAX_LINE_BYTES} bytes")]
    TooLong,
    #[error("cannot communicate with it: {0}")]
    Io(#[from] std::io::Error),
}

/// A started helper. Dropping it kills it and all of its descendants. If the tuner dies in any way, the helper reads
/// the end of its input.
#[derive(Debug)]
pub struct HelperPipe {
    child: Child,
    members: Arc<LaunchMembers>,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The last bytes of standard error, and the task that reads them.
    errors: Arc<Mutex<VecDeque<u8>>>,
    draining: JoinHandle<()>,
}

impl HelperPipe {
    /// Starts a program. The variables in `env` are added to the tuner's own environment.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub fn spawn(command: &[String], env: &BTreeMap<String, String>, marker: Marker) -> Result<Self, SpawnError> {
        let [program, arguments @ ..] = command else { return Err(SpawnError::NoProgram) };
        let failed = |source| SpawnError::Program { program: program.clone(), source };
        let mut command = Command::new(program);
        command.args(arguments).envs(env);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut child, family) = start(&mut command, marker, None).map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors_from)) = pipes else {
            return Err(failed(std::io::Error::other("it has no pipes")));
        };
        let errors = Arc::default();
        let draining = tokio::spawn(drain(errors_from, Arc::clone(&errors)));
        Ok(Self { child, members: family, input, output: BufReader::new(output), errors, draining })
    }

    /// Writes one line; `line` must not contain a line end.
    ///
    /// # Errors
    /// If the helper accepts no more input.
    pub async fn write(&mut self, line: &str) -> Result<(), PipeError> {
        let written = async {
            self.input.write_all(line.as_bytes()).await?;
            self.input.write_all(b"\n").await?;
            self.input.flush().await
        };
        match written.await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Err(self.ended().await),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the next line without its line end. Not safe to cancel: the pipe cannot be used afterwards.
    ///
    /// # Errors
    /// If the helper has ended or floods its output.
    pub async fn read(&mut self) -> Result<String, PipeError> {
        let mut line = Vec::new();
        (&mut self.output).take(MAX_LINE_BYTES).read_until(b'\n', &mut line).await?;
        if line.pop_if(|last| *last == b'\n').is_some() {
            return Ok(String::from_utf8_lossy(&line).into_owned());
        }
        if line.len() as u64 == MAX_LINE_BYTES { Err(PipeError::TooLong) } else { Err(self.ended().await) }
    }

    /// Returns the helper's exit status and its last errors.
    async fn ended(&mut self) -> PipeError {
        let status = match tokio::time::timeout(END_LIMIT, self.child.wait()).await {
            Ok(Ok(status)) => describe_exit(status),
            Ok(Err(_)) => "unknown exit status".to_owned(),
            Err(_) => "it still runs".to_owned(),
        };
        let _ = tokio::time::timeout(END_LIMIT, &mut self.draining).await;
        PipeError::Ended { status, errors: self.errors() }
    }

    /// Returns the end of its standard error, or `nothing`.
    pub(super) fn errors(&self) -> String {
        // A panic while the lock was held leaves the bytes usable.
        let kept = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        match String::from_utf8_lossy(&bytes).trim() {
            "" => "nothing".to_owned(),
            text => text.to_owned(),
        }
    }
}

impl Drop for HelperPipe {
    fn drop(&mut self) {
        stop::kill_all(&self.members);
        orphan::forget(&self.members);
        self.draining.abort();
    }
}

async fn drain(mut from: ChildStderr, kept: Arc<Mutex<VecDeque<u8>>>) {
    let mut bytes = [0; 4096];
    // An error ends the loop like the end of the stream, because no more data can come.
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&bytes[..read]);
        let surplus = kept.len().saturating_sub(MAX_ERROR_BYTES);
        kept.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::process;
    use std::path::Path;

    fn shell(script: &str, purpose: &str) -> (HelperPipe, Marker) {
        let directory = std::env::temp_dir().join(format!("pipe-{}", std::process::id()));
        let marker = Marker::helper(Path::new(&directory), "pipe", purpose);
        let command = ["sh", "-c", script].map(str::to_owned);
        (HelperPipe::spawn(&command, &BTreeMap::new(), marker.clone()).unwrap(), marker)
    }

    #[tokio::test]
    async fn lines_pass_both_ways_and_the_end_has_its_status_and_last_errors() {
        let (mut pipe, _) = shell("read a; echo \"got $a\"; echo 'no engine' >&2; exit 7", "lines");
        pipe.write("one").await.unwrap();
        assert_eq!(pipe.read().await.unwrap(), "got one");
        let error = pipe.read().await.unwrap_err().to_string();
        assert_eq!(error, "it stopped answering (exit code 7); the end of its standard error: no engine");
    }

    #[tokio::test]
    async fn floods_are_bounded() {
        let (mut pipe, _) = shell("yes lament | head -c 1000000 >&2; echo up; yes | tr -d '\\n'", "flood");
        assert_eq!(pipe.read().await.unwrap(), "up");
        assert!(pipe.errors().len() <= MAX_ERROR_BYTES);
        assert!(matches!(pipe.read().await, Err(PipeError::TooLong)));
    }

    #[tokio::test]
    async fn an_abandoned_helper_is_ended_with_its_children() {
        let (mut pipe, marker) = shell("setsid sleep 600 & echo up; wait", "children");
        assert_eq!(pipe.read().await.unwrap(), "up");
        let left = || process::members(&[], |found| found == marker.value().as_bytes()).len();
        assert!(left() >= 1);
        drop(pipe);
        assert_eq!(left(), 0);
    }
}
