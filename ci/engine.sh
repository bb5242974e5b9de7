#!/usr/bin/env bash
# Makes the environments of SGLang that a job needs. usage: bash ci/engine.sh [VERSION...]   (default: ci/sglang.pin)
# Writes `engine`, the last one, to GITHUB_OUTPUT.
# Environment: TOKGATE_ENGINE    use this engine file or name and make nothing (an air-gapped runner, the emulator)
#              TOKGATE_KEEP_GIB  disk that all environments may take; the least recently used go (default: 100)
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
engine="${TOKGATE_ENGINE:-}"
if [ -z "$engine" ]; then
  [ $# -gt 0 ] || set -- "$(cat ci/sglang.pin)"
  for version in "$@"; do
    "$PYTHON" -m tokgate env make "sglang==$version" --keep-gib "${TOKGATE_KEEP_GIB:-100}"
    engine="sglang-$version"
  done
fi
echo "engine: $engine"
echo "engine=$engine" >>"${GITHUB_OUTPUT:-/dev/null}"
