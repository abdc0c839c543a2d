"""Checks the exports `optuna` and `mlflow` with the real packages.

    python3 -m venv .dashboards
    .dashboards/bin/pip install --requirement examples/dashboards/requirements.txt
    .dashboards/bin/python examples/dashboards/check.py [--program target/debug/setpoint] [--screenshots DIRECTORY]
    .dashboards/bin/python examples/dashboards/check.py --schemas     # writes the schemas of the installed packages

It runs a study of the simulated engine, exports it, and compares each field that the packages read back with
`setpoint trials --format json`. The real optuna-dashboard serves the export on a free port of 127.0.0.1; its JSON and, if
Chromium is installed, its pages are checked.
"""

import argparse
import json
import logging
import math
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

HERE = Path(__file__).resolve().parent
SCHEMAS = HERE.parent.parent / "src/export/database"

# Trials of the large study, and the limit of its export in seconds. The program may be a debug build.
MANY = 10_000
MAX_EXPORT_S = 60


def expect(what, found, expected):
    """Ends the check with both values if they differ. Numbers may differ by their last digits."""
    if isinstance(found, float) and isinstance(expected, (int, float)):
        same = math.isclose(found, expected, rel_tol=1e-12)
    else:
        same = found == expected
    if not same:
        sys.exit(f"{what}: found {found!r}, expected {expected!r}")


# Schemas


def schema_of(file):
    """The statements that create the tables of a database, in the order of creation."""
    database = sqlite3.connect(file)
    rows = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
    database.close()
    return "".join(sql.replace("\t", "    ").replace(" \n", "\n").rstrip() + ";\n" for (sql,) in rows)


def rows_of(file, query):
    database = sqlite3.connect(file)
    rows = database.execute(query).fetchall()
    database.close()
    return rows


def optuna_schema(directory):
    import optuna

    file = directory / "empty-optuna.db"
    optuna.storages.RDBStorage(f"sqlite:///{file}")
    (version,) = rows_of(file, "SELECT * FROM version_info")
    ((alembic,),) = rows_of(file, "SELECT * FROM alembic_version")
    return f"""\
-- The tables of a storage of Optuna {optuna.__version__} (schema version {version[1]}), as `optuna.storages.RDBStorage` creates them in SQLite.
-- Optuna is under the MIT license, see LICENSE beside this file. `examples/dashboards/check.py --schemas` compares and
-- rewrites it.

{schema_of(file)}INSERT INTO version_info VALUES {version};
INSERT INTO alembic_version VALUES ('{alembic}');
"""


def mlflow_schema(directory):
    import mlflow
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    file = directory / "empty-mlflow.db"
    SqlAlchemyStore(f"sqlite:///{file}", str(directory / "artifacts"))
    ((alembic,),) = rows_of(file, "SELECT * FROM alembic_version")
    ((name, description),) = rows_of(file, "SELECT name, description FROM workspaces")
    return f"""\
-- The tables of a tracking store of MLflow {mlflow.__version__}, as `mlflow.store.tracking.sqlalchemy_store` creates them in SQLite.
-- MLflow is under the Apache License 2.0, see LICENSE beside this file. `examples/dashboards/check.py --schemas`
-- compares and rewrites it.

{schema_of(file)}INSERT INTO alembic_version VALUES ('{alembic}');
INSERT INTO workspaces (name, description) VALUES ('{name}', '{description}');
"""


def lines_of(schema):
    """The lines in alphabetical order: some constraints and indices have another order in each new store of MLflow."""
    return sorted(line.removesuffix(",") for line in schema.splitlines())


def check_schemas(directory, write):
    for name, schema in [("optuna", optuna_schema(directory)), ("mlflow", mlflow_schema(directory))]:
        file = SCHEMAS / name / "schema.sql"
        if write:
            file.write_text(schema)
        expect(f"{file} (renew it with --schemas)", lines_of(file.read_text()) == lines_of(schema), True)
        print(f"{name}: the schema is that of the installed package")


# The study


