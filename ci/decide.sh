#!/usr/bin/env bash
# Decides what the GPU runner has to do for a change, and says why. Writes `kind`, `reason` and `versions`, those of
# SGLang that it needs, to GITHUB_OUTPUT.
#   kind=bump   ci/sglang.pin differs from the base branch: the old version against the new one
#   kind=gate   the change carries the label, or somebody asked for it: the gate on the pinned version
#   kind=none   neither
# Environment: TOKGATE_BASE  a commit or branch to compare with (default: origin/$GITHUB_BASE_REF, else HEAD~1)
#              TOKGATE_LABELS  labels of the pull request, one a line or as JSON
#              TOKGATE_LABEL   the label that asks for the gate (default: gpu-gate)
#              TOKGATE_ASKED   gate: the gate, whatever changed, as when somebody starts the workflow by hand;
#                              bump: what changed, whatever the labels
set -euo pipefail
cd "$(dirname "$0")/.."
base="${TOKGATE_BASE:-}"
if [ -z "$base" ]; then
  if [ -n "${GITHUB_BASE_REF:-}" ]; then base="origin/$GITHUB_BASE_REF"; else base="HEAD~1"; fi
fi
label="${TOKGATE_LABEL:-gpu-gate}"
new="$(cat ci/sglang.pin)"
kind=none
versions="$new"
pin="ci/sglang.pin is as in $base"
if git rev-parse --verify --quiet "$base^{commit}" >/dev/null; then
  # The pin as it was when the change began, not as the base branch has it since.
  fork="$(git merge-base "$base" HEAD || echo "$base")"
  old="$(git show "$fork:ci/sglang.pin" 2>/dev/null || true)"
  if [ -n "$old" ] && [ "$old" != "$new" ]; then
    kind=bump
    pin="ci/sglang.pin: $old -> $new"
    versions="$old $new"
  fi
else
  pin="there is no $base to compare ci/sglang.pin with"
fi
reason="$pin"
case "${TOKGATE_ASKED:-}" in
  "")
    # One a line; JSON on one line is broken into lines first.
    labels="$(sed -E 's/"[[:space:]]*,[[:space:]]*"/"\n"/g' <<<"${TOKGATE_LABELS:-}" |
      sed -E 's/^[[:space:]]*(\[[[:space:]]*)?"?//; s/"?([[:space:]]*\])?,?[[:space:]]*$//')"
    if [ "$kind" = none ] && grep -qxF -- "$label" <<<"$labels"; then
      kind=gate
      reason="label '$label'"
    elif [ "$kind" = none ]; then
      reason="$pin, and there is no label '$label'"
    fi
    ;;
  gate)
    # Also where the last commit moved the pin: it is the gate that makes baselines of the new version.
    kind=gate
    versions="$new"
    reason="the gate, asked for by hand"
    ;;
  bump)
    reason="a bump, asked for by hand; $pin"
    ;;
  *)
    echo "decide: TOKGATE_ASKED is gate or bump, not '$TOKGATE_ASKED'" >&2
    exit 2
    ;;
esac
echo "$kind: $reason"
{ echo "kind=$kind"; echo "reason=$reason"; echo "versions=$versions"; } >>"${GITHUB_OUTPUT:-/dev/null}"
