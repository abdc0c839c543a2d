"""Figures of runs: regret, trials until near the optimum, paired differences."""

import math

import numpy as np

AT = (10, 20, 30, 60)
NEAR = 0.05
# A pick does not count if its true value misses a limit by more than this share.
TOLERATED = 0.05
RESAMPLES, SEED = 10_000, 20_260


def worth(entry, optimum):
    """Regret of a picked configuration; 1 if there is none, or if it misses a limit clearly."""
    if entry is None or entry["tv"] is None or max(entry["tg"], default=-1) > TOLERATED:
        return 1.0
    return 1 - entry["tv"] / optimum


def regret(run, optimum):
    """By trial: that of the best configuration so far that keeps every limit in truth; 1 while there is none."""
    best, curve = 0.0, []
    for entry in run["log"]:
        if entry["s"] != "failed" and all(g <= 0 for g in entry["tg"]):
            best = max(best, entry["tv"])
        curve.append(1 - best / optimum)
    return np.array(curve)


def user_pick(run, optimum):
    """Regret of the best that was measured within the limits."""
    kept = [entry for entry in run["log"] if entry["s"] == "ok"]
    return worth(max(kept, key=lambda entry: entry["v"], default=None), optimum)


def own_pick(run, optimum):
    """Regret of the configuration that the optimizer itself names at the end; None of those that name none."""
    return worth(run["judged"][-1], optimum) if run["judged"] else None


def left(judged, optimum):
    """Remaining gain beyond a pick, as a share of it: the true one, and percentiles 5, 50 and 95 of the optimizer's
    estimate; None without an estimate."""
    if judged["tv"] is None or judged["remaining"] is None:
        return None
    return max(0.0, optimum / judged["tv"] - 1), judged["remaining"]


def trials_to(curve, level):
    """The first trial, counted from 1, after which regret is at most `level`; infinite if there is none."""
    reached = np.flatnonzero(curve <= level)
    return int(reached[0]) + 1 if len(reached) else math.inf


def shown(trials, most=AT[-1]):
    return f">{most}" if math.isinf(trials) else str(trials)


def quantile(numbers, share):
    """A member of `numbers`, so that infinite ones do no harm."""
    ordered = sorted(numbers)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def count(run, status):
    return sum(entry["s"] == status for entry in run["log"])


def common(rows, labels):
    """The runs of these rows, only those whose problem and seed all of them have."""
    shared = set.intersection(*({(run["problem"], run["seed"]) for run in rows[label]} for label in labels))
    return {label: [run for run in rows[label] if (run["problem"], run["seed"]) in shared] for label in labels}


def paired(mine, theirs, figure):
    """problem -> differences mine - theirs, over the seeds that both have; `figure` is of one run."""
    other = {(run["problem"], run["seed"]): run for run in theirs}
    differences = {}
    for run in sorted(mine, key=lambda run: (run["problem"], run["seed"])):
        match = other.get((run["problem"], run["seed"]))
        if match:
            differences.setdefault(run["problem"], []).append(figure(run) - figure(match))
    return {problem: np.array(values, dtype=float) for problem, values in differences.items()}


def interval(differences):
    """(mean over problems, lower, upper): 95 % by resampling the seeds within each problem."""
    generator = np.random.default_rng(SEED)
    resampled = np.zeros(RESAMPLES)
    for values in differences.values():
        drawn = generator.integers(len(values), size=(RESAMPLES, len(values)))
        resampled += values[drawn].mean(axis=1) / len(differences)
    mean = float(np.mean([values.mean() for values in differences.values()]))
    lower, upper = np.quantile(resampled, [0.025, 0.975])
    return mean, float(lower), float(upper)


def by_problem(runs, figure):
    """Mean over problems of the mean over seeds."""
    values = {}
    for run in runs:
        values.setdefault(run["problem"], []).append(figure(run))
    return float(np.mean([np.mean(list(of)) for of in values.values()]))


class Figures:
    """The figures of single runs, given the problems' optima."""

    def __init__(self, optima):
        self.optima = optima

    def curve(self, run):
        return regret(run, self.optima[run["problem"]])

    def regret_at(self, trial):
        return lambda run: float(self.curve(run)[min(trial, run["trials"]) - 1])

    def near(self, run):
        return trials_to(self.curve(run), NEAR)

    def user_pick(self, run):
        return user_pick(run, self.optima[run["problem"]])

    def left(self, run, at):
        """Remaining gain at the judgement after `at` trials."""
        found = [left(judged, self.optima[run["problem"]]) for judged in run["judged"] if judged["at"] == at]
        return found[0] if found else None

    def own_pick(self, run):
        return own_pick(run, self.optima[run["problem"]])
