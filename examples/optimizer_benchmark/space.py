"""Parameters of a space, by the protocol of `setpoint optimize`: membership, random members, known constraints."""

import math

# Share of a unit by which the bounds of an integer are widened, so that the first and the last are as likely as the others.
HALF = 0.5


def integer(name, low, high, log=True, **fields):
    return {"name": name, "type": "int", "low": low, "high": high, "log": log, **fields}


def power_of_two(name, low, high):
    return integer(name, low, high, grid="pow2")


def number(name, low, high):
    return {"name": name, "type": "float", "low": low, "high": high, "log": False}


def flag(name):
    return {"name": name, "type": "bool"}


def choice(name, choices):
    return {"name": name, "type": "categorical", "choices": choices}


def holds(condition, config):
    """Returns whether the parent of a conditional parameter has one of the values of `when`."""
    return condition is None or config.get(condition["param"]) in condition["in"]


def exponents(parameter):
    """Returns the logarithms to base 2 of the bounds."""
    return int(math.log2(parameter["low"])), int(math.log2(parameter["high"]))


def check(parameters, config):
    """Raises ValueError if `config` is not a member of the space."""
    for parameter in parameters:
        name = parameter["name"]
        active, given = holds(parameter.get("when"), config), config.get(name) is not None
        if active != given:
            raise ValueError(f"{name}: {'missing' if active else 'given, but inactive'}")
        if given and not is_member(parameter, config[name]):
            raise ValueError(f"{name}: no value of this parameter: {config[name]!r}")
    unknown = config.keys() - {parameter["name"] for parameter in parameters}
    if unknown:
        raise ValueError(f"{min(unknown)}: no parameter of the space")


def is_member(parameter, value):
    match parameter["type"]:
        case "bool":
            return isinstance(value, bool)
        case "categorical":
            return value in parameter["choices"]
    if isinstance(value, bool) or not parameter["low"] <= value <= parameter["high"]:
        return False
    if parameter["type"] == "int" and int(value) != value:
        return False
    return parameter.get("grid") != "pow2" or int(value).bit_count() == 1


def random_config(parameters, generator):
    """Draws a configuration. Each parameter is uniform on its own scale."""
    config = {}
    for parameter in parameters:
        if holds(parameter.get("when"), config):
            config[parameter["name"]] = random_value(parameter, generator)
    return config


def random_value(parameter, generator):
    match parameter["type"]:
        case "bool":
            return bool(generator.random() < 0.5)
        case "categorical":
            return parameter["choices"][int(generator.integers(len(parameter["choices"])))]
        case "float":
            return float(generator.uniform(parameter["low"], parameter["high"]))
    low, high = parameter["low"], parameter["high"]
    if parameter.get("grid") == "pow2":
        least, most = exponents(parameter)
        return 2 ** int(generator.integers(least, most + 1))
    if parameter["log"]:
        drawn = math.exp(generator.uniform(math.log(low - HALF), math.log(high + HALF)))
        return min(high, max(low, round(drawn)))
    return int(generator.integers(low, high + 1))


def keeps(known_constraints, config):
    """Returns whether `config` keeps all known constraints. They have the form `NAME >= NAME or number`."""
    for constraint in known_constraints:
        if holds(constraint.get("when"), config):
            left, right = (config[word] if word in config else float(word) for word in constraint["expr"].split(" >= "))
            if left < right:
                return False
    return True
