"""Tests of the benchmark itself: `python -m unittest discover examples/optimizer_benchmark`. They need only numpy."""

import math
import tempfile
import unittest
from pathlib import Path

import numpy as np

import checks
import figures
import optimum
import runs
import space
import tables
from problems import GROUPS
from rows import ROWS, WRONG
from server import DEFAULTS, settings_of
from tables import Factor, Table

PROBLEMS = [problem for group in GROUPS.values() for problem in group.values()]


def run(problem, seed, log, trials=4, judged=()):
    return {"problem": problem, "seed": seed, "trials": trials, "log": log, "ask_ms": [1.0] * trials, "judged": judged}


def measured(value, constraint=-1.0):
    return {"s": "ok" if constraint <= 0 else "infeasible", "v": value, "g": [constraint], "tv": value, "tg": [constraint]}


FAILED = {"s": "failed", "v": None, "g": [], "tv": 9e9, "tg": [-1.0]}


class FiguresOfRuns(unittest.TestCase):
    def test_regret_counts_only_what_keeps_the_limits_in_truth(self):
        log = [FAILED, measured(90.0, constraint=0.01), measured(50.0), measured(80.0)]
        self.assertTrue(np.allclose(figures.regret(run("p", 0, log), 100.0), [1, 1, 0.5, 0.2]))

    def test_a_pick_that_misses_a_limit_clearly_is_no_result(self):
        self.assertEqual(figures.worth(measured(90.0, 0.06), 100.0), 1.0)
        self.assertAlmostEqual(figures.worth(measured(90.0, 0.04), 100.0), 0.1)
        self.assertEqual(figures.own_pick(run("p", 0, [], judged=[{"tv": None, "tg": None}]), 100.0), 1.0)
        self.assertIsNone(figures.own_pick(run("p", 0, []), 100.0))

    def test_what_is_left_is_a_share_of_the_pick_and_nothing_where_none_is_named(self):
        of = figures.Figures({"p": 100.0})
        judged = [{"at": 2, "tv": None, "tg": None, "remaining": None}, {"at": 4, "tv": 80.0, "tg": [-1.0], "remaining": [0.1, 0.2, 0.3]}]
        truth, believed = of.left(run("p", 0, [], judged=judged), 4)
        self.assertAlmostEqual(truth, 0.25)
        self.assertEqual(believed, [0.1, 0.2, 0.3])
        self.assertIsNone(of.left(run("p", 0, [], judged=judged), 2))
        self.assertIsNone(of.left(run("p", 0, []), 4))

    def test_trials_are_counted_from_one_and_may_be_infinite(self):
        self.assertEqual(figures.trials_to(np.array([1.0, 0.05, 0.0]), 0.05), 2)
        self.assertEqual(figures.trials_to(np.array([1.0, 0.9]), 0.05), math.inf)
        self.assertEqual(figures.quantile([3, math.inf, 1], 0.5), 3)

    def test_pairs_are_of_the_same_problem_and_seed(self):
        mine = [run("p", 0, [measured(90.0)]), run("p", 1, [measured(80.0)]), run("q", 0, [measured(70.0)])]
        theirs = [run("p", 1, [measured(60.0)]), run("q", 0, [measured(60.0)]), run("q", 5, [measured(0.0)])]
        found = figures.paired(mine, theirs, lambda run: run["log"][0]["tv"])
        self.assertEqual({problem: list(values) for problem, values in found.items()}, {"p": [20.0], "q": [10.0]})

    def test_an_interval_of_equal_differences_is_a_point_and_of_others_has_the_mean_and_the_spread_of_the_mean(self):
        self.assertTrue(np.allclose(figures.interval({"p": np.full(5, 2.0), "q": np.full(3, 4.0)}), (3, 3, 3)))
        values = np.random.default_rng(1).normal(0.5, 1.0, 400)
        mean, lower, upper = figures.interval({"p": values})
        self.assertAlmostEqual(mean, values.mean())
        self.assertAlmostEqual(upper - lower, 2 * 1.96 * values.std() / 20, delta=0.01)


