//! A fake driver library (`tests/fixtures/nvml/nvml.c`) that reads its devices from a file. The program loads it like
//! the real one.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::support::{Ended, Workplace, root};

/// Returns the library, which is compiled once.
#[expect(clippy::disallowed_methods, reason = "the compiler")]
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (file, new) =
            (directory.join("libfake-nvml.so"), directory.join(format!("nvml-{}.so", std::process::id())));
        let source = root().join("tests/fixtures/nvml/nvml.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let built =
            Command::new(compiler).args(["-shared", "-fPIC", "-O1", "-o"]).args([&new, &source]).status().unwrap();
        assert!(built.success(), "the driver library of the tests does not compile");
        // A rename is safe: another run of the tests may be using the old file.
        std::fs::rename(&new, &file).unwrap();
        file
    })
}

/// A workplace on a machine with these devices.
pub(crate) struct Machine {
    pub(crate) workplace: Workplace,
}

impl Machine {
    pub(crate) fn new(study: &str, devices: &str) -> Self {
        let machine = Self { workplace: Workplace::with_study(study) };
        machine.set(devices);
        machine
    }

    /// Replaces the devices. `{dir}` stands for the workplace.
    pub(crate) fn set(&self, devices: &str) {
        let directory = self.workplace.path("");
        let text = devices.replace("{dir}/", &directory.to_string_lossy());
        self.workplace.write("devices.new", &text);
        std::fs::rename(self.workplace.path("devices.new"), self.workplace.path("devices")).unwrap();
    }

    fn variables(&self) -> [(String, String); 2] {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        [("SETPOINT_NVML".to_owned(), text(library())), ("FAKE_NVML".to_owned(), text(&self.workplace.path("devices")))]
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with(&[], arguments)
    }

    pub(crate) fn run_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Ended {
        let own = self.variables();
        let mut all: Vec<_> = own.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        all.extend(variables);
        self.workplace.run_with(&all, "", arguments)
    }

    /// Starts the program and returns at once. Standard error goes to `stderr.txt`.
    #[expect(clippy::disallowed_methods, reason = "the program under test")]
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let stderr = std::fs::File::create(self.workplace.path("stderr.txt")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_setpoint"));
        command.args(arguments).current_dir(self.workplace.path("")).envs(self.variables());
        command.env_remove("SETPOINT_DB").env("NO_COLOR", "1").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap()
    }
}

/// Returns the lines of an H100, with these further lines.
pub(crate) fn h100(index: u32, lines: &[&str]) -> String {
    let name = "NVIDIA H100 80GB HBM3";
    format!("device\nname {name}\nuuid GPU-{index}aaaaaaa-1111\nbus 0000000{index}:1A:00.0\n{}\n", lines.join("\n"))
}
