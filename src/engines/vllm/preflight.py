"""Asks the vLLM that this Python has installed what it says of candidate command lines.

One JSON object a line. The first line out describes the installation; then each line in gets one line out:

    in   {"id": 1, "args": ["MODEL", "--max-num-seqs", "64"], "env": {}}
    out  {"id": 1, "verdict": "accept", "resolved": {...}, "warnings": [...], "ms": 4.1}
    out  {"id": 1, "verdict": "reject", "stage": "arguments" | "configuration", "message": "..."}

The engine is imported once. No model is loaded and no server is started. A candidate that makes the engine touch a GPU is
answered with "device": true, and the process should then be replaced, because it holds memory there.

Written for vLLM 0.6.3 to 0.33, and for the Pythons that those run on. What has moved between releases is looked for at
each of its places.
"""

import contextlib
import copy
import importlib
import importlib.util
import inspect
import io
import json
import logging
import os
import sys
import time
import traceback
import types

# The engine and its libraries print and may ask questions; neither must mix with the protocol.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
QUESTIONS = os.fdopen(os.dup(0), "r", encoding="utf-8")
os.dup2(2, 1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

# What the first line out is to say of: packages that some flags need. The engine sees no arguments of ours.
PACKAGES = sys.argv[1:]
del sys.argv[1:]

# `python -c` looks into the working directory first, the engine's launcher script does not.
if sys.path and sys.path[0] == "":
    del sys.path[0]


def answer(message):
    ANSWERS.write(json.dumps(message, default=str) + "\n")
    ANSWERS.flush()


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def first_of(*places):
    """The first attribute that exists."""
    for module, name in places:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError("vLLM has none of " + ", ".join(f"{module}.{name}" for module, name in places))


class Refused(Exception):
    """What argparse would print before it exits with status 2."""


class EndedTrial(BaseException):
    """The engine would start now. No handler of the engine's for errors may take it for one."""


class Launch:
    """Stands for whatever could start a server."""

    def __getattr__(self, name):
        raise EndedTrial(name)

    def __call__(self, *args, **kwargs):
        raise EndedTrial()


def serve_parser():
    make = first_of(
        ("vllm.entrypoints.launchers.cli_args", "make_arg_parser"),
        ("vllm.entrypoints.openai.cli_args", "make_arg_parser"),
    )
    flexible = first_of(
        ("vllm.utils.argparse_utils", "FlexibleArgumentParser"), ("vllm.utils", "FlexibleArgumentParser")
    )

    def refuse(self, message):
        raise Refused(message)

    def leave(self, status=0, message=None):
        raise Refused(message or f"the parser exits with status {status}")

    # A class of its own, so that parsers nested in it refuse alike.
    quiet = type("ServeParser", (flexible,), {"error": refuse, "exit": leave})
    parser = make(quiet(prog="vllm serve"))
    # Until 0.8 the command added these itself.
    if not any(action.dest == "model_tag" for action in parser._actions):
        parser.add_argument("model_tag", type=str, nargs="?")
    if "--config" not in parser._option_string_actions:
        parser.add_argument("--config", type=str, default="")
    return parser


def launch_checks(parser):
    """The checks that `vllm serve` makes itself before it creates the engine's configuration, without what follows.

    It is run with nothing of its module but the logger and the environment within reach, so that it cannot start
    anything, whatever a release may do here. `None` where a release has no such command class, or a stranger one.
    """
    try:
        serve = importlib.import_module("vllm.entrypoints.cli.serve")
        command = serve.ServeSubcommand.cmd
        harmless = (bool, int, float, str, type(None))
        reach = {
            name: value if name.startswith("__") or name in ("logger", "envs") or isinstance(value, harmless) else Launch()
            for name, value in vars(serve).items()
        }
        checks = types.FunctionType(command.__code__, reach, "cmd", command.__defaults__)
        with contextlib.suppress(EndedTrial):
            checks(parser.parse_args(["model"]))
        return checks
    except Exception:  # Not as it is known here; the checks that follow say most of it.
        return None


def flags(parser):
    """Every flag as this release's parser has it."""
    known = []
    for action in parser._actions:
        if not any(name.startswith("--") for name in action.option_strings):
            continue
        kind = getattr(action.type, "__name__", None) or (str(action.type) if action.type else None)
        known.append(
            {
                "names": action.option_strings,
                "type": kind,
                "action": type(action).__name__,
                "arity": action.nargs,
                "choices": [str(choice) for choice in action.choices] if action.choices is not None else None,
                "default": action.default if isinstance(action.default, (bool, int, float, str)) else None,
            }
        )
    return known


def resolved(config):
    """The values that the engine would work with, as far as this release has them."""
    places = {
        "max_model_len": ("model_config", "max_model_len"),
        "dtype": ("model_config", "dtype"),
        "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
        "max_num_seqs": ("scheduler_config", "max_num_seqs"),
        "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
        "async_scheduling": ("scheduler_config", "async_scheduling"),
        "block_size": ("cache_config", "block_size"),
        "cache_dtype": ("cache_config", "cache_dtype"),
        "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
        "gpu_memory_utilization": ("cache_config", "gpu_memory_utilization"),
        "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
        "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
        "data_parallel_size": ("parallel_config", "data_parallel_size"),
        "distributed_executor_backend": ("parallel_config", "distributed_executor_backend"),
    }
    values = {}
    for name, (part, field) in places.items():
        value = getattr(getattr(config, part, None), field, None)
        if value is not None:
            values[name] = value if isinstance(value, (bool, int, float)) else str(value).replace("torch.", "")
    return values


def reason(error):
    """The engine's message without pydantic's frame around it."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        with contextlib.suppress(Exception):
            parts = []
            for one in errors():
                field = ".".join(str(part) for part in one.get("loc", ()))
                text = one.get("msg", "")
                for frame in ("Value error, ", "Assertion failed, "):
                    text = text[len(frame) :] if text.startswith(frame) else text
                parts.append(f"{field}: {text}" if field else text)
            if parts:
                return "; ".join(parts)
    return str(error) or type(error).__name__


class Warnings:
    """What the engine warns of, whatever a candidate does to its logging."""

    def __init__(self):
        self.lines = []
        make = logging.getLogRecordFactory()

        def record(*args, **kwargs):
            made = make(*args, **kwargs)
            if made.levelno >= logging.WARNING and made.name.startswith("vllm"):
                with contextlib.suppress(Exception):
                    self.lines.append(made.getMessage())
            return made

        logging.setLogRecordFactory(record)

    def clear(self):
        self.lines = []
        # What a release warns of once, it is to warn of once for each candidate.
        for function in vars(importlib.import_module("vllm.logger")).values():
            if hasattr(function, "cache_clear") and getattr(function, "__name__", "").endswith("_once"):
                function.cache_clear()


class Engine:
    def __init__(self):
        begin = time.monotonic()
        self.version = importlib.import_module("vllm").__version__
        self.warnings = Warnings()
        self.parser = serve_parser()
        self.engine_args = first_of(("vllm.engine.arg_utils", "AsyncEngineArgs"))
        self.accepts = inspect.signature(self.engine_args.create_engine_config).parameters
        self.context = first_of(("vllm.usage.usage_lib", "UsageContext")).OPENAI_API_SERVER
        self.launch_checks = launch_checks(self.parser)
        try:
            self.validate = first_of(
                ("vllm.entrypoints.launchers.cli_args", "validate_parsed_serve_args"),
                ("vllm.entrypoints.openai.cli_args", "validate_parsed_serve_args"),
            )
        except ImportError:
            self.validate = None
        logging.getLogger("vllm").handlers = [logging.NullHandler()]
        self.seconds = time.monotonic() - begin

    def hello(self):
        platform = first_of(("vllm.platforms", "current_platform"))
        device = getattr(platform, "device_type", "unknown")
        answer(
            {
                "version": self.version,
                "device": device,
                "seconds": self.seconds,
                "flags": flags(self.parser),
                "absent": [name for name in PACKAGES if not is_installed(name)],
            }
        )

    def configure(self, arguments):
        """Goes as far as `vllm serve` goes before it starts processes."""
        if self.validate is not None:
            self.validate(arguments)
        if getattr(arguments, "model_tag", None) is not None:
            arguments.model = arguments.model_tag
        if self.launch_checks is not None:
            with contextlib.suppress(EndedTrial):
                self.launch_checks(copy.copy(arguments))
        options = {}
        if "usage_context" in self.accepts:
            options["usage_context"] = self.context
        if "headless" in self.accepts:
            options["headless"] = bool(getattr(arguments, "headless", False))
        return self.engine_args.from_cli_args(arguments).create_engine_config(**options)

    def ask(self, request):
        self.warnings.clear()
        # The engine writes variables while it resolves a configuration.
        environment = dict(os.environ)
        os.environ.update(request.get("env") or {})
        stage = "arguments"
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                # Copies: some releases' parsers change the list that they are given, and all hand out the same default
                # objects every time, which the configuration then changes.
                arguments = copy.deepcopy(self.parser.parse_args(list(request["args"])))
                stage = "configuration"
                config = self.configure(arguments)
            return {"verdict": "accept", "resolved": resolved(config), "warnings": self.warnings.lines}
        except Refused as error:
            return {"verdict": "reject", "stage": "arguments", "message": str(error)}
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # SystemExit too: some checks leave that way.
            where = traceback.extract_tb(error.__traceback__)
            last = f"{os.path.basename(where[-1].filename)}:{where[-1].lineno}" if where else None
            return {
                "verdict": "reject",
                "stage": stage,
                "message": reason(error),
                "exception": type(error).__name__,
                "raised_at": last,
                "warnings": self.warnings.lines,
            }
        finally:
            os.environ.clear()
            os.environ.update(environment)


def holds_device():
    torch = sys.modules.get("torch")
    try:
        return bool(torch and torch.cuda.is_initialized())
    except Exception:
        return False


def main():
    try:
        engine = Engine()
        engine.hello()
    except BaseException as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    for line in QUESTIONS:
        if not line.strip():
            continue
        begin = time.perf_counter()
        request = json.loads(line)
        reply = engine.ask(request)
        reply["id"] = request.get("id")
        reply["ms"] = round((time.perf_counter() - begin) * 1e3, 3)
        reply["device"] = holds_device()
        answer(reply)


main()
