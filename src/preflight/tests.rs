//! The contract with the helper, on fake packages with the layouts of old and new vLLM releases, and on broken ones.

use super::*;
use std::path::Path;

use serde_json::json;

/// A parser with two flags, a configuration with one limit, and some ways to fail.
const FLEXIBLE: &str = r"
import argparse
class FlexibleArgumentParser(argparse.ArgumentParser):
    pass
";

const MAKE_PARSER: &str = r#"
def make_arg_parser(parser):
    parser.add_argument("--model", type=str, default="none")
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--kv-cache-dtype", type=str, default="auto", choices=["auto", "fp8"])
    return parser
"#;

const LOGGER: &str = r"
import functools, logging
@functools.lru_cache
def _print_warning_once(logger, message):
    logger.warning(message)
";

const USAGE: &str = r#"
class UsageContext:
    OPENAI_API_SERVER = "server"
"#;

const ENGINE_ARGS: &str = r#"
import os, sys, time
from vllm.logger import _print_warning_once
import logging
class Part:
    pass
class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, arguments):
        made = cls()
        made.model, made.max_num_seqs = arguments.model, arguments.max_num_seqs
        return made
    def create_engine_config(self, USAGE_CONTEXT):
        print("noise " * 20000)
        os.write(1, b"noise that no redirection of Python sees\n")
        assert self.model != "none", "the positional argument is the model"
        if os.environ.get("LEAKED"):
            raise ValueError("another candidate's variable is still here")
        os.environ["LEAKED"] = "1"
        if self.max_num_seqs == 0:
            raise ValueError("max_num_seqs must be at least 1")
        if self.max_num_seqs == 13:
            sys.exit("unlucky")
        if self.max_num_seqs == 66:
            os._exit(66)
        if self.max_num_seqs == 88:
            import torch
            torch.cuda.touched = True
        if self.max_num_seqs == 99:
            time.sleep(600)
        if self.max_num_seqs == 50 and input("continue? "):
            raise ValueError("asked the protocol for an answer")
        if "LOW" in os.environ and self.max_num_seqs > int(os.environ["LOW"]):
            raise ValueError("more than " + os.environ["LOW"])
        if self.max_num_seqs > 1000:
            _print_warning_once(logging.getLogger("vllm.engine"), "many sequences")
        config = Part()
        config.scheduler_config = Part()
        config.scheduler_config.max_num_seqs = self.max_num_seqs
        return config
"#;

const TORCH: &str = r"
class cuda:
    touched = False
    @classmethod
    def is_initialized(cls):
        return cls.touched
";

/// The command's own checks before a launch, as in releases since 0.20.
const SERVE: &str = r#"
from vllm.logger import _print_warning_once as run_server
class ServeSubcommand:
    @staticmethod
    def cmd(args):
        if args.max_num_seqs == 77:
            raise ValueError("the command refuses 77")
        run_server(args)
        raise SystemExit("a server was started")
"#;

