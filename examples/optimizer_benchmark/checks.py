"""Targets of the optimizer, each with its measurement. A check uses only the problems and seeds that all of its rows have."""

from dataclasses import dataclass

import numpy as np

from figures import AT, SEED, by_problem, common, count, interval, paired, quantile, shown, trials_to
from rows import CONTEXT, GP, OWN, PARALLEL, RANDOM, TABLE_PEERS, TPE, WRONG_ROWS

# Trials of the sequential run whose regret the parallel run must reach. The regret of later trials could not be reached
# within 60 trials at the allowed ratio.
LEVELS_AT = (10, 15, 20, 25, 30, 35, 40, 45)
# Regrets that single runs must reach.
RUN_LEVELS = (0.3, 0.2, 0.1, 0.05, 0.02)
MOST_PARALLEL, MOST_BEHIND = 1.3, 5
# Number of resampled sets of seeds, for the interval of the mean ratio.
RESAMPLED = 2000
# Launches of a short study, at which the regrets on the sweep are compared.
SWEEP_AT = (8, 15)
MOST_MS = {50: 100, 500: 1000}
LONGEST_HISTORY = 10_000


@dataclass(frozen=True)
class Check:
    what: str
    # `None` if it was not measured.
    passed: bool | None
    measured: str


def measured(what, rows, labels, judge):
    """The checks that `judge` makes of the runs that all `labels` have, or one that names the missing rows."""
    lacking = [label for label in labels if label not in rows]
    if lacking:
        return [Check(what, None, "no runs of " + ", ".join(lacking))]
    kept = common(rows, labels)
    runs = len(kept[labels[0]])
    if not runs:
        return [Check(what, None, "no runs of the same problem and seed")]
    return [Check(check.what, check.passed, f"{check.measured} ({runs} runs)") for check in judge(what, kept)]


def difference(found):
    return "%+.3f [%+.3f, %+.3f]" % found


def against_peers(rows, figures, at):
    figure = figures.regret_at(at)

    def best_of(rows):
        return min((TPE, GP), key=lambda peer: by_problem(rows[peer], figure))

    def judge(what, rows):
        best = best_of(rows)
        mine, theirs = by_problem(rows[OWN], figure), by_problem(rows[best], figure)
        found = interval(paired(rows[OWN], rows[best], figure))
        yield Check(what, found[2] < 0, f"{mine:.4f} against {theirs:.4f} of {best}, difference {difference(found)}")
        yield Check(f"regret@{at}: the aim, half of the best Optuna row", mine <= theirs / 2, f"{mine:.4f} against half of {theirs:.4f}")
        # Compares each problem with the best row of that problem, which need not be the best row over all problems.
        each = {}
        for problem in sorted({run["problem"] for run in rows[OWN]}):
            of = {label: [run for run in runs if run["problem"] == problem] for label, runs in rows.items()}
            each[problem] = (best_of(of), interval(paired(of[OWN], of[best_of(of)], figure)))
        yield Check(f"regret@{at}: behind on none of the problems", all(mean <= 0 for _, (mean, _, _) in each.values()),
                    "; ".join(f"{problem} {difference(of)} ({best})" for problem, (best, of) in each.items()))

    return measured(f"regret@{at} below the best Optuna row, interval without 0", rows, (OWN, TPE, GP), judge)


def near(rows, figures):
    def judge(what, rows):
        found = [figures.near(run) for run in rows[OWN]]
        by30, by60 = np.mean([n <= 30 for n in found]), np.mean([n <= 60 for n in found])
        yield Check(what, bool(by30 >= 0.70 and by60 >= 0.95), f"{100 * by30:.1f} % and {100 * by60:.1f} %")

    return measured("within 5 % by 30 in 70 %, by 60 in 95 % of the runs", rows, (OWN,), judge)


