#!/usr/bin/env bash
# The gate twice on one build, then its launches pooled as A/A blocks and a line of history for each metric.
# Arguments go to `tokgate gate`. Fails as the first gate that failed did, after both ran.
# Environment: TOKGATE_RESULTS  where runs are stored (default: results)
#              TOKGATE_HOME     calibrations and history.jsonl are kept in its folder `nightly`, night after night
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
results="${TOKGATE_RESULTS:-results}"
kept="${TOKGATE_HOME:-$HOME/.cache/tokgate}/nightly"
mkdir -p "$results" "$kept"
runs=()
failed=0
for _ in 1 2; do
  code=0
  bash ci/gate.sh --results "$results" "$@" || code=$?
  # Undecided is what a host without calibration must be: the night is to change that.
  if [ "$code" -ne 0 ] && [ "$failed" -eq 0 ]; then failed="$code"; fi
  if [ -e "$results/latest" ]; then runs+=("$(readlink -f "$results/latest")"); fi
done
if [ "${#runs[@]}" -eq 2 ] && [ "${runs[0]}" != "${runs[1]}" ]; then
  "$PYTHON" ci/history.py --kept "$kept" "${runs[@]}"
  mkdir -p ci-history
  cp -r "$kept/." ci-history/
else
  echo "nightly: no two runs were stored, so there is nothing to calibrate by" >&2
  [ "$failed" -ne 0 ] || failed=3
fi
exit "$failed"
