#!/usr/bin/env bash
# Makes a machine ready to run the gate; a second call finds everything there and changes nothing.
# Writes only below the repository (.venv) and TOKGATE_HOME (default: ~/.cache/tokgate). Installs no system package.
# Environment: TOKGATE_HOME  environments, models and kernel caches; put it on a disk that jobs keep
set -euo pipefail
cd "$(dirname "$0")/.."
missing=()
for program in git nvidia-smi; do
  command -v "$program" >/dev/null || missing+=("$program")
done
for program in "${missing[@]}"; do
  echo "setup: no $program on PATH$([ "$program" = nvidia-smi ] && echo ': this machine runs the emulated and CPU engines only')"
done
if [[ " ${missing[*]} " == *" git "* ]]; then
  echo "setup: git is needed to compare ci/sglang.pin with the base branch" >&2
  exit 3
fi
source ci/environment.sh
export TOKGATE_HOME="${TOKGATE_HOME:-$HOME/.cache/tokgate}"
mkdir -p "$TOKGATE_HOME/environments" "$TOKGATE_HOME/models"
# What a killed job left on the GPU must be gone before this one is measured.
"$PYTHON" -m tokgate reap
echo "setup: $("$PYTHON" --version), $("$PYTHON" -m tokgate --version), TOKGATE_HOME=$TOKGATE_HOME"
"$PYTHON" -m tokgate env list