/// Creates a package with the modules that the helper needs, in the layout of 0.6.3 to 0.10, or of 0.12 and later.
fn package(directory: &Path, new: bool) {
    let (parser, flexible) = if new {
        ("entrypoints/launchers/cli_args.py", "utils/argparse_utils.py")
    } else {
        ("entrypoints/openai/cli_args.py", "utils/__init__.py")
    };
    let engine_args =
        ENGINE_ARGS.replace(", USAGE_CONTEXT", if new { ", usage_context=None, headless=False" } else { "" });
    let version = if new { "0.32.0" } else { "0.6.3" };
    let mut files = vec![
        ("__init__.py", format!("__version__ = '{version}'\n")),
        (parser, MAKE_PARSER.to_owned()),
        (flexible, FLEXIBLE.to_owned()),
        ("logger.py", LOGGER.to_owned()),
        ("usage/usage_lib.py", USAGE.to_owned()),
        ("engine/arg_utils.py", engine_args),
        ("../torch.py", TORCH.to_owned()),
        ("platforms/__init__.py", "class current_platform:\n    device_type = 'cpu'\n".to_owned()),
    ];
    if new {
        files.push(("entrypoints/cli/serve.py", SERVE.to_owned()));
    }
    for (path, text) in files {
        let path = directory.join("vllm").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

/// Returns the path of a Python. If there is none, it prints a note and returns `None`.
fn python() -> Option<String> {
    let found = crate::engine::resolve_program("python3");
    if found.is_none() {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skipped: the helper's contract: there is no python3 on the PATH");
    }
    found.map(|path| path.to_string_lossy().into_owned())
}

fn start(python: String, directory: &Path, limits: PreflightLimits) -> Preflight {
    // Bytecode files would land in the temporary directory while it is removed.
    let env = [("PYTHONPATH", directory.to_string_lossy().into_owned()), ("PYTHONDONTWRITEBYTECODE", "1".to_owned())];
    Preflight::start(PreflightSetup {
        program: crate::engines::default_engine().preflight().unwrap(),
        executable: python,
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        marker: Marker::helper(directory, "test", "preflight"),
        warm_up: vec!["model".to_owned()],
        limits,
    })
}

async fn ask(preflight: &Preflight, line: &str) -> Result<PreflightVerdict, PreflightError> {
    let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    preflight.ask(&args, &BTreeMap::new()).await
}

fn refused(verdict: Result<PreflightVerdict, PreflightError>) -> (RefusalStage, String) {
    match verdict {
        Ok(PreflightVerdict::Reject { stage, message }) => (stage, message),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn old_and_new_releases_answer_alike() {
    let Some(python) = python() else { return };
    for new in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        package(directory.path(), new);
        let preflight = start(python.clone(), directory.path(), PreflightLimits::default());
        let installed = preflight.wait_until_ready().await.unwrap();
        assert_eq!(installed.version, if new { "0.32.0" } else { "0.6.3" });
        assert_eq!(installed.device, "cpu");
        let flag = installed.find("max_num_seqs").unwrap();
        assert_eq!((flag.kind.as_deref(), flag.default.clone()), (Some("int"), Some(json!(128))));
        let choices = installed.find("kv-cache-dtype").unwrap().choices.clone();
        assert_eq!(choices, Some(vec!["auto".to_owned(), "fp8".to_owned()]));
        assert_eq!(installed.find("swap-space"), None);

        for _ in 0..2 {
            let PreflightVerdict::Accept { resolved, warnings } =
                ask(&preflight, "m --max-num-seqs 2000").await.unwrap()
            else {
                panic!("2000 was refused")
            };
            assert_eq!(resolved["max_num_seqs"], 2000);
            assert_eq!(warnings, ["many sequences"], "each candidate is warned");
        }
        let configuration = |text: &str| (RefusalStage::Configuration, text.to_owned());
        let zero = refused(ask(&preflight, "m --max-num-seqs 0").await);
        assert_eq!(zero, configuration("max_num_seqs must be at least 1"));
        assert_eq!(refused(ask(&preflight, "m --max-num-seqs 13").await), configuration("unlucky"));
        assert_eq!(refused(ask(&preflight, "m --max-num-seqs 50").await).0, RefusalStage::Configuration);
        let (stage, message) = refused(ask(&preflight, "m --max-num-seqs many").await);
        assert_eq!(
            (stage, message.as_str()),
            (RefusalStage::Arguments, "argument --max-num-seqs: invalid int value: 'many'")
        );
        let (stage, message) = refused(ask(&preflight, "m --no-such-flag").await);
        assert_eq!((stage, message.as_str()), (RefusalStage::Arguments, "unrecognized arguments: --no-such-flag"));
        assert_eq!(refused(ask(&preflight, "m --help").await).0, RefusalStage::Arguments);
        let command = ask(&preflight, "m --max-num-seqs 77").await;
        assert_eq!(command.unwrap().rejection().is_some(), new, "only a new release's command checks");

        let args = ["m".to_owned()];
        let low = [("LOW".to_owned(), "5".to_owned())].into();
        assert_eq!(refused(preflight.ask(&args, &low).await), configuration("more than 5"));
        assert!(ask(&preflight, "m").await.unwrap().rejection().is_none(), "the variable was for one question");
        preflight.stop().await;
    }
}

#[tokio::test]
async fn a_helper_that_dies_or_hangs_is_replaced_until_it_is_given_up() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    package(directory.path(), true);
    let limits = PreflightLimits { answer: Duration::from_secs(2), ..PreflightLimits::default() };
    let preflight = start(python, directory.path(), limits);
    let died = ask(&preflight, "m --max-num-seqs 66").await.unwrap_err().to_string();
    assert!(died.starts_with("the preflight failed: it stopped answering (exit code 66)"), "{died}");
    assert!(ask(&preflight, "m").await.unwrap().rejection().is_none());
    let hung = ask(&preflight, "m --max-num-seqs 99").await.unwrap_err();
    assert_eq!(hung.to_string(), "the preflight did not answer within 2s");
    assert!(ask(&preflight, "m").await.unwrap().rejection().is_none());
    ask(&preflight, "m --max-num-seqs 66").await.unwrap_err();
    let last = ask(&preflight, "m").await.unwrap_err();
    assert!(last.to_string().ends_with("; given up after 3 failures"), "{last}");
    assert_eq!(preflight.wait_until_ready().await, Err(last));
}

#[tokio::test]
async fn several_questions_under_way_are_answered_in_their_order() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    package(directory.path(), true);
    let preflight = start(python, directory.path(), PreflightLimits::default());
    let lines: Vec<_> = (1..9).map(|number| format!("m --max-num-seqs {number}")).collect();
    let answers = futures_util::future::join_all(lines.iter().map(|line| ask(&preflight, line))).await;
    for (number, answer) in (1..9).zip(answers) {
        let Ok(PreflightVerdict::Accept { resolved, .. }) = answer else { panic!("{number}: {answer:?}") };
        assert_eq!(resolved["max_num_seqs"], number);
    }
}

#[tokio::test]
async fn a_helper_that_holds_a_gpu_is_ended_before_its_answer_comes() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    package(directory.path(), true);
    let preflight = start(python, directory.path(), PreflightLimits::default());
    for _ in 0..4 {
        assert!(ask(&preflight, "m --max-num-seqs 88").await.unwrap().rejection().is_none());
        assert_eq!(left(directory.path()), []);
    }
}

