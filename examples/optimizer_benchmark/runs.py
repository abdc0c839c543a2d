"""Runs of optimizers on problems. Each is one line in the file of its row, and is not repeated."""

import json
import multiprocessing
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import space

# Standard deviations of the measured logarithms: throughput, p99 latencies.
NOISE, NOISE_P99 = 0.03, 0.05
# Trials after which the program under test must name the configuration that it would pick, besides the last trial.
JUDGED_AT = (15, 30, 45)


@dataclass(frozen=True)
class Run:
    """One optimizer on one problem with one seed; `command` starts the program under test."""

    row: object
    problem: object
    seed: int
    trials: int
    command: tuple


def measure(run):
    """Runs it; a dictionary that is written as one line.

    The noise depends on problem, seed and the place of the trial, so that rows are compared in pairs.
    """
    problem, row = run.problem, run.row
    noise = np.random.default_rng([run.seed, zlib.crc32(problem.name.encode())])
    started = time.perf_counter()
    optimizer = row.start(list(run.command), row.space(problem, run.trials, run.seed))
    log, ask_ms, tell_ms, judged = [], [], [], []
    try:
        while len(log) < run.trials:
            batch = []
            for _ in range(min(row.parallel, run.trials - len(log))):
                before = time.perf_counter()
                batch.append(optimizer.ask())
                ask_ms.append(milliseconds_since(before))
                space.check(problem.params, batch[-1][1])
            for identifier, config in batch:
                result, record = problem.evaluate(config, noise, NOISE, NOISE_P99)
                before = time.perf_counter()
                optimizer.tell(identifier, config, result)
                tell_ms.append(milliseconds_since(before))
                log.append(entry(result, record))
                if row.peer is None and len(log) in (*JUDGED_AT, run.trials):
                    judged.append(judgement(optimizer, problem, len(log)))
    finally:
        optimizer.close()
    wall_s = round(time.perf_counter() - started, 2)
    return {"problem": problem.name, "seed": run.seed, "trials": run.trials, "noise": NOISE, "parallel": row.parallel,
            "log": log, "ask_ms": ask_ms, "tell_ms": tell_ms, "judged": judged, "wall_s": wall_s}


def milliseconds_since(before):
    return round((time.perf_counter() - before) * 1e3, 2)


def entry(result, record):
    """status, measured value and constraints, then the same without noise"""
    return {"s": result["status"], "v": (result["values"] or {}).get("throughput"), "g": list((result["constraints"] or {}).values()),
            "tv": record["true_value"], "tg": record["true_g"]}


def judgement(optimizer, problem, at):
    """The true values of the program's own pick after `at` trials, None without a pick, and its estimate of the remaining gain."""
    config, remaining = optimizer.judge()
    if config is None:
        return {"at": at, "tv": None, "tg": None, "remaining": None}
    _, truth = problem.evaluate(config, np.random.default_rng(0), 0.0, 0.0)
    return {"at": at, "tv": None if truth["crash"] else truth["true_value"], "tg": truth["true_g"], "remaining": remaining}


def attempt(run):
    try:
        return run, measure(run), None
    except (RuntimeError, ValueError, OSError) as error:
        return run, None, f"{run.row.label} {run.problem.name} seed {run.seed}: {error}"


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_all(rows, problems, seeds, trials, command, out, jobs):
    """Makes the runs that `out` lacks. Returns the number of runs that failed."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = []
    for row in rows:
        done = {(run["problem"], run["seed"]) for run in read(out / f"{row.label}.jsonl")}
        wanted += [Run(row, problem, seed, trials, tuple(command)) for seed in seeds for problem in problems if (problem.name, seed) not in done]
    failures = 0
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for place, (run, line, error) in enumerate(pool.imap_unordered(attempt, wanted), start=1):
            if error:
                failures += 1
                print(error, file=sys.stderr)
                continue
            with open(out / f"{run.row.label}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{place}/{len(wanted)} {run.row.label} {run.problem.name} seed {run.seed}: {line['wall_s']} s", file=sys.stderr)
    return failures


def read_rows(out, labels):
    """label -> runs, of the rows that have any"""
    found = {label: read(Path(out) / f"{label}.jsonl") for label in labels}
    return {label: runs for label, runs in found.items() if runs}
