"""Measured tables as finite problems: the best configuration of an engine by recorded measurements.

A table has one workload and load. Most rows of the tables by others vary one factor at a time, so many combinations were not measured.
The protocol cannot exclude single configurations. So every combination of the factors exists. One that was not measured
gets the nearest measured row (by the number of factors that differ, then by the order of the table), times the measured
ratio of each factor that differs. A ratio is the geometric mean over all pairs of rows that differ in that factor alone.
Measured rows keep their values, interactions included; the rest is a product of main effects. It is the same for every
optimizer. Repeats of a row are averaged geometrically. Noise is added as on the other problems.
"""

import csv
import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

# The tables, each with its origin and licence.
DATA = Path(__file__).parent / "data"

BUDGETS = (5, 8, 10, 15, 20, 30)
# The table of which every combination was measured.
SWEEP = "llama_cpp_smollm2"
# Each limit is the same quantile of the running configurations' values. The lowest of these quantiles is used at which
# this share of all configurations keeps both limits.
LIMIT_QUANTILES = tuple(0.05 * step for step in range(4, 20))
LEAST_FEASIBLE = 0.1


@dataclass(frozen=True)
class Factor:
    """`levels` in their order. Ordered levels are suggested by their place, so that the optimizer knows the order."""

    name: str
    levels: tuple
    ordered: bool = False

    def parameter(self):
        if self.ordered:
            return {"name": self.name, "type": "int", "low": 0, "high": len(self.levels) - 1, "log": False}
        if set(self.levels) == {False, True}:
            return {"name": self.name, "type": "bool"}
        return {"name": self.name, "type": "categorical", "choices": list(self.levels)}


@dataclass
class Table:
    """A problem as those of `problems.py`. `measured` has, by the levels of the factors, (throughput, p99 TTFT, p99 TPOT)."""

    name: str
    factors: tuple
    measured: dict
    limited: bool
    # Levels (by factor) that make the engine fail to start.
    crashes: tuple = ()
    # Levels (by factor) that the engine replaces by others.
    replaced: tuple = ()
    cells: dict = field(init=False, default=None)
    limits: tuple = field(init=False, default=())

    def __post_init__(self):
        self.params = [factor.parameter() for factor in self.factors]
        self.constraint_names = ["ttft_p99", "tpot_p99"] if self.limited else []
        ratios = self.ratios()
        self.cells = {cell: self.emulated(cell, ratios) for cell in itertools.product(*(factor.levels for factor in self.factors))}
        if self.limited:
            self.limits = self.tightest()

    def tightest(self):
        running = [np.log(cell[1:]) for cell in self.cells.values() if cell is not None]
        for quantile in LIMIT_QUANTILES:
            limits = np.quantile(running, quantile, axis=0)
            if np.mean([np.all(cell <= limits) for cell in running]) * len(running) >= LEAST_FEASIBLE * len(self.cells):
                return tuple(float(limit) for limit in limits)
        raise ValueError(f"{self.name}: no limits leave {LEAST_FEASIBLE:.0%} of the configurations")

    def ratios(self):
        """(factor, level, other level) -> measured ratio of each quantity"""
        found = {}
        for (a, of_a), (b, of_b) in itertools.permutations(self.measured.items(), 2):
            differing = [place for place, pair in enumerate(zip(a, b)) if pair[0] != pair[1]]
            if len(differing) == 1:
                place = differing[0]
                found.setdefault((place, a[place], b[place]), []).append(np.log(of_a) - np.log(of_b))
        return {key: np.mean(values, axis=0) for key, values in found.items()}

    def emulated(self, cell, ratios):
        """The quantities of a configuration, or None if it does not start."""
        wanted = dict(zip((factor.name for factor in self.factors), cell))
        if any(all(wanted[name] == level for name, level in crash.items()) for crash in self.crashes):
            return None
        for when, becomes in self.replaced:
            if all(wanted[name] == level for name, level in when.items()):
                wanted.update(becomes)
        cell = tuple(wanted.values())
        for near in sorted(self.measured, key=lambda row: sum(a != b for a, b in zip(row, cell))):
            steps = [(place, a, b) for place, (a, b) in enumerate(zip(cell, near)) if a != b]
            if all(step in ratios for step in steps):
                return tuple(np.exp(np.log(self.measured[near]) + sum(ratios[step] for step in steps)))
        raise ValueError(f"{self.name}: nothing was measured that leads to {wanted}")

    def feasible(self, cell):
        return cell is not None and all(g <= 0 for g in self.constraints(cell))

    def constraints(self, cell):
        return [math.log(measured) - limit for measured, limit in zip(cell[1:], self.limits)]

    def cell(self, config):
        levels = (factor.levels[config[factor.name]] if factor.ordered else config[factor.name] for factor in self.factors)
        return self.cells[tuple(levels)]

    def evaluate(self, config, generator, noise, noise_p99):
        """Returns the result of a trial with noise, and the truth, as those of `problems.py`."""
        cell = self.cell(config)
        drawn = generator.standard_normal(1 + len(self.constraint_names))
        if cell is None:
            failed = {"status": "failed", "values": None, "constraints": None, "error": "the engine crashed"}
            return failed, {"true_value": 0.0, "true_g": [1.0 for _ in self.constraint_names], "crash": True}
        true = self.constraints(cell)
        told = [g + noise_p99 * z for g, z in zip(true, drawn[1:])]
        result = {"status": "ok" if all(g <= 0 for g in told) else "infeasible", "values": {"throughput": cell[0] * math.exp(noise * drawn[0])},
                  "constraints": dict(zip(self.constraint_names, told))}
        return result, {"true_value": cell[0], "true_g": true, "crash": False}

    def space_message(self, budget, seed, parallel=1):
        constraints = [{"name": name, "feasible": "<=0", "scale": "ln(measured/limit)"} for name in self.constraint_names]
        return {"type": "space", "protocol": 1, "problem": self.name, "params": self.params, "constraints": constraints, "known_constraints": [],
                "objectives": [{"name": "throughput", "direction": "maximize"}], "budget": budget, "parallel": parallel, "seed": seed}

    def optimum(self):
        return max(cell[0] for cell in self.cells.values() if self.feasible(cell))


