"""Compares optimizers on the problems of a harness and on measured tables; `--help` says how."""

import argparse
import json
import os
import sys
from pathlib import Path

# Set before numpy is loaded: each run uses one core. Timings are per core, and parallel runs do not disturb each other.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import checks
import further
import harness
import runs
import speed
import tables
from figures import Figures
from report import report, table
from rows import ROWS, TABLE_ROWS


def arguments():
    parser = argparse.ArgumentParser(prog="optimizer_benchmark", description="Compares setpoint's optimizer with others. "
                                     "Results are kept in --out; what is there is not run again.")
    parser.add_argument("command", choices=["run", "further", "tables", "speed", "report"],
                        help="run: the harness's problems; further: others of their kind; tables: replayed tables; speed: time of a suggestion; report: all that --out has, in Markdown")
    parser.add_argument("--harness", type=Path, default=harness.DEFAULT, help="directory with the problems (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="directory with the measured tables (default: data beside the harness)")
    parser.add_argument("--setpoint", type=Path, default=harness.ROOT / "target/release/setpoint", help="program under test (default: %(default)s)")
    parser.add_argument("--sampler", help="a sampler of it other than its default; use another --out for it")
    parser.add_argument("--out", type=Path, default=Path("optimizer-benchmark-runs"), help="directory of the results (default: %(default)s)")
    parser.add_argument("--rows", help=f"of run and further: {','.join(ROWS)}; of tables: {','.join(TABLE_ROWS)} (default: all)")
    parser.add_argument("--problems", help="names, with commas between them (default: all)")
    parser.add_argument("--seeds", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, default=0, help="the seeds go on from here; use another --out for others (default: %(default)s)")
    parser.add_argument("--trials", type=int, help="of a run (default: 60, of tables 30)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s); timings need a core for each")
    return parser.parse_args()


def chosen(names, known, what):
    if names is None:
        return list(known.values())
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        stop(f"no {what} named {unknown[0]}: there are {', '.join(known)}")
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


def print_report(given, problems):
    rows = runs.read_rows(given.out, ROWS)
    figures = Figures({name: problem.optimum()["value"] for name, problem in problems.items()})
    found = checks.judge_all(rows, figures)
    lines = report("All problems", rows, figures, problems) if rows else []
    others = runs.read_rows(given.out / "further", ROWS)
    if others:
        of_others = Figures({name: problem.optimum()["value"] for name, problem in further.problems().items()})
        lines += report("Further problems", others, of_others, further.problems())
    on_tables = runs.read_rows(given.out / "tables", TABLE_ROWS)
    if on_tables:
        replayed = tables.load(given.data)
        of_tables = Figures({name: problem.optimum()["value"] for name, problem in replayed.items()})
        lines += table("Replayed tables", on_tables, of_tables, ats=tables.BUDGETS)
        found += checks.on_tables(on_tables, of_tables, tables.BUDGETS)
    measured = given.out / "speed.json"
    found += checks.in_time(json.loads(measured.read_text()) if measured.exists() else None)
    print("\n".join(lines + checks.show(found)))


def main():
    given = arguments()
    given.data = given.data or given.harness.parent / "data"
    needed = harness.absent(given.harness) or (given.command == "tables" and tables.absent(given.data))
    if needed:
        stop(needed)
    harness.load(given.harness)
    match given.command:
        case "run":
            run(given, ROWS, harness.problems(), given.out, 60)
        case "further":
            run(given, ROWS, further.problems(), given.out / "further", 60)
        case "tables":
            run(given, TABLE_ROWS, tables.load(given.data), given.out / "tables", max(tables.BUDGETS))
        case "speed":
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / "speed.json").write_text(json.dumps(speed.measure(command_of(given)), indent=1) + "\n")
        case "report":
            print_report(given, harness.problems())


if __name__ == "__main__":
    main()
