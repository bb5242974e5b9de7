#!/usr/bin/env bash
# Makes .venv from the lock and installs tokgate into it in development mode; does nothing when it is current.
# usage: source ci/environment.sh     (from the repository's root; afterwards $PYTHON is the interpreter)
set -euo pipefail
VENV="${TOKGATE_VENV:-.venv}"
PYTHON="$VENV/bin/python"
STAMP="$VENV/tokgate-lock"
if ! cmp -s ci/locks/dev.txt "$STAMP" 2>/dev/null; then
  BASE=""
  for candidate in python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
      BASE="$candidate"
      break
    fi
  done
  [ -n "$BASE" ] || { echo "tokgate needs Python 3.11 or newer, and none is on PATH" >&2; exit 3; }
  echo "tokgate: making $VENV ($("$BASE" --version)); once, about a minute"
  "$BASE" -m venv --clear "$VENV"
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --require-hashes -r ci/locks/dev.txt
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
  cp ci/locks/dev.txt "$STAMP"
fi
