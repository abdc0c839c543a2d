#!/usr/bin/env bash
# Installs the peers of the benchmark of optimizers: Optuna and torch (for its GP), in a Python of their own.
#
#   examples/optimizer_benchmark/setup.sh [DIRECTORY]     default: .optimizer-benchmark in the project's root
#
# Needs Python 3.11 to 3.14 with its venv module (PYTHON names an interpreter other than python3), PyPI and 6 GB of disk.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
dir=${1:-$here/../../.optimizer-benchmark}
"${PYTHON:-python3}" -m venv "$dir"
"$dir/bin/pip" install --quiet --requirement "$here/requirements.txt"
printf 'installed; next: %s/bin/python %s run\n' "$dir" "$here"
