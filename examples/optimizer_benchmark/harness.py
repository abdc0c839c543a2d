"""The problems and peers of a harness directory, which is no part of this project."""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT.parent / "shared" / "optimizer"
PROBLEMS, PEERS = "problems.py", "optimizers.py"


def absent(directory):
    """One line that says what is missing in `directory`, or None."""
    for name in (PROBLEMS, PEERS):
        if not (directory / name).is_file():
            return f"no harness: {directory / name} does not exist; --harness DIR says where it is"
    return None


def load(directory):
    """Makes the harness's modules importable, also in the processes that start from here."""
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def problems():
    return importlib.import_module("problems").PROBLEMS


def peer(name, space):
    """One of the optimizers that the harness has, such as `random` or `optuna_gp_known`."""
    return importlib.import_module("optimizers").make(name, space)


def check(params, config):
    """Raises ValueError where `config` is no member of the space."""
    importlib.import_module("problems").check(params, config)


def random_config(params, generator):
    return importlib.import_module("problems").sample_uniform(params, generator)


def truth(problem, config, generator):
    """(noise-free value, noise-free constraints, whether it crashes) of a configuration."""
    _, record = problem.evaluate(config, generator, 0.0, 0.0)
    return record["true_value"], record["true_g"], record["crash"]
