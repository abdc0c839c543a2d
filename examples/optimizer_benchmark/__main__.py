"""Compares optimizers on problems with a known optimum and on measured tables; `--help` lists the commands."""

import argparse
import json
import os
import sys
from pathlib import Path

# Set before numpy is loaded: each run uses one core. Timings are per core, and parallel runs do not disturb each other.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import checks
import optimum
import runs
import speed
import tables
from figures import Figures
from problems import GROUPS
from report import report, table
from rows import ROWS, TABLE_ROWS

ROOT = Path(__file__).resolve().parents[2]


def arguments():
    parser = argparse.ArgumentParser(prog="optimizer_benchmark", description="Compares setpoint's optimizer with others. "
                                     "Results are kept in --out, and runs that are there are not repeated.")
    parser.add_argument("command", choices=["run", "tables", "speed", "report"],
                        help="run: problems with a known optimum; tables: replayed tables; speed: time of a suggestion; report: all results in --out, in Markdown")
    parser.add_argument("--group", choices=list(GROUPS), default="main", help="group of problems of run (default: %(default)s)")
    parser.add_argument("--setpoint", type=Path, default=ROOT / "target/release/setpoint", help="program under test (default: %(default)s)")
    parser.add_argument("--sampler", help="a sampler of it other than its default; use another --out for it")
    parser.add_argument("--out", type=Path, default=Path("optimizer-benchmark-runs"), help="directory of the results (default: %(default)s)")
    parser.add_argument("--rows", help=f"of run: {','.join(ROWS)}; of tables: {','.join(TABLE_ROWS)} (default: all)")
    parser.add_argument("--problems", help="names, with commas between them (default: all of the group)")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of the seeds; use another --out for others (default: %(default)s)")
    parser.add_argument("--trials", type=int, help="trials of a run (default: 60, of tables 30)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s); timings need a core for each")
    return parser.parse_args()


def chosen(names, known, kind):
    if names is None:
        return list(known.values())
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        stop(f"no {kind} named {unknown[0]}: there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def stop(message):
    sys.exit(f"optimizer_benchmark: {message}")


def command_of(given):
    return [str(given.setpoint), "optimize", *(["--sampler", given.sampler] if given.sampler else [])]


def run(given, known_rows, problems, out, trials):
    rows = chosen(given.rows, known_rows, "row")
    if any(row.peer is None for row in rows) and not os.access(given.setpoint, os.X_OK):
        stop(f"{given.setpoint} does not exist or cannot be run: build it with `cargo build --release`, or name it with --setpoint")
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    failures = runs.run_all(rows, chosen(given.problems, problems, "problem"), seeds, given.trials or trials, command_of(given), out, given.jobs)
    if failures:
        stop(f"{failures} runs failed")


def print_report(given):
    lines, found = [], []
    for group, problems in GROUPS.items():
        rows = runs.read_rows(given.out / group, ROWS)
        figures = Figures({name: optimum.find(problem)[0] for name, problem in problems.items()} if rows else {})
        lines += report(f"{group.capitalize()} problems", rows, figures, problems) if rows else []
        found += checks.judge_all(rows, figures) if group == "main" else []
    on_tables = runs.read_rows(given.out / "tables", TABLE_ROWS)
    if on_tables:
        of_tables = Figures({name: problem.optimum() for name, problem in tables.load().items()})
        lines += table("Replayed tables", on_tables, of_tables, ats=tables.BUDGETS)
        lines += table(f"The sweep {tables.SWEEP}", on_tables, of_tables, tables.SWEEP, tables.BUDGETS)
        found += checks.on_tables(on_tables, of_tables, tables.BUDGETS) + checks.on_sweep(on_tables, of_tables, tables.SWEEP)
    measured = given.out / "speed.json"
    found += checks.in_time(json.loads(measured.read_text()) if measured.exists() else None)
    print("\n".join(lines + checks.show(found)))


def main():
    given = arguments()
    match given.command:
        case "run":
            run(given, ROWS, GROUPS[given.group], given.out / given.group, 60)
        case "tables":
            run(given, TABLE_ROWS, tables.load(), given.out / "tables", max(tables.BUDGETS))
        case "speed":
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "speed.json").write_text(json.dumps(speed.measure(command_of(given)), indent=1) + "\n")
        case "report":
            print_report(given)


if __name__ == "__main__":
    main()
