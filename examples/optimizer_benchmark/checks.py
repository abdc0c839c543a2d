"""What the optimizer must reach, each with what was measured. A line without its rows says that they are missing."""

import math
from dataclasses import dataclass

import numpy as np

from figures import by_problem, count, interval, paired, quantile, trials_to
from rows import CONTEXT, GP, OWN, PARALLEL, RANDOM, TPE, WRONG_ROWS

# Regret of the sequential run after so many trials: what the parallel run has to reach. Later ones could not be reached
# within 60 trials at the ratio that is allowed.
LEVELS_AT = (10, 15, 20, 25, 30, 35, 40, 45)
MOST_PARALLEL, MOST_BEHIND = 1.3, 5
MOST_MS = {50: 100, 500: 1000}


@dataclass(frozen=True)
class Check:
    what: str
    # None: not measured.
    passed: bool | None
    measured: str


def missing(what, rows, wanted):
    lacking = [label for label in wanted if label not in rows]
    return Check(what, None, "no runs of " + ", ".join(lacking)) if lacking else None


def shown(difference):
    return "%+.3f [%+.3f, %+.3f]" % difference


def against_peers(rows, figures, at):
    what = f"regret@{at} below the best Optuna row, interval without 0"
    lacking = missing(what, rows, (OWN, TPE, GP))
    if lacking:
        return [lacking]
    figure = figures.regret_at(at)
    best = min((TPE, GP), key=lambda peer: by_problem(rows[peer], figure))
    mine, theirs = by_problem(rows[OWN], figure), by_problem(rows[best], figure)
    by = paired(rows[OWN], rows[best], figure)
    difference = interval(by)
    each = {problem: interval({problem: values}) for problem, values in by.items()}
    return [
        Check(what, difference[2] < 0, f"{mine:.4f} against {theirs:.4f} of {best}, difference {shown(difference)}"),
        Check(f"regret@{at}: the aim, half of the best Optuna row", mine <= theirs / 2, f"{mine / theirs:.2f} times" if theirs else "it is 0"),
        Check(f"regret@{at}: behind on none of the problems", all(mean <= 0 for mean, _, _ in each.values()),
              "; ".join(f"{problem} {shown(found)}" for problem, found in each.items())),
    ]


def near(rows, figures):
    what = "within 5 % by 30 in 70 %, by 60 in 95 % of the runs"
    if lacking := missing(what, rows, (OWN,)):
        return [lacking]
    found = [figures.near(run) for run in rows[OWN]]
    by30, by60 = np.mean([n <= 30 for n in found]), np.mean([n <= 60 for n in found])
    return [Check(what, bool(by30 >= 0.70 and by60 >= 0.95), f"{100 * by30:.0f} % and {100 * by60:.0f} %")]


def spoilt(rows):
    checks = []
    for name, status, holds in (("no more crashes", "failed", lambda d: d <= 0), ("fewer SLO misses", "infeasible", lambda d: d < 0)):
        what = f"{name} than {GP}"
        lacking = missing(what, rows, (OWN, GP))
        if lacking:
            checks.append(lacking)
            continue
        counted = lambda run, status=status: count(run, status)
        difference = interval(paired(rows[OWN], rows[GP], counted))
        checks.append(Check(what, holds(difference[0]), f"{by_problem(rows[OWN], counted):.1f} against {by_problem(rows[GP], counted):.1f}, difference {shown(difference)}"))
    return checks


def with_context(rows, figures):
    what = "with context: 8 trials to within 5 % in the median, 90 % of the runs within 20"
    if lacking := missing(what, rows, (CONTEXT,)):
        return [lacking]
    found = [figures.near(run) for run in rows[CONTEXT]]
    median, by20 = quantile(found, 0.5), np.mean([n <= 20 for n in found])
    return [Check(what, bool(median <= 8 and by20 >= 0.90), f"{median} trials, {100 * by20:.0f} %")]


def later(mine, theirs):
    """By how many trials `mine` is later; runs that never get there are equally late."""
    return 0 if mine == theirs else mine - theirs