class Study:
    """A study in a database, with the program's own view of its trials."""

    def __init__(self, program, database):
        self.program, self.database = program, database
        self.trials = json.loads(self.run("trials", "--format", "json"))

    def run(self, *arguments):
        command = [self.program, "--db", self.database, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def export(self, format):
        file = Path(self.database).with_suffix(f".{format}.db")
        begin = time.monotonic()
        self.run("export", "--format", format, "-o", file)
        return file, time.monotonic() - begin


def small_study(program, directory):
    database = directory / "study.db"
    command = [program, "--db", database, "--quiet", "tune", HERE / "study.toml"]
    # 4: no configuration kept the limit, which depends on the speed of this machine.
    code = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    expect("exit code of tune", code in (0, 4), True)
    add_states(database)
    study = Study(program, database)
    print(f"a study with {len(study.trials)} trials: {sorted({trial['state'] for trial in study.trials})}")
    return study


def add_states(database):
    """Adds what a quick study lacks: a rejected and a running trial, with control characters in their texts, and a trial
    that keeps the limit for certain."""
    database = sqlite3.connect(database)
    ((number,),) = database.execute("SELECT max(number) FROM trials").fetchall()
    measured = "SELECT min(number) FROM trials WHERE state = 'measured' AND number > 0"
    columns = "study_id, proposed_by, config, command, env, started_at, elapsed_s, accepted_changes"
    text = "it's \"one\" \x1b[2J\u202e"
    for index, state, reason in [(1, "rejected", text), (2, "running", None)]:
        database.execute(
            f"INSERT INTO trials ({columns}, number, state, reason_code, reason, why) "
            f"SELECT {columns}, ?, ?, ?, ?, ? FROM trials WHERE number = ({measured})",
            (number + index, state, reason and "R1", reason, text),
        )
    database.execute(
        f"INSERT INTO trials ({columns}, number, state, value, violation) "
        f"SELECT {columns}, ?, 'measured', value, 0 FROM trials WHERE number = ({measured})",
        (number + 3,),
    )
    metrics = "json_set(metrics, '$.p95_itl_ms', 0.25)"
    database.execute(
        f"INSERT INTO measurements SELECT study_id, ?, 0, 'trial', {metrics} FROM measurements "
        f"WHERE kind = 'trial' AND number = ({measured} AND number < {number + 3})",
        (number + 3,),
    )
    database.commit()
    database.close()


def large_study(small, directory):
    """A copy of the small study whose trials are repeated."""
    file = directory / "many.db"
    source, database = sqlite3.connect(small.database), sqlite3.connect(file)
    source.backup(database)
    source.close()
    columns = "proposed_by, config, command, env, state, reason_code, reason, started_at, elapsed_s, value, violation"
    ((first,),) = database.execute("SELECT max(number) + 1 FROM trials").fetchall()
    repeated = f"WITH RECURSIVE n(number) AS (SELECT {first} UNION ALL SELECT number + 1 FROM n WHERE number < {MANY - 1})"
    database.execute(
        f"INSERT INTO trials (study_id, number, {columns}) {repeated} SELECT study_id, n.number, {columns} FROM n "
        f"JOIN trials ON trials.number = n.number % {first}"
    )
    database.execute(
        f"INSERT INTO measurements {repeated} SELECT study_id, n.number, sequence, kind, metrics FROM n "
        f"JOIN measurements ON measurements.number = n.number % {first}"
    )
    database.commit()
    database.close()
    return Study(small.program, file)


# Optuna


def violations(limits, metrics):
    """The relative excess over each limit of a study's definition."""
    for limit in limits:
        value = metrics[limit["metric"]]
        bound = limit.get("at_most", limit.get("at_least"))
        yield ((value - bound) if "at_most" in limit else (bound - value)) / abs(bound)


def check_optuna(study, file):
    import optuna

    loaded = optuna.load_study(study_name="dashboards", storage=f"sqlite:///{file}")
    expect("direction", loaded.direction, optuna.study.StudyDirection.MAXIMIZE)
    expect("metric names", loaded.metric_names, ["output_throughput"])
    definition = json.loads(loaded.user_attrs["definition"])
    limits = definition["objective"]["constraints"]
    trials = loaded.trials
    by_number = {trial["trial"]: trial for trial in study.trials}
    running = [trial for trial in trials if trial.state == optuna.trial.TrialState.RUNNING]
    expect("running trials", [trial.number for trial in running], [max(by_number) - 1])
    expect("numbers", [trial.number for trial in trials if trial not in running], sorted(by_number))
    states = {"measured": "COMPLETE", "failed": "FAIL", "rejected": "PRUNED"}
    fixed = definition["space"]["fixed"]
    for trial in trials:
        ours = by_number.get(trial.number)
        if ours is None:
            continue
        name, attributes = f"trial {trial.number}", trial.user_attrs
        expect(f"{name}: state", trial.state.name, states[ours["state"]])
        config = {flag: value for flag, value in ours["config"].items() if flag not in fixed}
        expect(f"{name}: parameters", trial.params, config)
        expect(f"{name}: configuration", json.loads(attributes["config"]), ours["config"])
        begin = datetime.fromisoformat(ours["started_at"]).astimezone(UTC).replace(tzinfo=None)
        expect(f"{name}: start", trial.datetime_start, begin)
        difference = abs(trial.datetime_complete - begin - timedelta(seconds=ours["elapsed_s"]))
        expect(f"{name}: end", difference <= timedelta(milliseconds=1), True)
        for field in ["proposed_by", "reason_code", "engine_version", "startup_s", "elapsed_s"]:
            expect(f"{name}: {field}", attributes.get(field), ours[field])
        for flag, value in trial.params.items():
            distribution = trial.distributions[flag]
            expect(f"{name}: {flag} in {distribution}", distribution._contains(distribution.to_internal_repr(value)), True)
        if ours["state"] != "measured":
            expect(f"{name}: a reason", bool(attributes["reason"]), True)
            continue
        expect(f"{name}: value", trial.value, ours["value"])
        expect(f"{name}: feasible", all(limit <= 0 for limit in trial.constraints.values()), ours["feasible"])
        for found, expected in zip(trial.constraints.values(), violations(limits, ours["metrics"]), strict=True):
            expect(f"{name}: limit", found, expected)
        metrics = {key: value for key, value in ours["metrics"].items() if isinstance(value, (int, float))}
        for metric, value in (metrics | ours["metrics"].get("server", {})).items():
            if metric not in ("good", "exact"):
                expect(f"{name}: {metric}", attributes[metric], value)
    feasible = [trial for trial in study.trials if trial["state"] == "measured" and trial["feasible"]]
    best = max(feasible, key=lambda trial: trial["value"])
    expect("best trial", loaded.best_trial.value, best["value"])
    scales = {name: getattr(space, "log", None) for trial in trials for name, space in trial.distributions.items()}
    expect("scale", scales["max-num-seqs"], True)
    expect("scale", scales["gpu-memory-utilization"], False)
    frame = loaded.trials_dataframe()
    expect("rows of the data frame", len(frame), len(trials))
    print(f"optuna {optuna.__version__}: {len(trials)} trials are equal; best trial {loaded.best_trial.number}")


# MLflow


def check_mlflow(study, file):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{file}")
    runs = mlflow.search_runs(experiment_names=["dashboards"], output_format="list")
    by_number = {int(run.data.tags["mlflow.runName"].removeprefix("trial ")): run for run in runs}
    states = {"measured": "FINISHED", "failed": "FAILED", "rejected": "KILLED"}
    for ours in study.trials:
        name, run = f"run of trial {ours['trial']}", by_number.pop(ours["trial"])
        expect(f"{name}: status", run.info.status, states[ours["state"]])
        text = {flag: json.dumps(value) if isinstance(value, bool) else str(value) for flag, value in ours["config"].items()}
        expect(f"{name}: parameters", run.data.params, text)
        begin = datetime.fromisoformat(ours["started_at"]).timestamp()
        expect(f"{name}: start", run.info.start_time, round(begin * 1000))
        expect(f"{name}: end", abs(run.info.end_time - 1000 * (begin + ours["elapsed_s"])) <= 1, True)
        tags, metrics = run.data.tags, run.data.metrics
        for field in ["state", "proposed_by", "reason_code", "engine_version"]:
            expect(f"{name}: {field}", tags.get(f"setpoint.{field}"), ours[field])
        if ours["state"] != "measured":
            expect(f"{name}: a reason", bool(tags["setpoint.reason"]), True)
            continue
        expect(f"{name}: value", metrics["value"], ours["value"])
        for metric, value in ours["metrics"].items():
            if isinstance(value, (int, float)) and metric not in ("good", "exact"):
                expect(f"{name}: {metric}", metrics[metric], value)
                (history,) = mlflow.MlflowClient().get_metric_history(run.info.run_id, metric)
                expect(f"{name}: history of {metric}", history.value, value)
    expect("other runs", [run.info.status for run in by_number.values()], ["RUNNING"])
    query = "metrics.output_throughput > 0 and tags.`setpoint.feasible` = 'true'"
    found = mlflow.search_runs(experiment_names=["dashboards"], filter_string=query, output_format="list")
    feasible = [trial for trial in study.trials if trial["state"] == "measured" and trial["feasible"]]
    expect("runs within the limits", len(found), len(feasible))
    # A store that MLflow cannot write would be refused by its server.
    with mlflow.start_run(experiment_id=runs[0].info.experiment_id, run_name="another"):
        mlflow.log_metric("output_throughput", 1.0)
    print(f"mlflow {mlflow.__version__}: {len(runs)} runs are equal")


# The dashboard


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


class Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True


def check_dashboard(study, file, screenshots):
    import optuna_dashboard

    server = make_server("127.0.0.1", 0, optuna_dashboard.wsgi(f"sqlite:///{file}"), Threaded, Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with urllib.request.urlopen(f"{address}/api/studies") as answer:
        (summary,) = json.load(answer)["study_summaries"]
    expect("dashboard: study", (summary["study_name"], summary["directions"]), ("dashboards", ["maximize"]))
    with urllib.request.urlopen(f"{address}/api/studies/1") as answer:
        # A constant such as Infinity is no JSON, so that a browser could not read it.
        detail = json.load(answer, parse_constant=lambda name: sys.exit(f"dashboard: {name} in JSON"))
    expect("dashboard: objective", detail["objective_names"], ["output_throughput"])
    by_number = {trial["trial"]: trial for trial in study.trials}
    for trial in detail["trials"]:
        ours = by_number.get(trial["number"])
        if ours and ours["state"] == "measured":
            feasible = all(limit <= 0 for limit in trial["constraints"])
            expect(f"dashboard: trial {trial['number']}", (trial["values"], feasible), ([ours["value"]], ours["feasible"]))
            expect("dashboard: limits", len(trial["constraints"]), 1)
    print(f"optuna-dashboard {optuna_dashboard.__version__}: its JSON has {len(detail['trials'])} trials with their limits")
    check_pages(address, study, screenshots)
    server.shutdown()


def check_pages(address, study, screenshots):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("not run: the pages in Chromium, which is not installed")
        return
    failed = next(trial for trial in study.trials if trial["state"] == "failed")
    pages = {
        "studies": ("/dashboard/", ["dashboards", "MAXIMIZE"]),
        "history": ("/dashboard/studies/1", ["History", "output_throughput", "Infeasible", "winner", "Hyperparameter Importance"]),
        "trials": (f"/dashboard/studies/1/trials?numbers={failed['trial']}", ["Fail", "Pruned", "Running", failed["reason_code"]]),
        "analytics": ("/dashboard/studies/1/analytics", ["Slice", "Contour", "block-size"]),
    }
    for name, (path, words) in pages.items():
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1500,1700"]
        options += ["--virtual-time-budget=15000", f"--user-data-dir={tempfile.mkdtemp(dir=study.directory)}"]
        output = [f"--screenshot={screenshots / f'{name}.png'}"] if screenshots else []
        command = [chromium, *options, "--dump-dom", *output, address + path]
        page = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120).stdout
        for word in words:
            expect(f"page {name} shows {word!r}", word in page, True)
    print(f"chromium: the pages {', '.join(pages)} show the study")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/debug/setpoint", help="the built program")
    parser.add_argument("--screenshots", type=Path, help="existing directory for images of the pages")
    parser.add_argument("--schemas", action="store_true", help="write the schemas of the installed packages")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        check_schemas(directory, arguments.schemas)
        if arguments.schemas:
            return
        study = small_study(Path(arguments.program).resolve(), directory)
        study.directory = directory
        optuna_file, _ = study.export("optuna")
        mlflow_file, _ = study.export("mlflow")
        for file in (optuna_file, mlflow_file):
            expect(f"a secret in {file}", b"an-example-of-a-secret" in file.read_bytes(), False)
        check_optuna(study, optuna_file)
        check_dashboard(study, optuna_file, arguments.screenshots and arguments.screenshots.resolve())
        check_mlflow(study, mlflow_file)
        check_many(study, directory)
    print("all passed")


def check_many(small, directory):
    import optuna

    study = large_study(small, directory)
    for format in ("optuna", "mlflow"):
        file, seconds = study.export(format)
        expect(f"seconds for {MANY} trials as {format}: {seconds:.1f}", seconds < MAX_EXPORT_S, True)
        size = file.stat().st_size / 2**20
        print(f"{format}: {MANY} trials in {seconds:.1f} s, {size:.0f} MiB")
        if format == "optuna":
            loaded = optuna.load_study(study_name="dashboards", storage=f"sqlite:///{file}")
            expect("trials of the large study", len(loaded.trials), MANY)


if __name__ == "__main__":
    main()
