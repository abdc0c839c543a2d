"""Time of a suggestion after many trials, on one core, and whether a repetition gives the same suggestion."""

import hashlib
import json
import os
import time

import numpy as np

import space
from problems import GROUPS
from program import Program
from runs import NOISE, NOISE_P99

HISTORIES = (50, 500, 10_000)
REPEATS = 5


def told(problem, count, message, command):
    """A program with the results of `count` random trials of the problem, and the generator for further ones."""
    generator = np.random.default_rng(message["seed"])
    program = Program(command, message)
    for place in range(count):
        config = space.random_config(problem.params, generator)
        result, _ = problem.evaluate(config, generator, NOISE, NOISE_P99)
        program.tell(f"told{place}", config, result)
    return program, generator


def suggestions(problem, count, command):
    """(milliseconds of each suggestion, the suggestions)"""
    program, generator = told(problem, count, problem.space_message(count + REPEATS, seed=0), command)
    times, configs = [], []
    try:
        for _ in range(REPEATS):
            before = time.perf_counter()
            identifier, config = program.ask()
            times.append((time.perf_counter() - before) * 1e3)
            configs.append(config)
            program.tell(identifier, config, problem.evaluate(config, generator, NOISE, NOISE_P99)[0])
    finally:
        program.close()
    return times, configs


def measure(command, histories=HISTORIES):
    """The first suggestion includes the reading of the history. Each other one follows a further trial."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    # The problem with the most parameters.
    problem = max(GROUPS["main"].values(), key=lambda problem: len(problem.params))
    found, repeated, fingerprint = [], True, hashlib.sha256()
    for history in histories:
        times, configs = suggestions(problem, history, command)
        repeated &= suggestions(problem, history, command)[1] == configs
        fingerprint.update(json.dumps(configs, sort_keys=True).encode())
        found.append({"history": history, "first_ms": times[0], "median_ms": float(np.median(times[1:])), "max_ms": max(times[1:])})
    return {"problem": problem.name, "suggestions": found, "repeated": repeated, "fingerprint": fingerprint.hexdigest()[:12]}