def spoilt(rows):
    def judge(status, holds):
        def of(what, rows):
            counted = lambda run: count(run, status)
            found = interval(paired(rows[OWN], rows[GP], counted))
            mine, theirs = by_problem(rows[OWN], counted), by_problem(rows[GP], counted)
            yield Check(what, holds(found[0]), f"{mine:.1f} against {theirs:.1f}, difference {difference(found)}")

        return of

    return (measured(f"no more crashes than {GP}", rows, (OWN, GP), judge("failed", lambda mean: mean <= 0))
            + measured(f"fewer SLO misses than {GP}", rows, (OWN, GP), judge("infeasible", lambda mean: mean < 0)))


def with_context(rows, figures):
    def judge(what, rows):
        found = [figures.near(run) for run in rows[CONTEXT]]
        median, by20 = quantile(found, 0.5), np.mean([n <= 20 for n in found])
        yield Check(what, bool(median <= 8 and by20 >= 0.90), f"{shown(median)} trials, {100 * by20:.1f} %")

    return measured("with context: 8 trials to within 5 % in the median, 90 % of the runs within 20", rows, (CONTEXT,), judge)


def with_wrong_context(rows, figures):
    """Of the trials to within 5 %, on each problem and over all: medians, and means over pairs of runs.

    A run that never gets there counts as one trial more than it had.
    """
    def counted(run):
        return min(figures.near(run), run["trials"] + 1)

    def judge(label):
        def of(what, rows):
            texts, passed = [], True
            by = paired(rows[label], rows[OWN], counted)
            for problem in (None, *by):
                medians = [quantile([counted(run) for run in rows[row] if problem in (None, run["problem"])], 0.5) for row in (label, OWN)]
                mean = interval(by if problem is None else {problem: by[problem]})
                passed &= max(medians[0] - medians[1], mean[0]) <= MOST_BEHIND
                texts.append(f"{problem or 'all'} {medians[0]} against {medians[1]}, mean {'%+.1f [%+.1f, %+.1f]' % mean}")
            yield Check(what, bool(passed), "; ".join(texts))

        return of

    return [check for label in WRONG_ROWS
            for check in measured(f"{label}: behind {OWN} by at most {MOST_BEHIND} trials to within 5 %", rows, (label, OWN), judge(label))]


def curves(runs, figures):
    """problem -> one curve of regret for each seed, in the order of the seeds"""
    found = {}
    for run in sorted(runs, key=lambda run: (run["problem"], run["seed"])):
        found.setdefault(run["problem"], []).append(figures.curve(run))
    return {problem: np.array(of) for problem, of in found.items()}


def needed_trials(sequential, parallel, chosen=None):
    """For each level (trials of the sequential run, of the parallel one), of the mean over problems of the mean over seeds.

    `chosen` is problem -> places of seeds, all without it.
    """
    def mean(of):
        return np.mean([of[problem][slice(None) if chosen is None else chosen[problem]].mean(axis=0) for problem in of], axis=0)

    one, four = mean(sequential), mean(parallel)
    levels = [one[at - 1] for at in LEVELS_AT if at <= len(one)]
    # If the sequential run had this level earlier, its first trial at the level counts.
    return [(trials_to(one, level), trials_to(four, level)) for level in levels]


def ratios(needed, trials):
    """A level that is never reached counts as one trial more than the run had."""
    return [min(most, trials + 1) / least for least, most in needed]


def in_parallel(rows, figures):
    def judge(what, rows):
        sequential, parallel = (curves(rows[label], figures) for label in (OWN, PARALLEL))
        trials = rows[OWN][0]["trials"]
        needed = needed_trials(sequential, parallel)
        found, means, generator = ratios(needed, trials), [], np.random.default_rng(SEED)
        for _ in range(RESAMPLED):
            chosen = {problem: generator.integers(len(of), size=len(of)) for problem, of in sequential.items()}
            means.append(np.mean(ratios(needed_trials(sequential, parallel, chosen), trials)))
        lower, upper = np.quantile(means, [0.025, 0.975])
        yield Check(what, max(found) <= MOST_PARALLEL, f"{', '.join(f'{shown(most)} for {least}' for least, most in needed)}; "
                    f"largest ratio {max(found):.2f}, mean {np.mean(found):.2f} [{lower:.2f}, {upper:.2f}]")

    return measured(f"parallel 4: at most {MOST_PARALLEL} times the trials for the same mean regret", rows, (OWN, PARALLEL), judge)


