#!/usr/bin/env bash
# After a gate or a bump: writes the job's summary, the comment and the baseline patch. Never fails for want of a run.
# usage: bash ci/report.sh [OUT]      OUT (default: ci-report) gets comment.md, and baselines.patch where there is one
# Environment: TOKGATE_RESULTS  where runs are stored (default: results)
#              TOKGATE_TITLE    what was run, for the first line
set -euo pipefail
cd "$(dirname "$0")/.."
VENV="${TOKGATE_VENV:-.venv}"
PYTHON="$VENV/bin/python"
[ -x "$PYTHON" ] || PYTHON=python3
exec "$PYTHON" ci/report.py --results "${TOKGATE_RESULTS:-results}" --out "${1:-ci-report}" --title "${TOKGATE_TITLE:-gate}"