def with_wrong_context(rows, figures):
    """Medians of the trials to within 5 %, on each problem and over all."""
    checks = []
    for label in WRONG_ROWS:
        what = f"{label}: never behind {OWN} by more than {MOST_BEHIND} trials (medians to within 5 %)"
        lacking = missing(what, rows, (label, OWN))
        if lacking:
            checks.append(lacking)
            continue
        problems = sorted({run["problem"] for run in rows[label]})
        medians = {}
        for problem in [None, *problems]:
            of = [[figures.near(run) for run in rows[one] if problem in (None, run["problem"])] for one in (label, OWN)]
            medians[problem or "all"] = tuple(quantile(found, 0.5) if found else math.inf for found in of)
        checks.append(Check(what, all(later(*pair) <= MOST_BEHIND for pair in medians.values()),
                            "; ".join(f"{problem} {mine} against {theirs}" for problem, (mine, theirs) in medians.items())))
    return checks


def mean_curve(runs, figures):
    problems = sorted({run["problem"] for run in runs})
    return np.mean([np.mean([figures.curve(run) for run in runs if run["problem"] == problem], axis=0) for problem in problems], axis=0)


def in_parallel(rows, figures):
    what = f"parallel 4: at most {MOST_PARALLEL} times the trials for the same mean regret"
    if lacking := missing(what, rows, (OWN, PARALLEL)):
        return [lacking]
    common = {(run["problem"], run["seed"]) for run in rows[OWN]} & {(run["problem"], run["seed"]) for run in rows[PARALLEL]}
    sequential, parallel = (mean_curve([run for run in rows[label] if (run["problem"], run["seed"]) in common], figures) for label in (OWN, PARALLEL))
    # Where the sequential run stood at that level already, its first trial there counts.
    needed = {at: (trials_to(sequential, sequential[at - 1]), trials_to(parallel, sequential[at - 1])) for at in LEVELS_AT if at <= len(sequential)}
    ratios = {at: most / least for at, (least, most) in needed.items()}
    medians = [quantile([figures.near(run) for run in rows[label]], 0.5) for label in (PARALLEL, OWN)]
    text = ", ".join(f"{most} for {least}" for least, most in needed.values())
    return [Check(what, max(ratios.values()) <= MOST_PARALLEL, f"{text}; largest ratio {max(ratios.values()):.2f}; median to within 5 %: {medians[0]} against {medians[1]}")]


def on_tables(rows, figures, budgets):
    checks = []
    for what, peer in (("tables: never behind random at any budget", RANDOM), ("tables: ahead of Optuna's GP on average", "optuna_gp")):
        lacking = missing(what, rows, (OWN, peer))
        if lacking:
            checks.append(lacking)
            continue
        found = {at: interval(paired(rows[OWN], rows[peer], figures.regret_at(at))) for at in budgets}
        means = [mean for mean, _, _ in found.values()]
        passed = max(means) <= 0 if peer == RANDOM else float(np.mean(means)) < 0
        checks.append(Check(what, passed, "; ".join(f"@{at} {shown(difference)}" for at, difference in found.items())))
    return checks


def in_time(speed):
    """`speed` is what the command `speed` wrote, or None."""
    what = "a suggestion in less than 100 ms at 50 trials and 1 s at 500; 10,000 do not break it"
    if speed is None:
        return [Check(what, None, "`speed` has not been run")]
    by = {of["history"]: of for of in speed["suggestions"]}
    passed = all(by[history]["max_ms"] < most for history, most in MOST_MS.items() if history in by) and {*MOST_MS, 10_000} <= set(by)
    text = "; ".join(f"{history}: median {of['median_ms']:.0f}, max {of['max_ms']:.0f} ms" for history, of in by.items())
    same = Check("the same seed and history give the same suggestion (twice on this machine)", speed["repeated"], f"fingerprint {speed['fingerprint']}, to compare with other machines")
    return [Check(what, passed, text), same]


def show(checks):
    verdict = {True: "pass", False: "FAIL", None: "not measured"}
    return ["### Must reach", "", "| | what | measured |", "|---|---|---|", *(f"| {verdict[check.passed]} | {check.what} | {check.measured} |" for check in checks), ""]