class Problems(unittest.TestCase):
    def test_random_configurations_crash_miss_limits_and_keep_them(self):
        for problem in PROBLEMS:
            generator = np.random.default_rng(0)
            configs = [space.random_config(problem.params, generator) for _ in range(2000)]
            for config in configs[:50]:
                space.check(problem.params, config)
            _, constraints, crashed = problem.truth(settings_of(configs))
            feasible = ~crashed & (constraints <= 0).all(axis=1)
            self.assertTrue(0.05 < crashed.mean() < 0.8, f"{problem.name}: {crashed.mean()}")
            self.assertTrue(0.005 < feasible.mean() < 0.8, f"{problem.name}: {feasible.mean()}")

    def test_the_defaults_are_a_member_and_start(self):
        for problem in PROBLEMS:
            config = {parameter["name"]: DEFAULTS[parameter["name"]] for parameter in problem.params if "when" not in parameter}
            if "tensor_parallel_size" in config:
                # A 70B model does not fit into one device, so the space begins at two.
                config["tensor_parallel_size"] = 4
            space.check(problem.params, config)
            self.assertTrue(space.keeps(problem.known_constraints(), config), problem.name)
            self.assertFalse(problem.truth(settings_of([config]))[2][0], problem.name)

    def test_no_random_configuration_beats_the_optimum(self):
        for problem in PROBLEMS:
            value, config = optimum.find(problem)
            space.check(problem.params, config)
            self.assertTrue(space.keeps(problem.known_constraints(), config), problem.name)
            self.assertAlmostEqual(problem.values(settings_of([config]))[0] / value, 1.0, places=9, msg=problem.name)
            generator = np.random.default_rng(1)
            random = settings_of([space.random_config(problem.params, generator) for _ in range(20_000)])
            self.assertLessEqual(problem.values(random).max(), value, problem.name)

    def test_a_broken_known_constraint_is_a_crash(self):
        for problem in PROBLEMS:
            generator = np.random.default_rng(2)
            configs = [space.random_config(problem.params, generator) for _ in range(500)]
            broken = [config for config in configs if not space.keeps(problem.known_constraints(), config)]
            self.assertTrue(broken and problem.truth(settings_of(broken))[2].all(), problem.name)

    def test_equal_seeds_give_equal_results_and_noise_changes_only_the_measured_values(self):
        problem = PROBLEMS[0]
        config = optimum.find(problem)[1]
        first, again = (problem.evaluate(config, np.random.default_rng(5), 0.03, 0.05) for _ in range(2))
        other = problem.evaluate(config, np.random.default_rng(6), 0.03, 0.05)
        self.assertEqual(first, again)
        self.assertEqual(first[1], other[1])
        self.assertNotEqual(first[0]["values"], other[0]["values"])

    def test_a_run_is_kept_and_not_repeated(self):
        problem = PROBLEMS[0]
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory)
            for _ in range(2):
                self.assertEqual(runs.run_all([ROWS["random"]], [problem], [0], 3, (), out, 1), 0)
            kept = runs.read(out / "random.jsonl")
        self.assertEqual([(run["problem"], len(run["log"])) for run in kept], [(problem.name, 3)])


class WrongContexts(unittest.TestCase):
    def test_every_kind_changes_its_part_alone(self):
        given = {"model": {"parameters": 8e9}, "device": {"name": "h100-sxm", "memory_bytes": 80e9, "count": 2},
                 "load": {"input_tokens": 512, "output_tokens": 256, "concurrency": 400, "shared_prefix_fraction": 0.25, "shared_prefixes": 40}}
        for kind, spoil in WRONG.items():
            context = {part: dict(of) for part, of in given.items()}
            spoil(context)
            self.assertEqual({part for part in given if context[part] != given[part]}, {kind})


class Tables(unittest.TestCase):
    factors = (Factor("mode", ("a", "b")), Factor("size", (1, 8, 64), ordered=True), Factor("fast", (False, True)))
    measured = {("a", 1, False): (100.0, 10.0, 1.0), ("b", 1, False): (200.0, 10.0, 2.0), ("a", 8, False): (300.0, 20.0, 1.0),
                ("a", 64, False): (50.0, 40.0, 1.0), ("a", 1, True): (110.0, 5.0, 1.0), ("b", 1, True): (150.0, 5.0, 1.0)}

    def test_what_was_measured_comes_back(self):
        table = Table("made up", self.factors, self.measured, limited=False)
        for levels, values in self.measured.items():
            self.assertTrue(np.allclose(table.cells[levels], values), levels)

    def test_the_rest_is_the_nearest_row_times_measured_ratios(self):
        cells = Table("made up", self.factors, self.measured, limited=False).cells
        # This cell differs in one factor from ("b", 1, False): the size, whose ratio of 8 to 1 was measured at ("a",
        # False).
        self.assertTrue(np.allclose(cells[("b", 8, False)], (600.0, 20.0, 2.0)))

    def test_limits_leave_some_and_noise_is_told_not_true(self):
        table = Table("made up", self.factors, self.measured, limited=True)
        kept = np.mean([table.feasible(cell) for cell in table.cells.values()])
        self.assertTrue(0.1 <= kept < 0.7, kept)
        told, true = table.evaluate({"mode": "b", "size": 0, "fast": True}, np.random.default_rng(0), 0.03, 0.05)
        self.assertEqual(true["true_value"], table.cells[("b", 1, True)][0])
        self.assertNotEqual(told["values"]["throughput"], true["true_value"])

    def test_what_crashes_has_no_values(self):
        table = Table("made up", self.factors, self.measured, limited=False, crashes=({"mode": "b"},))
        told, true = table.evaluate({"mode": "b", "size": 2, "fast": True}, np.random.default_rng(0), 0.03, 0.05)
        self.assertEqual((told["status"], told["values"], true["crash"]), ("failed", None, True))

    def test_the_recorded_tables_have_both_variants_and_a_feasible_best(self):
        found = tables.load()
        self.assertEqual(len(found), 16)
        for name, table in found.items():
            self.assertTrue(len(table.measured) >= 6 and table.optimum() > 0, name)
            self.assertEqual(bool(table.limits), name.endswith("_limited"))


