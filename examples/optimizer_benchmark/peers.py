"""Optimizers to compare with: random search and two samplers of Optuna.

`ask` returns an identifier and a configuration, and `tell` gets the result of a trial, as those of `Program` do.
"""

import numpy as np

import space

# Suggestions after which a peer may break a known constraint. Without a limit a peer that insists would never end.
MOST_SUGGESTIONS = 60


class Random:
    def __init__(self, message):
        self.params = message["params"]
        # Other numbers than those of the noise, which has the same seed.
        self.generator = np.random.default_rng([message["seed"], 1])
        self.asked = 0

    def ask(self):
        self.asked += 1
        return self.asked, space.random_config(self.params, self.generator)

    def tell(self, identifier, config, result):
        pass

    def close(self):
        pass


class Optuna:
    """One of Optuna's samplers with its default settings.

    Optuna ignores trials that are reported as failed. So a crash is a trial with the worst value and the worst constraints
    so far, and breaks a constraint of its own.
    """

    # Name of the constraint that only crashes break.
    CRASH = "crash"

    def __init__(self, message, sampler, excludes):
        """`excludes` is whether suggestions that break known constraints count as crashes without a trial."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.params = message["params"]
        self.constraints = [constraint["name"] for constraint in message["constraints"]]
        self.known_constraints = message["known_constraints"] if excludes else []
        samplers = {"tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
                    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)}
        self.study = optuna.create_study(direction="maximize", sampler=samplers[sampler](message["seed"]))
        # The GP models no conditional parameters, so it suggests all parameters in each trial.
        self.flat = sampler == "gp"
        self.distributions = {parameter["name"]: distribution(parameter, optuna.distributions) for parameter in self.params}
        self.trials, self.values, self.excesses = {}, [], []

    def ask(self):
        for _ in range(MOST_SUGGESTIONS - 1):
            identifier, config = self.suggest()
            if space.keeps(self.known_constraints, config):
                return identifier, config
            self.tell(identifier, config, {"status": "failed"})
        return self.suggest()

    def suggest(self):
        trial = self.study.ask(self.distributions if self.flat else None)
        config = {}
        for parameter in self.params:
            name = parameter["name"]
            if space.holds(parameter.get("when"), config):
                value = suggested(trial, name, self.distributions[name])
                config[name] = 2**value if parameter.get("grid") == "pow2" else value
        self.trials[trial.number] = trial
        return trial.number, config

    def tell(self, identifier, config, result):
        trial, crashed = self.trials.pop(identifier), result["status"] == "failed"
        if crashed:
            value = min(self.values, default=0.0)
            excesses = [max([0.5, *column]) for column in zip(*self.excesses)] or [0.5 for _ in self.constraints]
        else:
            value = result["values"]["throughput"]
            excesses = [result["constraints"][name] for name in self.constraints]
            self.values.append(value)
            self.excesses.append(excesses)
        for name, excess in zip(self.constraints, excesses):
            trial.set_constraint(name, excess)
        trial.set_constraint(self.CRASH, 1.0 if crashed else -1.0)
        self.study.tell(trial, value)

    def close(self):
        pass


def distribution(parameter, distributions):
    """Optuna's form of a parameter. Powers of two are suggested by their exponents."""
    match parameter["type"]:
        case "bool":
            return distributions.CategoricalDistribution([False, True])
        case "categorical":
            return distributions.CategoricalDistribution(parameter["choices"])
        case "float":
            return distributions.FloatDistribution(parameter["low"], parameter["high"], log=parameter["log"])
    if parameter.get("grid") == "pow2":
        return distributions.IntDistribution(*space.exponents(parameter))
    return distributions.IntDistribution(parameter["low"], parameter["high"], log=parameter["log"])


def suggested(trial, name, distribution):
    if hasattr(distribution, "choices"):
        return trial.suggest_categorical(name, distribution.choices)
    suggest = trial.suggest_float if isinstance(distribution.low, float) else trial.suggest_int
    return suggest(name, distribution.low, distribution.high, log=distribution.log)


PEERS = {
    "random": Random,
    "optuna_tpe": lambda message: Optuna(message, "tpe", excludes=False),
    "optuna_gp": lambda message: Optuna(message, "gp", excludes=False),
    "optuna_tpe_known": lambda message: Optuna(message, "tpe", excludes=True),
    "optuna_gp_known": lambda message: Optuna(message, "gp", excludes=True),
}
