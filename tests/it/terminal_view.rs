//! `watch` and `tune --tui` in a real terminal: tmux on a socket of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::support::{Workplace, fast_study, signal, study_with, wait_until};

/// The longest wait for a screen.
const LIMIT: Duration = Duration::from_secs(30);

/// A terminal with a shell in the directory of a workplace. Its server ends with it.
struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    fn new(workplace: &Workplace, columns: u16, rows: u16) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let socket = workplace.path(&format!("tmux-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let tmux = Self { socket };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let directory = workplace.path("").to_string_lossy().into_owned();
        let shell =
            "exec env -u SETPOINT_DB -u NO_COLOR LANG=C.UTF-8 LC_ALL=C.UTF-8 PS1='ready> ' bash --norc --noprofile";
        tmux.run(&["-u", "new-session", "-d", "-x", &columns, "-y", &rows, "-c", &directory, shell]);
        tmux.wait("the prompt", |screen| screen.contains("ready>"));
        tmux
    }

    #[expect(clippy::disallowed_methods, reason = "a program of the test")]
    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(arguments);
        command.env_remove("TMUX").output().expect("tmux is needed by this test: install the package tmux")
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    /// Types a command line.
    fn type_line(&self, line: &str) {
        self.run(&["send-keys", "-l", line]);
        self.keys(&["Enter"]);
    }

    fn setpoint(&self, arguments: &str) {
        self.type_line(&format!("clear; {} {arguments}", env!("CARGO_BIN_EXE_setpoint")));
    }

    /// Waits until the screen has a property, and returns the screen.
    fn wait(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let begin = std::time::Instant::now();
        while begin.elapsed() < LIMIT {
            screen = self.screen();
            if holds(&screen) {
                return screen;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{what} did not come within {LIMIT:?}:\n{screen}");
    }

    fn wait_for(&self, texts: &[&str]) -> String {
        self.wait(&format!("{texts:?}"), |screen| texts.iter().all(|text| screen.contains(text)))
    }

    /// Waits for the shell, and checks that its terminal is as before: lines with an echo, and the first screen.
    fn wait_for_shell(&self) {
        self.wait("the shell's screen", |screen| screen.contains("ready>") && !screen.contains("Trials"));
        self.type_line("clear; stty -a | tr ' ' '\\n' | grep -cx 'icanon;*\\|echo;*\\|isig;*\\|opost;*'");
        self.wait("a terminal in its usual mode", |screen| screen.lines().any(|line| line.trim() == "4"));
        assert_eq!(self.run(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]).trim(), "0 1");
    }

    fn resize(&self, columns: u16, rows: u16) {
        self.run(&["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
    }

    /// Returns the process of this program in the terminal.
    fn process(&self, name: &str) -> i32 {
        let terminal = self.run(&["display-message", "-p", "#{pane_tty}"]);
        let terminal = std::fs::canonicalize(terminal.trim()).unwrap();
        let is_of = |process: &procfs::process::Process| {
            let words = process.cmdline().unwrap_or_default();
            let is_named = words.first().is_some_and(|word| word == env!("CARGO_BIN_EXE_setpoint"));
            let input = std::fs::read_link(format!("/proc/{}/fd/0", process.pid())).unwrap_or_default();
            is_named && words.get(1).is_some_and(|word| word == name) && input == terminal
        };
        let mut found = None;
        wait_until(LIMIT, &format!("setpoint {name}"), || {
            found = procfs::process::all_processes().unwrap().flatten().find(is_of);
            found.is_some()
        });
        found.unwrap().pid()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.output(&["kill-server"]);
    }
}

fn is_alive(process: i32) -> bool {
    let stat = procfs::process::Process::new(process).and_then(|process| process.stat());
    stat.is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

fn wait_for_end(process: i32) {
    wait_until(LIMIT, &format!("the end of process {process}"), || !is_alive(process));
}

/// Returns a workplace with a study of four trials that has ended.
fn measured() -> Workplace {
    let workplace = Workplace::with_study(&fast_study());
    let tuned = workplace.run(&["tune", "study.toml"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    workplace
}

/// Returns a study whose trials take about a second each.
fn slow_study(trials: u32) -> String {
    let study = study_with("", &format!("trials = {trials}\nconfirm = 0"));
    study.replace("\"0.02\"", "\"0.2\"").replace("requests = 16", "requests = 200").replace("\"200\"", "\"20\"")
}

#[test]
fn watch_shows_a_study_at_three_sizes_and_gives_the_terminal_back() {
    let workplace = measured();
    for (columns, rows) in [(80, 24), (120, 40), (200, 60)] {
        let tmux = Tmux::new(&workplace, columns, rows);
        tmux.setpoint("watch");
        let screen = tmux.wait_for(&["study fast", "4 measured", "best: trial", "Trials (1 of 4", "Log of trial 3"]);
        assert!(screen.contains("output tok/s") && screen.contains("engine's defaults"), "{screen}");
        assert_eq!(screen.contains("Best configuration: trial"), columns > 100, "{screen}");
        let is_framed =
            screen.lines().filter(|line| line.ends_with('╮')).all(|line| line.chars().count() == usize::from(columns));
        assert!(is_framed, "{screen}");
        tmux.keys(&["?"]);
        tmux.wait_for(&["Help", "the best configuration so far"]);
        tmux.keys(&["Escape"]);
        tmux.wait("the view without help", |screen| !screen.contains("Help"));
        tmux.keys(&["Down", "Down", "Tab", "Tab"]);
        tmux.wait_for(&["Trials (3 of 4", "Log of trial 1"]);
        tmux.keys(&["q"]);
        tmux.wait_for_shell();
        tmux.setpoint("watch; echo code $?");
        tmux.wait_for(&["Trials (1 of 4"]);
        tmux.keys(&["C-c"]);
        tmux.wait_for(&["code 0"]);
        tmux.wait_for_shell();
    }
}

#[test]
fn the_view_follows_the_size_of_its_terminal() {
    let workplace = measured();
    let tmux = Tmux::new(&workplace, 120, 40);
    tmux.setpoint("watch");
    tmux.wait_for(&["Best configuration: trial", "Log of trial 3"]);
    tmux.resize(80, 24);
    tmux.wait("the tabs of a small terminal", |screen| {
        screen.contains("objective") && !screen.contains("Best configuration")
    });
    tmux.resize(40, 10);
    tmux.wait("one panel", |screen| screen.contains("Trials (1 of 4") && !screen.contains("Log"));
    tmux.resize(20, 5);
    tmux.wait_for(&["terminal too small"]);
    tmux.resize(200, 60);
    let screen = tmux.wait_for(&["Best configuration: trial", "Log of trial 3", "by trial"]);
    assert!(!screen.contains("too small"), "{screen}");
    tmux.keys(&["q"]);
    tmux.wait_for_shell();
}

#[test]
fn a_suspended_view_gives_the_terminal_to_the_shell_and_comes_back() {
    let workplace = measured();
    let tmux = Tmux::new(&workplace, 80, 24);
    tmux.setpoint("watch");
    tmux.wait_for(&["Trials (1 of 4"]);
    for _ in 0..2 {
        tmux.keys(&["C-z"]);
        tmux.wait_for(&["Stopped", "ready>"]);
        tmux.wait_for_shell();
        tmux.type_line("fg");
        tmux.wait_for(&["study fast", "Trials (1 of 4", "Log of trial 3"]);
    }
    // A stop from elsewhere is the same to the terminal.
    let process = nix::unistd::Pid::from_raw(tmux.process("watch"));
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTSTP).unwrap();
    tmux.wait_for(&["Stopped", "ready>"]);
    tmux.wait_for_shell();
    // In the background it must neither draw nor read.
    tmux.type_line("bg; clear");
    tmux.wait_for_shell();
    assert!(is_alive(process.as_raw()));
    tmux.type_line("fg");
    tmux.wait_for(&["Trials (1 of 4"]);
    tmux.keys(&["q"]);
    tmux.wait_for_shell();
}

#[test]
fn a_view_whose_terminal_is_gone_ends() {
    let workplace = measured();
    // The second one gets no SIGHUP: it belongs to another session.
    for prefix in ["", "setsid -w "] {
        let tmux = Tmux::new(&workplace, 80, 24);
        tmux.type_line(&format!("clear; {prefix}{} watch", env!("CARGO_BIN_EXE_setpoint")));
        tmux.wait_for(&["Trials (1 of 4"]);
        let process = tmux.process("watch");
        drop(tmux);
        wait_for_end(process);
    }
    // Without a shell nothing could continue a stopped view, so that Ctrl-Z has no effect.
    let tmux = Tmux::new(&workplace, 80, 24);
    tmux.type_line(&format!("exec {} watch", env!("CARGO_BIN_EXE_setpoint")));
    tmux.wait_for(&["Trials (1 of 4"]);
    tmux.keys(&["C-z", "?"]);
    tmux.wait_for(&["Help"]);
}

#[test]
fn watch_follows_a_study_that_runs() {
    let workplace = Workplace::with_study(&slow_study(500));
    let mut tuner = workplace.start(&["tune", "study.toml"]);
    let database = workplace.path("setpoint.db");
    wait_until(LIMIT, "the database", || database.exists());
    wait_until(LIMIT, "the study", || workplace.run(&["studies"]).stdout.contains("fast"));
    let tmux = Tmux::new(&workplace, 120, 40);
    tmux.setpoint("watch --interval 100ms");
    tmux.wait_for(&["running for", "2 measured", "Current launch"]);
    tmux.wait("a live log", |screen| screen.contains("(live)") && screen.contains("INFO"));
    tmux.wait_for(&["server is up"]);
    signal(&tuner, nix::sys::signal::Signal::SIGINT);
    assert_eq!(tuner.wait().unwrap().code(), Some(130));
    // Between two launches no trial is interrupted.
    let ended = ["interrupted; the next run", "the study is not running"];
    tmux.wait("the end of the run", |screen| {
        screen.contains("stopped") && ended.iter().any(|text| screen.contains(text))
    });
    tmux.keys(&["q"]);
    tmux.wait_for_shell();
}

#[test]
fn tune_shows_the_view_and_ends_with_its_usual_output() {
    let workplace = Workplace::with_study(&slow_study(4));
    let tmux = Tmux::new(&workplace, 120, 40);
    tmux.setpoint("tune study.toml --tui > card.txt; echo code $?");
    tmux.wait_for(&["study fast", "of 4 trials", "Current launch", "plain output"]);
    tmux.wait_for(&["running for", "(live)"]);
    let screen = tmux.wait_for(&["code 0", "done: the budget of trials is spent"]);
    assert!(screen.contains("engine's defaults"), "the rows of the trials: {screen}");
    tmux.wait_for_shell();
    let card = std::fs::read_to_string(workplace.path("card.txt")).unwrap();
    assert!(card.contains("best: trial") && !card.contains('\u{1b}'), "{card}");
    assert_eq!(workplace.trials().len(), 4);
}

#[test]
fn tune_goes_on_in_plain_lines_after_q_and_stops_in_order_after_ctrl_c() {
    let workplace = Workplace::with_study(&slow_study(500));
    let tmux = Tmux::new(&workplace, 100, 40);
    tmux.setpoint("tune study.toml --tui");
    tmux.wait_for(&["Trials (1 of", "running for"]);
    tmux.keys(&["q"]);
    tmux.wait("plain lines", |screen| screen.contains("changed flags") && !screen.contains("Trials ("));
    tmux.wait_for(&["of 500 trials"]);
    tmux.keys(&["C-z"]);
    tmux.wait_for(&["Stopped", "ready>"]);
    tmux.type_line("clear; fg; echo code $?");
    tmux.wait_for(&["of 500 trials"]);
    tmux.keys(&["C-c"]);
    tmux.wait_for(&["interrupted", "code 130"]);
    tmux.wait_for_shell();
    tmux.setpoint("tune study.toml --tui");
    tmux.wait_for(&["Trials ("]);
    tmux.keys(&["C-z"]);
    tmux.wait_for(&["Stopped"]);
    tmux.wait_for_shell();
    tmux.type_line("fg; echo code $?");
    tmux.wait_for(&["Trials ("]);
    tmux.keys(&["C-c"]);
    tmux.wait_for(&["interrupted", "code 130"]);
    tmux.wait_for_shell();
}

#[test]
fn tune_goes_on_without_its_terminal() {
    let workplace = Workplace::with_study(&slow_study(6));
    let tmux = Tmux::new(&workplace, 80, 24);
    tmux.type_line(&format!("clear; setsid -w {} tune study.toml --tui", env!("CARGO_BIN_EXE_setpoint")));
    tmux.wait_for(&["Trials (1 of", "running for"]);
    let process = tmux.process("tune");
    drop(tmux);
    wait_for_end(process);
    assert_eq!(workplace.trials().len(), 6);
}

#[test]
fn tune_stops_in_order_when_its_terminal_is_closed() {
    let workplace = Workplace::with_study(&slow_study(500));
    let tmux = Tmux::new(&workplace, 80, 24);
    tmux.setpoint("tune study.toml --tui");
    tmux.wait_for(&["Trials (1 of", "running for"]);
    let process = tmux.process("tune");
    drop(tmux);
    wait_for_end(process);
    assert_eq!(workplace.processes_left(), [0; 0]);
    let resumed = workplace.run(&["tune", "study.toml", "--trials", "2"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
}

#[test]
fn without_a_terminal_both_are_wrong_usage_with_a_hint() {
    let workplace = measured();
    let run = |arguments: &[&str]| {
        let ended = workplace.run(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        ended.stderr
    };
    let watched = run(&["watch"]);
    assert!(watched.contains("watch needs a terminal") && watched.contains("setpoint trials"), "{watched}");
    assert!(run(&["tune", "study.toml", "--tui"]).contains("--tui needs a terminal"));
    assert!(run(&["tune", "study.toml", "--tui", "--quiet"]).contains("--tui cannot be used with --quiet"));
    assert!(run(&["tune", "study.toml", "--tui", "--log-format", "json"]).contains("--log-format json"));
    run(&["tune", "study.toml", "--tui", "--dry-run"]);
    assert!(Path::new(&workplace.path("setpoint.db")).exists());
}
