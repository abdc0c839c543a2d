"""The tables of the report, in Markdown."""

import numpy as np

from figures import AT, by_problem, count, interval, paired, quantile, shown
from rows import PEERS, RANDOM
from runs import JUDGED_AT

# Most suggestions before this one come from a design, and would make the times look better.
FIRST_TIMED = 10
# Smallest difference that counts, as a share of a configuration's value: a sixth of the noise of one measurement.
TOLD = 0.005


def head(ats):
    regrets = " | ".join(f"@{at}" for at in ats)
    return (f"| optimizer | runs | mean regret{regrets} | within 5 % by {ats[-2]} / by {ats[-1]} | to 5 %, median / p90 "
            "| crashes | SLO misses | user's pick | own pick | ask median / p90 / max, ms |")


def share(numbers):
    return f"{100 * np.mean(list(numbers)):.0f} %"


def line(label, runs, figures, ats):
    near = [figures.near(run) for run in runs]
    asked = [ms for run in runs for ms in run["ask_ms"][FIRST_TIMED:]]
    slowest = max(ms for run in runs for ms in run["ask_ms"])
    own = by_problem(runs, figures.own_pick) if all(run["judged"] for run in runs) else None
    cells = [
        label,
        str(len(runs)),
        *(f"{by_problem(runs, figures.regret_at(at)):.3f}" for at in ats),
        f"{share(n <= ats[-2] for n in near)} / {share(n <= ats[-1] for n in near)}",
        f"{shown(quantile(near, 0.5), ats[-1])} / {shown(quantile(near, 0.9), ats[-1])}",
        f"{by_problem(runs, lambda run: count(run, 'failed')):.1f}",
        f"{by_problem(runs, lambda run: count(run, 'infeasible')):.1f}",
        f"{by_problem(runs, figures.user_pick):.3f}",
        "" if own is None else f"{own:.3f}",
        f"{quantile(asked, 0.5):.0f} / {quantile(asked, 0.9):.0f} / {slowest:.0f}" if asked else "",
    ]
    return f"| {' | '.join(cells)} |"


def table(title, rows, figures, problem=None, ats=AT):
    columns = head(ats)
    lines = [f"### {title}", "", columns, "|---" * (columns.count("|") - 1) + "|"]
    for label, runs in rows.items():
        kept = [run for run in runs if problem in (None, run["problem"])]
        if kept:
            lines.append(line(label, kept, figures, ats))
    return [*lines, ""]


def remaining_gains(rows, figures):
    """Estimates of the remaining gain beyond the pick, against the truth."""
    by = f"by more than {100 * TOLD:g} %"
    lines = ["### Remaining gain beyond the pick: the estimate, in the median of the judgements, and the truth", "",
             f"| row | after | judgements | 5th / 50th / 95th percentile | truth, median | below the 5th {by} | above the 95th {by} |", "|---" * 7 + "|"]
    for label, runs in rows.items():
        for at in (*JUDGED_AT, runs[0]["trials"]):
            found = [said for said in (figures.left(run, at) for run in runs) if said]
            if not found:
                continue
            truth, believed = np.array([truth for truth, _ in found]), np.array([of for _, of in found])
            below, above = np.mean(truth < believed[:, 0] - TOLD), np.mean(truth > believed[:, 2] + TOLD)
            percentiles = " / ".join(f"{100 * of:.1f} %" for of in np.median(believed, axis=0))
            lines.append(f"| {label} | {at} | {len(found)} | {percentiles} | {100 * np.median(truth):.1f} % | {100 * below:.0f} % | {100 * above:.0f} % |")
    return [*lines, ""]


def figures_compared(figures):
    """name -> figure of a run that is compared in pairs; less is better in all of them."""
    return {
        **{f"regret@{at}": figures.regret_at(at) for at in AT},
        "crashes": lambda run: count(run, "failed"),
        "SLO misses": lambda run: count(run, "infeasible"),
    }


def differences(rows, figures):
    """Each row against each peer: mean difference over paired runs and its 95 % interval; below 0 is better."""
    compared = figures_compared(figures)
    lines = ["### Paired differences: the same problem, seed and noise; mean and 95 % interval; below 0 is better than the peer", "",
             f"| row | against | pairs | {' | '.join(compared)} |", "|---" * (3 + len(compared)) + "|"]
    for label, runs in rows.items():
        for peer in PEERS:
            if label in (RANDOM, peer) or peer not in rows:
                continue
            found = {name: paired(runs, rows[peer], figure) for name, figure in compared.items()}
            pairs = sum(len(values) for values in found["crashes"].values())
            if not pairs:
                continue
            cells = ["%+.3f [%+.3f, %+.3f]" % interval(values) for values in found.values()]
            lines.append(f"| {label} | {peer} | {pairs} | {' | '.join(cells)} |")
    return [*lines, ""]


def report(title, rows, figures, problems):
    """`problems` are the names, in the order in which they are shown, after a table of all of them."""
    lines = table(title, rows, figures)
    for problem in problems:
        lines += table(problem, rows, figures, problem)
    return lines + differences(rows, figures) + remaining_gains(rows, figures)