def measured(rows, levels_of, columns):
    """levels -> geometric mean of the repeats, of each of the columns"""
    found = {}
    for row in rows:
        found.setdefault(levels_of(row), []).append([math.log(float(row[column])) for column in columns])
    return {levels: tuple(np.exp(np.mean(values, axis=0))) for levels, values in found.items()}


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def l40s(path):
    """vllm-optimization-bench: four workloads at 16 clients, the only number at which every factor was varied."""
    rows = [row for row in read(path) if row["concurrency"] == "16"]
    for workload in sorted({row["workload"] for row in rows}):
        of = [row for row in rows if row["workload"] == workload]
        factors = (
            Factor("precision", ("bf16", "fp8-dynamic", "fp8-static", "fp8-kv")),
            Factor("speculative", ("none", "ngram", "eagle3")),
            Factor("chunked_prefill", (False, True)),
            Factor("max_num_seqs", tuple(sorted({int(row["max_num_seqs"]) for row in of})), ordered=True),
        )
        levels = lambda row: (row["precision"], row["speculative"], row["chunked_prefill"] == "True", int(row["max_num_seqs"]))
        # From the source's own notes: EAGLE-3 switches chunked prefill off, and without it prompts of 4,096 tokens
        # crash.
        eagle = {"speculative": "eagle3"}
        crashes = (eagle,) if workload == "long_prompt" else ()
        quantities = measured(of, levels, ("output_throughput_tok_s", "ttft_ms_p99", "tpot_ms_p99"))
        yield f"l40s_{workload}", factors, quantities, crashes, ((eagle, {"chunked_prefill": False}),)


def dstack(path):
    """dstack's sweep of Llama-3.1-405B on 8 H100, at each of its three rates; max-num-batched-tokens was varied with max-num-seqs."""
    rows = read(path)
    factors = (
        Factor("num_scheduler_steps", (1, 5, 10, 15), ordered=True),
        Factor("chunked_prefill", (False, True)),
        Factor("max_num_seqs", (128, 256, 512, 1024), ordered=True),
        Factor("max_seq_len_to_capture", (4096, 8192, 16384), ordered=True),
    )
    levels = lambda row: (int(row["num-scheduler-step"]), row["enable-chunked-prefill"] == "TRUE", int(row["max-num-seqs"]), int(row["max-seq-len-to-capture"]))
    for rate in ("16", "32", "1000"):
        # The rate of 10,000 has a single row, which is the one missing at 1,000. Both rates are far above the engine's
        # throughput.
        of = [row for row in rows if row["qps"] == rate or (rate == "1000" and row["qps"] == "10000")]
        yield f"dstack_405b_rate{rate}", factors, measured(of, levels, ("output_throughput", "p99_ttft_ms", "p99_tpot_ms")), (), ()


def llama_cpp(path):
    """The sweep of `llama_cpp_sweep_benchmark.rs`: every combination was measured once, with 8 users."""
    rows = read(path)
    names = ("threads", "threads-batch", "parallel", "poll", "ubatch-size")
    factors = tuple(Factor(name.replace("-", "_"), tuple(sorted({int(row[name]) for row in rows})), ordered=True) for name in names)
    levels = lambda row: tuple(int(row[name]) for name in names)
    yield SWEEP, factors, measured(rows, levels, ("output_throughput", "p99_ttft_ms", "p99_tpot_ms")), (), ()


READERS = {"llama-cpp-smollm2/sweep.csv": llama_cpp, "vllm-optimization-bench-l40s/rows.csv": l40s, "dstack-405b/sweep.csv": dstack}


def load(directory=DATA):
    """name -> problem; each table once for its throughput alone, once within limits on both p99 latencies"""
    made = {}
    for file, tables_of in READERS.items():
        for name, factors, rows, crashes, replaced in tables_of(directory / file):
            for limited in (False, True):
                label = name + ("_limited" if limited else "")
                made[label] = Table(label, factors, rows, limited, crashes, replaced)
    return made
