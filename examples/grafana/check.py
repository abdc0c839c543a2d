"""Checks the page `/metrics` of `setpoint serve` and the dashboard with the parser of Prometheus' own client.

    python3 -m venv .grafana
    .grafana/bin/pip install --requirement examples/grafana/requirements.txt
    .grafana/bin/python examples/grafana/check.py [--program target/debug/setpoint]

It runs a short study of the simulated engine, reads the page on a free port of 127.0.0.1, and looks for the metrics and labels of
each query of the dashboard.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def fail(message):
    sys.exit(f"examples/grafana/check.py: {message}")


def samples_of(program, database):
    """Each metric's name with the labels of its samples."""
    command = [program, "--db", database, "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().strip()
            with urllib.request.urlopen(f"{address}metrics", timeout=20) as answer:
                kind, text = answer.headers["content-type"], answer.read().decode()
        finally:
            server.terminate()
    if not kind.startswith("application/openmetrics-text"):
        fail(f"the page has the type {kind!r}")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


# Metrics that a short study may lack: it has no failures and no running trials, nothing was rejected, and on a slow machine no trial
# keeps the limit.
ABSENT = {
    "setpoint_study_gain_ratio",
    "setpoint_study_failures",
    "setpoint_study_saved_time_seconds",
    "setpoint_study_launched_timestamp_seconds",
    "setpoint_study_remaining_gain_ratio",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=ROOT / "target/debug/setpoint", type=Path)
    program = parser.parse_args().program.resolve()
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory) / "study.db"
        tune = [program, "--db", database, "--quiet", "tune", ROOT / "examples/quickstart.toml", "--trials", "3"]
        # 4: no configuration kept the limit, which depends on the speed of this machine.
        code = subprocess.run(tune, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        if code not in (0, 4):
            fail(f"the study ended with {code}")
        found = samples_of(program, database)
    dashboard = json.loads((HERE / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for query in queries:
        for name, labels in re.findall(r"(setpoint_[a-z_]+)(?:\{([^}]*)\})?", query):
            if name not in found:
                if name not in ABSENT:
                    fail(f"{query}: the page has no {name}, only {', '.join(sorted(found))}")
                continue
            for label in re.findall(r"([a-z_]+)=", labels):
                if not all(label in sample for sample in found[name]):
                    fail(f"{query}: {name} has no label {label!r}")
    print(f"{len(queries)} queries of the dashboard, {len(found)} metrics of the page")


if __name__ == "__main__":
    main()
