//! Fast starts of a small Python program whose child is spawned by multiprocessing.

use super::*;
use crate::engine::resolve_program;
use crate::server::{Server, SpawnParameters, process};

/// The program prints its arguments and variables, and starts a child with a variable of its own. The child ends with an
/// exit code if it is asked to.
const PROGRAM: &str = r#"
import atexit, json, multiprocessing, os, sys, time

def child(queue):
    print("child", os.environ["ROLE"], json.__name__, flush=True)
    queue.put(os.getpid())
    queue.close()
    queue.join_thread()
    if "fail" in sys.argv:
        os._exit(7)
    time.sleep(600)

if __name__ == "__main__":
    print("arguments", *sys.argv[1:], "color", os.environ.get("COLOR"), flush=True)
    # It stays in the buffer until the stream is flushed.
    atexit.register(print, "at exit")
    if "raise" in sys.argv:
        raise ValueError("wrong")
    if "text" in sys.argv:
        sys.exit("a text")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    os.environ["ROLE"] = "worker"
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get() == process.pid
    print("pid", process.pid, flush=True)
    if "fail" in sys.argv:
        process.join()
        print("exit code", process.exitcode, flush=True)
        sys.exit(3)
    time.sleep(600)
"#;

struct Engine {
    directory: tempfile::TempDir,
    fast: FastStart,
    starter: Starter,
}

impl Engine {
    /// Returns the program with its starter. `None` without a Python.
    async fn new() -> Option<Self> {
        let python = resolve_program("python3")?;
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("engine");
        std::fs::write(&script, format!("#!{}\n{PROGRAM}", python.display())).unwrap();
        let command = vec![script.to_string_lossy().into_owned()];
        let fast = FastStart::of_command(&command, "engine", &["json", "no_such_module"]).unwrap();
        let marker = Marker::helper(&directory.path().join("test.db"), "fast", "starter");
        let starter = Starter::start(&fast, marker).await.unwrap();
        Some(Self { directory, fast, starter })
    }

    async fn launch(&self, trial: u32, color: &str, argument: &str) -> Server {
        let mut spawn = SpawnParameters::of_script(self.directory.path(), "sh", "exit 9", "fast", trial);
        spawn.env = [("COLOR".to_owned(), color.to_owned())].into();
        let mut fast = self.fast.clone();
        fast.command.push(argument.to_owned());
        let order = self.starter.prepare(fast, &spawn.env, &spawn.marker, None).await.unwrap();
        spawn.fast = Some(order);
        Server::spawn(&spawn).unwrap()
    }

    fn waiting(&self) -> usize {
        std::fs::read_dir(&self.starter.folder)
            .unwrap()
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|end| end == "sock"))
            .count()
            - 1
    }
}

/// Waits for a line that begins with these words, and returns the rest of it.
async fn line(server: &Server, words: &str) -> String {
    let begin = Instant::now();
    loop {
        let text = server.log_text();
        if let Some(rest) = text.lines().find_map(|line| line.strip_prefix(words)) {
            return rest.trim().to_owned();
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "no {words:?} in {text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_fork_is_a_launch_with_its_own_environment_log_and_children() {
    let Some(engine) = Engine::new().await else { return };
    for (trial, color) in [(1, "red"), (2, "red"), (3, "blue")] {
        let server = engine.launch(trial, color, "serve").await;
        assert!(server.is_fast());
        assert_eq!(line(&server, "arguments").await, format!("serve color {color}"));
        assert_eq!(line(&server, "child").await, "worker json");
        let child: i32 = line(&server, "pid").await.parse().unwrap();
        let marker = server.marker.value();
        assert!(marker.ends_with(&format!("|fast|{trial}")));
        let child = ProcessEntry::read(child).unwrap();
        assert_eq!(child.marker(), Some(marker.clone().into_bytes()));
        let members = server.members();
        assert!(members.contains(&child) && members.len() >= 2, "{members:?}");
        assert_ne!(child.parent, server.members.leader.pid, "a waiting process has forked the child");
        server.stop(Duration::from_secs(5)).await.unwrap();
        assert!(process::members(&[], |found| found == marker.as_bytes()).is_empty());
        // One waits for the launch and one for its child, for each color.
        assert_eq!(engine.waiting(), if color == "red" { 2 } else { 4 });
    }
    let (folder, marker) =
        (engine.starter.folder.clone(), Marker::helper(&engine.directory.path().join("test.db"), "fast", "starter"));
    drop(engine);
    assert!(!folder.exists());
    assert!(process::members(&[], |found| found == marker.value().as_bytes()).is_empty());
}

#[tokio::test]
async fn exit_codes_and_signals_are_those_of_plain_launches() {
    let Some(engine) = Engine::new().await else { return };
    let mut server = engine.launch(1, "red", "fail").await;
    assert_eq!(server.wait_for_exit().await.code(), Some(3));
    assert_eq!(line(&server, "exit code").await, "7", "the exit code of the child");
    server.stop(Duration::ZERO).await.unwrap();

    for (trial, argument, text) in [(3, "raise", "ValueError: wrong"), (4, "text", "a text")] {
        let mut server = engine.launch(trial, "red", argument).await;
        assert_eq!(server.wait_for_exit().await.code(), Some(1));
        let log = server.log_text();
        assert!(log.contains(text) && log.contains("at exit\n"), "{log}");
        server.stop(Duration::ZERO).await.unwrap();
    }

    let mut server = engine.launch(2, "red", "serve").await;
    let child: i32 = line(&server, "pid").await.parse().unwrap();
    server.members.leader.signal(nix::sys::signal::Signal::SIGKILL);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&server.wait_for_exit().await), Some(9));
    // The child outlives its parent, as the child of a plain launch does.
    assert!(server.members().iter().any(|member| member.pid == child), "{:?}", server.members());
    server.stop(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn a_start_after_the_end_of_the_waiting_processes_is_refused() {
    let Some(engine) = Engine::new().await else { return };
    let server = engine.launch(1, "red", "serve").await;
    server.stop(Duration::ZERO).await.unwrap();
    let mut spawn = SpawnParameters::of_script(engine.directory.path(), "sh", "exit 9", "fast", 2);
    spawn.env = [("COLOR".to_owned(), "red".to_owned())].into();
    spawn.fast = Some(engine.starter.prepare(engine.fast.clone(), &spawn.env, &spawn.marker, None).await.unwrap());
    drop(engine.starter);
    assert!(matches!(Server::spawn(&spawn), Err(SpawnError::Fork { .. })));
}
