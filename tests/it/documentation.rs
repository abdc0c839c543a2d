//! Runs the commands of the README and of the book, each chapter in a directory of its own.
//!
//! A chapter's directory holds the folders of a clone that commands name. Its `PATH` begins with stand-ins: `cargo run
//! --release --` starts the built program, `vllm` starts the simulated engine. Blocks of one chapter run in their order,
//! so that a later one finds the database of an earlier one. Comments before a block are its markers (`blocks::Marker`).

mod blocks;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::fake_nvml::{self, h100};
use crate::support::{Workplace, all_pass, root, say_skipped, signal, wait_until};
use blocks::{CodeBlock, Language, Marker, extract};

/// Number of blocks that run if all of their programs are installed. A change of the documents changes it as well.
const RUN: usize = 32;

/// Number of chapters that run at the same time.
const AT_A_TIME: usize = 3;

/// The limit of one block.
const SECONDS: &str = "60";

/// The project's commands that build and start the program.
const CARGO: &str = r#"
if [ "$1 $2 $3" = "run --release --" ]; then
    shift 3
    exec setpoint "$@"
fi
echo "only \`cargo run --release -- ARGUMENTS\` is known here; mark the block" >&2
exit 9
"#;

/// The engine of a GPU machine. Its version is that of the rules that the chapters show.
const VLLM: &str = r#"
[ "$1" = serve ] || exit 9
name=$2
shift 2
exec setpoint sim serve '{root}/examples/models/qwen3-8b' --served-model-name "$name" \
    --sim-vllm-version 0.33.0 --sim-time-scale 200 --sim-startup-s 0.02 "$@"
"#;

/// Makes a study short: two parameters, few and small requests, a fast clock, and limits that a busy machine keeps.
const SHORTEN: &str = r#"
sed -i -E -e 's/^(trials) = .*/\1 = 3/' -e '/^(prior|confirm|goodput|max_total_len) = /d' -e 's/^(at_most) = .*/\1 = 60000/' \
    -e 's/^(concurrency) = .*/\1 = 8/' -e 's/^(requests) = .*/\1 = 16/' -e 's/^(warmup) = .*/\1 = 4/' \
    -e 's/^(input_len) = .*/\1 = 32/' -e 's/^(output_len) = .*/\1 = 8/' \
    -e 's/"--sim-time-scale", "20", "--sim-startup-s", "0.4"/"--sim-time-scale", "200", "--sim-startup-s", "0.02"/' \
    -e 's/^name = .*/&\nprior = []/' -e 's/^file = .*/&\nonly = ["max-num-seqs", "max-num-batched-tokens"]/' "$@"
"#;

/// A model in the cache of the hub, which a study names.
const MODEL: &str = "home/.cache/huggingface/hub/models--Qwen--Qwen3-8B";

/// A chapter's directory, and its state between blocks.
struct Chapter<'a> {
    name: &'a str,
    workplace: Workplace,
    has_gpus: bool,
}

/// The number of blocks by their end.
#[derive(Clone, Copy, Default)]
struct Counts {
    ran: usize,
    left_out: usize,
    /// Blocks whose program is not installed.
    skipped: usize,
}

