//! Runs of the binary in a directory of its own.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

/// Returns the project's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A directory with a study file in it, removed at the end.
pub(crate) struct Workplace {
    directory: tempfile::TempDir,
}

pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Workplace {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// Creates a workplace with this `study.toml`.
    pub(crate) fn with_study(text: &str) -> Self {
        let workplace = Self::new();
        workplace.write("study.toml", text);
        workplace
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_setpoint"));
        command.args(arguments).current_dir(self.directory.path());
        command.env_remove("SETPOINT_DB").env_remove("COLUMNS").env("NO_COLOR", "1").stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        ended(self.command(arguments).output().unwrap())
    }

    /// Runs the program to its end, with variables in its environment and a text on its standard input.
    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    pub(crate) fn run_with(&self, variables: &[(&str, &str)], input: &str, arguments: &[&str]) -> Ended {
        self.write("input.txt", input);
        let mut command = self.command(arguments);
        command.envs(variables.iter().copied()).stdin(std::fs::File::open(self.path("input.txt")).unwrap());
        ended(command.output().unwrap())
    }

    /// Starts the program and returns at once. Standard error goes to `stderr.txt`.
    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let stderr = std::fs::File::create(self.path("stderr.txt")).unwrap();
        self.command(arguments).stdout(Stdio::null()).stderr(stderr).spawn().unwrap()
    }

    /// Starts the program with variables in its environment. Returns it with its standard output. Standard error goes to
    /// `stderr.txt`.
    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    pub(crate) fn start_piped(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (Child, ChildStdout) {
        let stderr = std::fs::File::create(self.path("stderr.txt")).unwrap();
        let mut command = self.command(arguments);
        let mut process =
            command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let stdout = process.stdout.take().unwrap();
        (process, stdout)
    }

    /// Starts another program in the workplace. Its output goes to `stderr.txt`.
    #[expect(clippy::disallowed_methods, reason = "a program of the test")]
    pub(crate) fn start_other(&self, program: &Path, arguments: &[&str]) -> Child {
        let output = std::fs::File::create(self.path("stderr.txt")).unwrap();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.directory.path()).stdin(Stdio::null());
        command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap()
    }

    /// Starts a run and kills it after the time `after`, if any. Returns `None` if it was killed, else its exit status.
    pub(crate) fn run_or_kill(&self, arguments: &[&str], after: Option<Duration>) -> Option<ExitStatus> {
        let mut started = self.start(arguments);
        let begin = Instant::now();
        loop {
            if let Some(status) = started.try_wait().unwrap() {
                return Some(status);
            }
            if after.is_some_and(|after| begin.elapsed() >= after) {
                signal(&started, nix::sys::signal::Signal::SIGKILL);
                started.wait().unwrap();
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Runs the program and parses its standard output as JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Json {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    pub(crate) fn trials(&self) -> Vec<Json> {
        match self.json(&["trials", "--format", "json"]) {
            Json::Array(trials) => trials,
            other => panic!("not an array: {other}"),
        }
    }

    /// Returns the living processes that work in this directory, without the tuner itself. An engine may rename itself
    /// and overwrite its environment, but not its working directory.
    pub(crate) fn processes_left(&self) -> Vec<i32> {
        let here = self.directory.path().canonicalize().unwrap();
        let processes = procfs::process::all_processes().unwrap().flatten();
        let ours = |process: &procfs::process::Process| {
            let alive = process.stat().is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'));
            let tuner = process.cmdline().is_ok_and(|words| words.get(1).is_some_and(|word| word == "tune"));
            alive && !tuner && process.cwd().is_ok_and(|directory| directory == here)
        };
        processes.filter(ours).map(|process| process.pid()).collect()
    }

    /// Waits until standard error of a started program contains this text.
    pub(crate) fn wait_for(&self, text: &str) {
        wait_until(Duration::from_secs(30), &format!("{text:?} on standard error"), || {
            std::fs::read_to_string(self.path("stderr.txt")).is_ok_and(|stderr| stderr.contains(text))
        });
    }
}

fn ended(output: std::process::Output) -> Ended {
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(crate) fn wait_until(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit, "{what} did not come within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to a process that a test has started.
pub(crate) fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, signal).unwrap();
}

/// Returns a study on the simulated engine. A trial takes a fraction of a second.
pub(crate) fn fast_study() -> String {
    study_with("", "trials = 4\nconfirm = 0")
}

/// Like [`fast_study`], but with further lines of `[engine]` and other lines of `[budget]`.
pub(crate) fn study_with(engine: &str, budget: &str) -> String {
    let model = root().join("examples/models/qwen3-8b");
    format!(
        r#"
[study]
name = "fast"
seed = 3
sampler = "sobol"

[engine]
kind = "sim"
args = ["--sim-time-scale", "200", "--sim-startup-s", "0.02", "--sim-noise", "0"]
startup_timeout = "20s"
stop_timeout = "5s"
retry_after = "50ms"
{engine}

[model]
path = "{}"

[space]
fixed = {{ max-model-len = 2048 }}

[space.parameters.max-num-seqs]
kind = "int"
scale = "pow2"
low = 1
high = 16

[space.parameters.max-num-batched-tokens]
kind = "categorical"
choices = [8, 256, 2048]

[workload]
kind = "random"
input_len = 32
output_len = 8

[load]
concurrency = 8
requests = 16
warmup = 4
request_timeout = "10s"

[objective]
maximize = "output_throughput"

[budget]
repeat_baseline = 0
{budget}
"#,
        model.display()
    )
}

/// Reads a file of the folder `shared` beside the project's root, which holds data that this repository may not ship.
/// Tests that need it are ignored by attribute.
pub(crate) fn shared(name: &str) -> String {
    read(&root().join("../shared").join(name))
}

/// Reads the recorded verdicts of vLLM 0.32.0 on 80 lists of arguments.
pub(crate) fn recorded_cases() -> String {
    read(&root().join("tests/fixtures/vllm-cases-0.32.0.json"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a path below `tests/fixtures/public`, the folder of measurements published by others.
pub(crate) fn public_path(name: &str) -> PathBuf {
    root().join("tests/fixtures/public").join(name)
}

/// Reads a table: one map from column to text for each row.
pub(crate) fn table(path: &Path) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    reader.deserialize().map(|row| row.unwrap()).collect()
}

/// Reports in one line that something was not tested. The test harness captures `println!` of passing tests, but not
/// this.
pub(crate) fn say_skipped(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

/// Runs named courses, `at_a_time` of them in parallel, and fails with the names of all that failed. For courses that
/// wait more than they compute: each would otherwise occupy a thread of the test harness.
pub(crate) fn all_pass<'a, F: FnOnce()>(at_a_time: usize, courses: impl Iterator<Item = (&'a str, F)> + Send) {
    let (next, failed) = (Mutex::new(courses), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some((name, course)) = next.lock().unwrap().next() else { break };
            if catch_unwind(AssertUnwindSafe(course)).is_err() {
                failed.lock().unwrap().push(name);
            }
        }
    };
    std::thread::scope(|scope| (0..at_a_time).for_each(|_| drop(scope.spawn(work))));
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failed: {failed:?}");
}

/// Runs a query on the database of a workplace.
pub(crate) fn query<T>(workplace: &Workplace, sql: &'static str) -> Vec<T>
where
    T: for<'r> sqlx::FromRow<'r, sqlx::sqlite::SqliteRow> + Send + Unpin,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(workplace.path("setpoint.db"));
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        sqlx::query_as(sql).fetch_all(&pool).await.unwrap()
    })
}
