#!/usr/bin/env bash
# Compares the SGLang of the base branch's pin with that of this change's on one GPU. Arguments go to `tokgate bump`.
# Exit codes as of ci/gate.sh; 3 as well where nothing was decided on the speed of a profile.
# Environment: TOKGATE_BASE           branch or commit whose pin is the old version
#              TOKGATE_BUDGET_MINUTES  GPU minutes (default: 60)
#              TOKGATE_BUMP_OPTIONS    further options, separated by spaces
set -euo pipefail
cd "$(dirname "$0")/.."
source ci/environment.sh
read -r -a more <<<"${TOKGATE_BUMP_OPTIONS:-}"
# A bump that is taken up has its old version.
if [ -n "${TOKGATE_BASE:-}" ] && [[ " $* ${more[*]}" != *" --from"* && " $* ${more[*]}" != *" --resume"* ]]; then
  more+=(--base "$TOKGATE_BASE")
fi
exec "$PYTHON" -m tokgate bump --budget-minutes "${TOKGATE_BUDGET_MINUTES:-60}" "$@" "${more[@]}"
