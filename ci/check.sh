#!/usr/bin/env bash
# Everything that a change must pass: format, lint, types, layers, then all tests, with the CPU engine made.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
"$PYTHON" -m ruff format --check --quiet .
"$PYTHON" -m ruff check --quiet .
"$PYTHON" -m mypy --no-error-summary
"$VENV/bin/lint-imports" --no-cache
"$PYTHON" -m tokgate env make cpu
TOKGATE_REQUIRE_CPU_ENGINE=1 TOKGATE_REQUIRE_COMPILER=1 bash ci/test.sh
