#!/usr/bin/env bash
# The bumps that are still to be shown on an H200: the baseline with an A/A and two planted delays, EAGLE-3 with an A/A.
# usage: bash benchmarks/bump/h200.sh OLD.yaml NEW.yaml PAIR OUT [baseline|eagle3|both] [SECONDS]
# PAIR is the folder of a large model, with target/ and draft/. `both` takes GPU 0 and GPU 1, each its own chain, and
# needs two; a single GPU takes one chain a call. SECONDS is what a chain may take (default: 565). Exit code 0 when
# every comparison came out as it must. Environment: PYTHON, which needs numpy and scipy.
set -uo pipefail
cd "$(dirname "$0")/../.."
old="$1" new="$2" pair="$3" out="$4" which="${5:-both}" seconds="${6:-565}"
mkdir -p "$out"
chain() { # NAME GPU OPTIONS...
  local name="$1" gpu="$2"
  shift 2
  # Few graphs and a bounded cache: starts are what a block costs. One request a run: 512 tokens of the 8 B pair.
  CUDA_VISIBLE_DEVICES="$gpu" "${PYTHON:-python3}" -m benchmarks.bump.h200 \
    --from-engine "$old" --engine "$new" --target "$pair/target" --draft "$pair/draft" \
    --requests 1 --graph-max-bs 8 --mem-fraction 0.9 --max-total-tokens 16384 --scatter-percent 2 \
    --parity batch-1,batch-8-shared --blocks 4 --budget-s "$seconds" --out "$out/$name" "$@" \
    >"$out/$name.txt" 2>"$out/$name.err"
  local code=$?
  echo "$name: exit code $code"
  cat "$out/$name.txt"
  return "$code"
}
baseline() { chain baseline "$1" --profiles baseline --delays 1@gpu,0.17@gpu --runs 2; }
eagle3() { chain eagle3 "$1" --profiles eagle3-graphs --delays none --runs 3; }
case "$which" in
  baseline | eagle3) "$which" 0 ;;
  both)
    baseline 0 &
    first=$!
    code=0
    eagle3 1 || code=$?
    wait "$first" || code=$?
    exit "$code"
    ;;
  *)
    echo "usage: bash benchmarks/bump/h200.sh OLD.yaml NEW.yaml PAIR OUT [baseline|eagle3|both] [SECONDS]" >&2
    exit 2
    ;;
esac
