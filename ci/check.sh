#!/usr/bin/env bash
# Everything that a change must pass: format, lint, types, layers, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
"$PYTHON" -m ruff format --check .
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
"$VENV/bin/lint-imports" --no-cache
bash ci/test.sh