def run_by_run_in_parallel(rows, figures):
    """Of the trials that each run needs for a regret: means and medians. A run that never gets there counts as one trial more than it had."""
    def judge(what, rows):
        texts, largest = [], 0.0
        for level in RUN_LEVELS:
            four, one = ([min(trials_to(figures.curve(run), level), run["trials"] + 1) for run in rows[label]] for label in (PARALLEL, OWN))
            means, medians = (np.mean(four), np.mean(one)), (np.median(four), np.median(one))
            largest = max(largest, means[0] / means[1], medians[0] / medians[1])
            texts.append(f"{level}: mean {means[0]:.1f} for {means[1]:.1f}, median {medians[0]:g} for {medians[1]:g}")
        yield Check(what, bool(largest <= MOST_PARALLEL), f"{'; '.join(texts)}; largest ratio {largest:.2f}")

    return measured(f"parallel 4: at most {MOST_PARALLEL} times the trials to a regret, run by run", rows, (OWN, PARALLEL), judge)


def on_tables(rows, figures, budgets):
    def judge(peer, holds):
        def of(what, rows):
            found = {at: interval(paired(rows[OWN], rows[peer], figures.regret_at(at))) for at in budgets}
            yield Check(what, holds([mean for mean, _, _ in found.values()]), "; ".join(f"@{at} {difference(of)}" for at, of in found.items()))

        return of

    return (measured("tables: never behind random at any budget", rows, (OWN, RANDOM), judge(RANDOM, lambda means: max(means) <= 0))
            + measured("tables: ahead of Optuna's GP on average", rows, (OWN, "optuna_gp"), judge("optuna_gp", lambda means: sum(means) < 0)))


def on_sweep(rows, figures, sweep):
    """Regrets on the table of a whole sweep, after the launches of a short study."""
    of_sweep = {label: [run for run in runs if run["problem"] == sweep] for label, runs in rows.items()}

    def judge(peer):
        def of(what, rows):
            found = {at: interval(paired(rows[OWN], rows[peer], figures.regret_at(at))) for at in SWEEP_AT}
            yield Check(what, all(mean <= 0 for mean, _, _ in found.values()), "; ".join(f"@{at} {difference(of)}" for at, of in found.items()))

        return of

    return [check for peer in TABLE_PEERS
            for check in measured(f"{sweep}: not behind {peer}", of_sweep, (OWN, peer), judge(peer))]


def in_time(speed):
    """`speed` is the output of the command `speed`, or None."""
    what = "a suggestion in less than 100 ms at 50 trials and 1 s at 500, on one core; 10,000 do not break it"
    same = "the same seed and history give the same suggestion (twice on this machine)"
    if speed is None:
        return [Check(what, None, "no result of `speed`"), Check(same, None, "no result of `speed`")]
    by = {of["history"]: of for of in speed["suggestions"]}
    passed = {*MOST_MS, LONGEST_HISTORY} <= set(by) and all(max(by[history]["first_ms"], by[history]["max_ms"]) < most for history, most in MOST_MS.items())
    text = "; ".join(f"{history}: first {of['first_ms']:.0f}, then median {of['median_ms']:.0f}, max {of['max_ms']:.0f} ms" for history, of in by.items())
    return [Check(what, passed, text), Check(same, speed["repeated"], f"fingerprint {speed['fingerprint']}, to compare with other machines")]


def judge_all(rows, figures):
    """The checks of a group of problems."""
    halves = [check for at in AT[-2:] for check in against_peers(rows, figures, at)]
    return (halves + near(rows, figures) + spoilt(rows) + with_context(rows, figures) + with_wrong_context(rows, figures)
            + in_parallel(rows, figures) + run_by_run_in_parallel(rows, figures))


def show(checks):
    verdict = {True: "pass", False: "FAIL", None: "not measured"}
    lines = [f"| {verdict[check.passed]} | {check.what} | {check.measured} |" for check in checks]
    return ["### Must reach", "", "| | what | measured |", "|---|---|---|", *lines, ""]
