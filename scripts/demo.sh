#!/bin/sh
# Set up an environment (VENV, default .venv) and check the bundled example launch.
set -eu
cd "$(dirname "$0")/.."
venv="${VENV:-.venv}"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check .
# The example fails on purpose, to show what a finding looks like; --fail-on never keeps the exit code 0.
exec "$venv/bin/dsv4check" serve-args --gpu H200 --gpus 8 --vllm 0.24.0 --fail-on never - < examples/flash-0731-h200.sh