/// Writes an `__init__.py` and expects that the preflight never becomes ready.
async fn failing(init: &str, limits: PreflightLimits) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    package(directory.path(), true);
    std::fs::write(directory.path().join("vllm/__init__.py"), init).unwrap();
    let preflight = start(python()?, directory.path(), limits);
    let error = preflight.wait_until_ready().await.unwrap_err();
    assert_eq!(ask(&preflight, "m").await, Err(error.clone()));
    Some(error.to_string())
}

#[tokio::test]
async fn a_failed_import_is_reported_with_its_cause() {
    let broken = failing("import no_such_library", PreflightLimits::default()).await;
    let Some(broken) = broken else { return };
    assert!(broken.ends_with("cannot import vLLM: ModuleNotFoundError: No module named 'no_such_library'"), "{broken}");
    let crash =
        failing("import os\nos.write(2, b'driver too old')\nos._exit(3)", PreflightLimits::default()).await.unwrap();
    assert!(
        crash.contains("it stopped answering (exit code 3); the end of its standard error: driver too old"),
        "{crash}"
    );
    let limits = PreflightLimits { import: Duration::from_millis(300), ..PreflightLimits::default() };
    let hang = failing("import time\ntime.sleep(600)", limits).await.unwrap();
    let expected = "cannot import vLLM: the preflight did not import the engine within 300ms";
    assert!(hang.ends_with(expected), "{hang}");
}

#[tokio::test]
async fn a_program_that_is_not_python_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let missing = start("/no/such/python".to_owned(), directory.path(), PreflightLimits::default());
    let error = missing.wait_until_ready().await.unwrap_err().to_string();
    assert!(error.starts_with("cannot start \"/no/such/python\": No such file"), "{error}");
    let other = start("/bin/echo".to_owned(), directory.path(), PreflightLimits::default());
    assert!(other.wait_until_ready().await.unwrap_err().to_string().contains("given up after 3 failures"));
}

#[tokio::test]
async fn output_of_a_start_up_file_is_skipped() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    package(directory.path(), false);
    std::fs::write(directory.path().join("sitecustomize.py"), "print('hello from the site')\nprint('{}')\n").unwrap();
    let preflight = start(python, directory.path(), PreflightLimits::default());
    assert_eq!(preflight.wait_until_ready().await.unwrap().version, "0.6.3");
}

#[tokio::test]
async fn a_stopped_preflight_leaves_no_process() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    package(directory.path(), true);
    let preflight = start(python, directory.path(), PreflightLimits::default());
    preflight.wait_until_ready().await.unwrap();
    preflight.stop().await;
    assert_eq!(left(directory.path()), []);
}

/// Returns the processes that the helpers of a test have left.
fn left(database: &Path) -> Vec<crate::server::Leftover> {
    crate::server::leftovers(|origin| origin.is_of(database))
}