class MustReach(unittest.TestCase):
    def test_rows_that_are_missing_are_said_to_be_not_measured(self):
        found = checks.judge_all({}, figures.Figures({}))
        self.assertTrue(found and all(check.passed is None for check in found))

    def test_half_of_the_regret_is_ahead_and_more_of_it_on_one_problem_is_behind_there(self):
        def row(**values):
            return [run(problem, seed, [measured(value)] * 4) for problem, value in values.items() for seed in range(4)]

        rows = {"optuna_tpe_known": row(p=60.0, q=60.0), "optuna_gp_known": row(p=50.0, q=90.0), "setpoint": row(p=95.0, q=85.0)}
        below, half, nowhere = checks.against_peers(rows, figures.Figures({"p": 100.0, "q": 100.0}), 30)
        self.assertEqual((below.passed, half.passed, nowhere.passed), (True, True, False))

    def test_behind_by_more_than_is_allowed_fails(self):
        def row(first):
            log = [measured(10.0)] * (first - 1) + [measured(100.0)] + [measured(10.0)] * (20 - first)
            return [run("p", seed, log, trials=20) for seed in range(4)]

        of = figures.Figures({"p": 100.0})
        for first, passed in ((9, True), (10, False)):
            rows = {"setpoint": row(4), "setpoint_wrong_load": row(first)}
            found = next(check for check in checks.with_wrong_context(rows, of) if check.what.startswith("setpoint_wrong_load"))
            self.assertEqual(found.passed, passed, found.measured)

    def test_as_many_trials_more_as_are_allowed_pass_in_parallel(self):
        def row(late):
            log = [measured(float(max(0, trial - late))) for trial in range(1, 61)]
            return [run("p", seed, log, trials=60) for seed in range(4)]

        of = figures.Figures({"p": 100.0})
        for late, passed in ((3, True), (4, False)):
            found = checks.in_parallel({"setpoint": row(0), "setpoint_parallel4": row(late)}, of)[0]
            # All seeds are alike, so every sample of them has the same mean.
            mean = np.mean([(at + late) / at for at in checks.LEVELS_AT])
            self.assertIn(f"largest ratio {1 + late / 10:.2f}, mean {mean:.2f} [{mean:.2f}, {mean:.2f}]", found.measured)
            self.assertEqual(found.passed, passed)

    def test_trials_to_a_regret_are_counted_of_single_runs(self):
        def row(first):
            log = [measured(10.0)] * (first - 1) + [measured(100.0)] * (61 - first)
            return [run("p", seed, log, trials=60) for seed in range(3)] + [run("p", 3, [measured(10.0)] * 60, trials=60)]

        of = figures.Figures({"p": 100.0})
        for first, ratio, passed in ((13, 1.3, True), (14, 1.4, False)):
            found = checks.run_by_run_in_parallel({"setpoint": row(10), "setpoint_parallel4": row(first)}, of)[0]
            # One run of four never reaches the regret. It counts as 61 trials in both means.
            self.assertIn(f"0.05: mean {(3 * first + 61) / 4:.1f} for 22.8, median {first} for 10; ", found.measured)
            self.assertTrue(found.measured.endswith(f"largest ratio {ratio:.2f} (4 runs)"), found.measured)
            self.assertEqual(found.passed, passed)

    def test_slow_suggestions_fail(self):
        for slowest, passed in ((90.0, True), (150.0, False)):
            suggestions = [{"history": history, "first_ms": 1.0, "median_ms": 1.0, "max_ms": slowest} for history in (50, 500, 10_000)]
            speed = {"repeated": True, "fingerprint": "x", "suggestions": suggestions}
            self.assertEqual(checks.in_time(speed)[0].passed, passed)


if __name__ == "__main__":
    unittest.main()
