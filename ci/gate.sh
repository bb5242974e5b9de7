#!/usr/bin/env bash
# Runs the gate on what this machine has: a GPU with SGLang, else the embedded emulated engine.
# Arguments go to `tokgate gate`. Exit codes: 0 green, 1 a failed verdict, 2 usage, 3 environment or inconclusive.
# Environment: TOKGATE_ENGINE  the engine, where no --engine is given
#              TOKGATE_GATE_OPTIONS  further options, separated by spaces
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
read -r -a more <<<"${TOKGATE_GATE_OPTIONS:-}"
if [ -n "${TOKGATE_ENGINE:-}" ] && [[ " $* ${more[*]}" != *" --engine"* ]]; then
  more+=(--engine "$TOKGATE_ENGINE")
fi
exec "$PYTHON" -m tokgate gate "$@" "${more[@]}"
