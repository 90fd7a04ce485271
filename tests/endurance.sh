#!/usr/bin/env bash
# Checks that memory does not grow with the number of tokens: tests/endurance.sh [TOKENS [MODEL]]
# Generates TOKENS tokens (1,000,000) with MODEL (the built-in one) and fails if resident memory grows by more than 1 MB
# after the first ten seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
tokens=${1:-1000000}
model=${2:-}
program=target/release/waterline
[ -x "$program" ] || { echo "build it first: cargo build --release" >&2; exit 2; }
resident() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status" 2>/dev/null || true; }

progress=$(mktemp)
trap 'rm -f "$progress"' EXIT
"$program" run ${model:+"$model"} -p "Once upon a time" -n "$tokens" --ignore-end --on-full shift --device cpu >"$progress" 2>/dev/null &
pid=$!
first= most=0 samples=0
while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    now=$(resident "$pid")
    [ -n "$now" ] || continue
    samples=$((samples + 1))
    # The first seconds touch the weights.
    [ "$samples" -gt 10 ] || continue
    first=${first:-$now}
    [ "$now" -gt "$most" ] && most=$now
done
wait "$pid"
[ -n "$first" ] || { echo "too short to say: give more tokens" >&2; exit 2; }
echo "$tokens tokens: resident memory $first KiB after 10 s, at most $most KiB in $samples s"
[ $((most - first)) -le 1024 ] || { echo "it grew" >&2; exit 1; }
