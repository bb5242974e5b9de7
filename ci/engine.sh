#!/usr/bin/env bash
# Makes the environments of SGLang that a job needs. usage: bash ci/engine.sh [VERSION...]
# One that `ci.airgap unpack` put there is taken as it is. Writes `engine`, the last one, to GITHUB_OUTPUT.
# Environment: TOKGATE_VERSIONS  the versions, separated by spaces (default: ci/sglang.pin)
#              TOKGATE_ENGINE    use this engine file or name and make nothing
#              TOKGATE_KEEP_GIB  disk that all environments may take; the least recently used go (default: 100)
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
engine="${TOKGATE_ENGINE:-}"
if [ -z "$engine" ]; then
  if [ $# -eq 0 ]; then read -r -a versions <<<"${TOKGATE_VERSIONS:-$(cat ci/sglang.pin)}"; else versions=("$@"); fi
  for version in "${versions[@]}"; do
    engine="sglang-$version"
    made="${TOKGATE_HOME:-$HOME/.cache/tokgate}/environments/$engine"
    if [ -f "$made/manifest.json" ]; then
      echo "$engine: unpacked by ci.airgap in $made"
    else
      "$PYTHON" -m tokgate env make "sglang==$version" --keep-gib "${TOKGATE_KEEP_GIB:-100}"
    fi
  done
fi
echo "engine: $engine"
echo "engine=$engine" >>"${GITHUB_OUTPUT:-/dev/null}"
