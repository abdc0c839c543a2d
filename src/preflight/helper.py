"""Asks the vLLM that this Python has installed what it says of candidate command lines.

One JSON object a line. The first line out describes the installation; then each line in gets one line out:

    in   {"id": 1, "args": ["MODEL", "--max-num-seqs", "64"], "env": {}}
    out  {"id": 1, "verdict": "accept", "resolved": {...}, "warnings": [...], "ms": 4.1}
    out  {"id": 1, "verdict": "reject", "stage": "arguments" | "configuration", "message": "..."}

The engine is imported once. No model is loaded and no server is started. A candidate that makes the engine touch a GPU is
answered with "device": true, and the process should then be replaced, because it holds memory there.
"""

import contextlib
import copy
import importlib
import io
import json
import logging
import os
import sys
import time
import traceback

# The engine and its libraries print; what they print must not mix with the answers.
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def answer(message):
    ANSWERS.write(json.dumps(message, default=str) + "\n")
    ANSWERS.flush()


def first_of(*places):
    """The first attribute that exists: releases have moved them."""
    for module, name in places:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError("none of " + ", ".join(f"{module}.{name}" for module, name in places))


class Refused(Exception):
    """What argparse would print before it exits with status 2."""


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        with contextlib.suppress(Exception):
            self.lines.append(record.getMessage())


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
    if not any(action.dest == "model_tag" for action in parser._actions):
        parser.add_argument("model_tag", type=str, nargs="?")
    return parser


def flags(parser):
    """Every flag as this release's parser has it."""
    known = []
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names:
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
            values[name] = value if isinstance(value, (bool, int, float)) else str(value).removeprefix("torch.")
    return values


def reason(error):
    """The engine's message without pydantic's frame around it."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        with contextlib.suppress(Exception):
            parts = []
            for one in errors():
                field = ".".join(str(part) for part in one.get("loc", ()))
                text = one.get("msg", "").removeprefix("Value error, ").removeprefix("Assertion failed, ")
                parts.append(f"{field}: {text}" if field else text)
            if parts:
                return "; ".join(parts)
    return str(error) or type(error).__name__


class Engine:
    def __init__(self):
        begin = time.monotonic()
        self.version = importlib.import_module("vllm").__version__
        self.parser = serve_parser()
        self.engine_args = first_of(("vllm.engine.arg_utils", "AsyncEngineArgs"))
        self.context = first_of(("vllm.usage.usage_lib", "UsageContext")).OPENAI_API_SERVER
        try:
            self.validate = first_of(
                ("vllm.entrypoints.launchers.cli_args", "validate_parsed_serve_args"),
                ("vllm.entrypoints.openai.cli_args", "validate_parsed_serve_args"),
            )
        except ImportError:
            self.validate = None
        self.warnings = Warnings()
        logger = logging.getLogger("vllm")
        logger.handlers = [self.warnings]
        logger.propagate = False
        self.seconds = time.monotonic() - begin

    def hello(self):
        platform = first_of(("vllm.platforms", "current_platform"))
        device = getattr(platform, "device_type", "unknown")
        answer({"version": self.version, "device": device, "seconds": self.seconds, "flags": flags(self.parser)})

    def ask(self, request):
        self.warnings.lines = []
        environment = dict(os.environ)
        os.environ.update(request.get("env") or {})
        stage = "arguments"
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                # The parser's defaults are objects that later stages change; each candidate gets its own.
                arguments = copy.deepcopy(self.parser.parse_args(request["args"]))
                if getattr(arguments, "model_tag", None) is not None:
                    arguments.model = arguments.model_tag
                stage = "configuration"
                if self.validate is not None:
                    self.validate(arguments)
                engine_args = self.engine_args.from_cli_args(arguments)
                config = engine_args.create_engine_config(usage_context=self.context)
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
    for line in sys.stdin:
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
