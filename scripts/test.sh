#!/bin/sh
# Set up an environment (VENV, default .venv) and run the whole test suite. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
venv="${VENV:-.venv}"
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
exec "$venv/bin/python" -m pytest -n "${WORKERS:-2}" "$@"
