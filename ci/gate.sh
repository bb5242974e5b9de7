#!/usr/bin/env bash
# Runs the gate on what this machine has: a GPU with SGLang, else the embedded emulated engine.
# Arguments go to `tokgate gate`. Exit codes: 0 green, 1 a failed verdict, 2 usage, 3 environment or inconclusive.
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
exec "$PYTHON" -m tokgate gate "$@"
