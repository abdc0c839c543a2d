"""The best feasible configuration of a problem: all configurations of a grid, then a random search around the best of them."""

from functools import cache
from types import SimpleNamespace

import numpy as np

from server import DEFAULTS, dtype_of
from space import exponents, holds

# Levels of a number, and of an integer with a logarithmic scale. Other parameters have all of their values.
FLOAT_LEVELS, INTEGER_LEVELS = 7, 22
# Configurations that are computed at once.
CHUNK = 100_000
# Refined configurations, of which no two differ in numbers alone; rounds, and tries of each in a round.
STARTS, ROUNDS, TRIES = 30, 60, 100
# Largest step of a number as a share of its range, and of an integer as a logarithm. Steps shrink from round to round.
FLOAT_STEP, INTEGER_STEP, SHRINK, LEAST = 0.1, 0.3, 0.92, 0.01
# Probability that a try changes a parameter.
MOVED = 0.6
SEED = 1


def levels(parameter):
    low, high = parameter.get("low"), parameter.get("high")
    match parameter["type"]:
        case "bool":
            return [False, True]
        case "categorical":
            return parameter["choices"]
        case "float":
            return np.linspace(low, high, FLOAT_LEVELS)
    if parameter.get("grid") == "pow2":
        least, most = exponents(parameter)
        return [2**exponent for exponent in range(least, most + 1)]
    return np.unique(np.round(np.geomspace(low, high, INTEGER_LEVELS))) if parameter["log"] else range(low, high + 1)


def is_fine(parameter):
    """Returns whether the grid lacks values of the parameter."""
    return parameter["type"] == "float" or (parameter["type"] == "int" and parameter["log"] and "grid" not in parameter)


def grid(problem):
    """name -> levels. A parameter that is not in the space has its default as the only level."""
    axes = {name: [default] for name, default in DEFAULTS.items()} | {parameter["name"]: levels(parameter) for parameter in problem.params}
    return {name: np.array(axes[name], dtype=dtype_of(DEFAULTS[name])) for name in DEFAULTS}


def members(axes, numbers):
    """Returns the columns of the grid's configurations with these running numbers."""
    places = np.unravel_index(numbers, [len(axis) for axis in axes.values()])
    return {name: axis[place] for (name, axis), place in zip(axes.items(), places)}


def values(problem, columns):
    return problem.values(SimpleNamespace(**columns))


def starts(problem, axes):
    """Returns the numbers of the grid's best configurations, one for each combination of the coarse parameters."""
    fine = {parameter["name"] for parameter in problem.params if is_fine(parameter)}
    shape = [len(axis) for axis in axes.values()]
    coarse = [1 if name in fine else size for name, size in zip(axes, shape)]
    best_of = np.full(np.prod(coarse), -np.inf)
    number_of = np.zeros(len(best_of), dtype=int)
    for begin in range(0, int(np.prod(shape)), CHUNK):
        numbers = np.arange(begin, min(begin + CHUNK, int(np.prod(shape))))
        found = values(problem, members(axes, numbers))
        places = np.unravel_index(numbers, shape)
        cells = np.ravel_multi_index([place * (name not in fine) for name, place in zip(axes, places)], coarse)
        # Ascending, so that the last assignment to a cell is its best.
        ascending = np.argsort(found)
        ascending = ascending[found[ascending] > best_of[cells[ascending]]]
        best_of[cells[ascending]], number_of[cells[ascending]] = found[ascending], numbers[ascending]
    best = np.argsort(-best_of)[:STARTS]
    return number_of[best[np.isfinite(best_of[best])]]


def moved(parameter, column, width, generator):
    """Returns the column with random steps of the parameter in most of its rows."""
    drawn = generator.standard_normal(len(column)) * width * (generator.random(len(column)) < MOVED)
    low, high = parameter["low"], parameter["high"]
    if parameter["type"] == "float":
        return np.clip(column + drawn * FLOAT_STEP * (high - low), low, high)
    return np.clip(np.round(column * np.exp(drawn * INTEGER_STEP)), low, high)


@cache
def find(problem):
    """Returns the value and the configuration of the optimum. A search takes up to a second, and is made once per process."""
    axes, generator = grid(problem), np.random.default_rng(SEED)
    best = members(axes, starts(problem, axes))
    best_values = values(problem, best)
    if not len(best_values):
        raise ValueError(f"{problem.name}: no configuration is feasible")
    rows = np.arange(len(best_values))
    for round_number in range(ROUNDS):
        width = max(SHRINK**round_number, LEAST)
        tried = {name: np.repeat(column, TRIES) for name, column in best.items()}
        for parameter in filter(is_fine, problem.params):
            tried[parameter["name"]] = moved(parameter, tried[parameter["name"]], width, generator)
        found = values(problem, tried).reshape(-1, TRIES)
        chosen = found.argmax(axis=1)
        better = found[rows, chosen] > best_values
        best_values = np.where(better, found[rows, chosen], best_values)
        best = {name: np.where(better, tried[name].reshape(-1, TRIES)[rows, chosen], column) for name, column in best.items()}
    first = best_values.argmax()
    config = {}
    for parameter in problem.params:
        if holds(parameter.get("when"), config):
            value = best[parameter["name"]][first].item()
            config[parameter["name"]] = int(value) if parameter["type"] == "int" else value
    return float(best_values[first]), config