/// What a command left.
struct Output {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Returns the documents whose commands run, with their names.
fn documents() -> Vec<(String, String)> {
    let chapters = std::fs::read_dir(root().join("docs/src")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = chapters.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    paths.push(root().join("README.md"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).unwrap())
    };
    paths.iter().map(read).collect()
}

impl<'a> Chapter<'a> {
    /// Prepares the directory of a reader who has cloned and built the project.
    fn new(name: &'a str) -> Self {
        let chapter = Self { name, workplace: Workplace::new(), has_gpus: false };
        let path = |name: &str| chapter.workplace.path(name);
        for folder in ["examples", "search_spaces"] {
            copy(&root().join(folder), &path(folder));
        }
        for folder in ["bin", "home"] {
            std::fs::create_dir(path(folder)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_setpoint"), path("bin/setpoint")).unwrap();
        for (name, text) in [("cargo", CARGO), ("vllm", VLLM), ("shorten", SHORTEN)] {
            let name = format!("bin/{name}");
            let text = text.replace("{root}", &root().to_string_lossy());
            chapter.workplace.write(&name, &format!("#!/bin/sh\n{text}"));
            std::fs::set_permissions(path(&name), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let snapshot = format!("{MODEL}/snapshots/0123456789abcdef0123456789abcdef01234567");
        copy(&root().join("examples/models/qwen3-8b"), &path(&snapshot));
        std::fs::create_dir(path(&format!("{MODEL}/refs"))).unwrap();
        chapter.workplace.write(&format!("{MODEL}/refs/main"), "0123456789abcdef0123456789abcdef01234567");
        chapter
    }

    /// Runs a script in the chapter's directory, with a text on its standard input.
    #[expect(clippy::disallowed_methods, reason = "the shell of a reader")]
    fn shell(&self, script: &str, input: &str) -> Output {
        let path = |name: &str| self.workplace.path(name);
        self.workplace.write("bin/script", script);
        self.workplace.write("bin/input", input);
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", SECONDS, "sh", "-e", "bin/script"]).current_dir(path(""));
        command.stdin(std::fs::File::open(path("bin/input")).unwrap());
        let variables = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{variables}", path("bin").display())).env("HOME", path("home"));
        for name in ["SETPOINT_DB", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        command.env("NO_COLOR", "1");
        if self.has_gpus {
            command.env("SETPOINT_NVML", fake_nvml::library()).env("FAKE_NVML", path("home/devices"));
        }
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// Runs a block, and counts its end.
    fn run(&mut self, block: &CodeBlock, counts: &mut Counts) {
        let (mut codes, mut server, mut file, mut program) = (vec![0], None, None, None);
        for marker in &block.markers {
            match marker {
                Marker::NotRun(_) => {
                    counts.left_out += 1;
                    return;
                }
                Marker::Exit(other) => codes.clone_from(other),
                Marker::Setup(command) => self.expect(block, &[0], &self.shell(command, "")),
                Marker::File(name) => file = Some(name),
                Marker::Gpus(count) => {
                    let devices: String = (0..*count).map(|index| h100(u32::try_from(index).unwrap(), &[])).collect();
                    self.workplace.write("home/devices", &devices);
                    self.has_gpus = true;
                }
                Marker::Server(flags) => server = Some(Server::start(&self.workplace, flags)),
                Marker::Needs(program) if !self.is_installed(program) => {
                    say_skipped(&format!("{}:{}: {program} is not installed", self.name, block.line));
                    counts.skipped += 1;
                    return;
                }
                Marker::Needs(_) => {}
                Marker::Dialogue(command) => program = Some(command),
            }
        }
        let address = |text: &str| match &server {
            Some(server) => text.replace("127.0.0.1:8000", &format!("127.0.0.1:{}", server.port)),
            None => text.to_owned(),
        };
        match block.language {
            Language::Shell => self.expect(block, &codes, &self.shell(&address(&block.text), "")),
            Language::Console => {
                let (script, shown) = block.console();
                let output = self.shell(&address(&script), "");
                self.expect(block, &codes, &output);
                let lines: Vec<_> = output.stdout.lines().chain(output.stderr.lines()).collect();
                for line in shown {
                    assert!(lines.contains(&line), "{}:{}: {line}\n{lines:#?}", self.name, block.line);
                }
            }
            Language::Toml => {
                let name = file.expect("the extractor requires it");
                self.workplace.write(name, &block.text);
                self.expect(block, &codes, &self.shell(&format!("setpoint check {name}"), ""));
            }
            Language::Dialogue => {
                let program = program.expect("the extractor requires it");
                let output = self.shell(program, &(block.spoken("> ").join("\n") + "\n"));
                self.expect(block, &codes, &output);
                let answers: Vec<_> = output.stdout.lines().collect();
                assert_eq!(answers, block.spoken("< "), "{}:{}", self.name, block.line);
            }
        }
        counts.ran += 1;
    }

    fn is_installed(&self, program: &str) -> bool {
        self.shell(&format!("command -v {program}"), "").code == Some(0)
    }

    /// Checks the exit code of a command of this block.
    fn expect(&self, block: &CodeBlock, codes: &[i32], output: &Output) {
        let (name, line, text) = (self.name, block.line, &block.text);
        assert!(
            output.code.is_some_and(|code| codes.contains(&code)),
            "{name}:{line}: exit code {:?}, {codes:?} is expected (124: no end after {SECONDS} s)\n{text}\n{}\n{}",
            output.code,
            output.stdout,
            output.stderr
        );
    }
}

/// Copies a folder with the permissions of its files.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A simulated engine for the commands of a block. It ends with the block.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(workplace: &Workplace, flags: &str) -> Self {
        let port = setpoint::server::free_port().unwrap();
        let number = port.to_string();
        let serve = ["sim", "serve", "examples/models/qwen3-8b", "--port", &number, "--sim-startup-s", "0.02"];
        let flags: Vec<_> = flags.split_whitespace().collect();
        let server = Self { process: workplace.start(&[&serve[..], &flags[..]].concat()), port };
        wait_until(Duration::from_secs(30), "the engine", || crate::study::health(port));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        signal(&self.process, Signal::SIGTERM);
        let _ = self.process.wait();
    }
}

#[test]
fn every_command_of_the_documents_runs() {
    let documents = documents();
    let chapters: Vec<_> = documents
        .iter()
        .map(|(name, text)| match extract(text) {
            Ok(blocks) => (name.as_str(), blocks),
            Err(problems) => panic!("{name}:{}", problems.join(&format!("\n{name}:"))),
        })
        .filter(|(_, blocks)| !blocks.is_empty())
        .collect();
    let total = Mutex::new(Counts::default());
    let course = |(name, blocks)| {
        let (blocks, total): (&Vec<CodeBlock>, _) = (blocks, &total);
        (name, move || {
            let (begin, mut chapter, mut counts) = (Instant::now(), Chapter::new(name), Counts::default());
            for block in blocks {
                chapter.run(block, &mut counts);
            }
            assert_eq!(chapter.workplace.processes_left(), [] as [i32; 0], "{name}");
            println!("{name}: {} of {} blocks in {:.1} s", counts.ran, blocks.len(), begin.elapsed().as_secs_f64());
            let mut total = total.lock().unwrap();
            total.ran += counts.ran;
            total.left_out += counts.left_out;
            total.skipped += counts.skipped;
        })
    };
    all_pass(AT_A_TIME, chapters.iter().map(|(name, blocks)| course((*name, blocks))));
    // The number of blocks comes from another reading of the texts, so that the extractor cannot lose one.
    let fence = regex::Regex::new(r"(?m)^ *```(?:sh|console|toml)$|^<!-- dialogue:").unwrap();
    let all: usize = documents.iter().map(|(_, text)| fence.find_iter(text).count()).sum();
    let Counts { ran, left_out, skipped } = *total.lock().unwrap();
    println!("{ran} blocks ran, {left_out} are marked as not run, {skipped} lack their program");
    assert_eq!(ran + left_out + skipped, all, "each block runs or is marked");
    assert_eq!(ran + skipped, RUN, "the number of blocks that run has changed: correct `RUN`");
}

#[test]
fn every_benchmark_has_a_section() {
    let page = std::fs::read_to_string(root().join("docs/src/benchmarks.md")).unwrap();
    let mut found = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let program = name.strip_suffix(".rs").or_else(|| name.ends_with("_benchmark").then_some(&*name));
        if let Some(program) = program {
            let row = format!("| [`{program}`](#");
            assert!(page.contains(&row), "docs/src/benchmarks.md has no row of examples/{name}");
            found += 1;
        }
    }
    assert!(found >= 9, "{found}");
}
