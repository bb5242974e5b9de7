#!/usr/bin/env bash
# Ends servers that a killed tokgate left behind, and only those. Safe at any time, also while another gate runs.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV="${TOKGATE_VENV:-.venv}"
if [ ! -x "$VENV/bin/python" ]; then
  echo "reap: no $VENV here, so nothing of tokgate was started from it"
  exit 0
fi
exec "$VENV/bin/python" -m tokgate reap
