#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: tests/sanitize.sh [PROGRAMS]
# Runs the kernels that index memory by counters of the state, with counters at their limits, under compute-sanitizer. Then runs random
# schedules of sessions on the CPU and the GPU, and counts how often learnable token eviction differs between the two.
# PROGRAMS is a folder with the test programs counters, schedules and evictions, built elsewhere; without it cargo builds them. They
# read the fixtures under the path of the tree in which they were built.
set -euo pipefail
cd "$(dirname "$0")/.."
export WATERLINE_DEVICE=cuda
programs=${1:-}
if [ -z "$programs" ]; then
    cargo test --release -p waterline --no-run --test counters --test evictions --test schedules
fi
program() {
    if [ -n "$programs" ]; then
        echo "$programs/$1"
    else
        ls -t target/release/deps/"$1"-* | grep -v '\.d$' | head -1
    fi
}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
"$sanitizer" --tool memcheck --error-exitcode 9 "$(program counters)" --nocapture --test-threads 1
WATERLINE_SCHEDULES=${WATERLINE_SCHEDULES:-300} "$(program schedules)" --nocapture
WATERLINE_TOKENS=${WATERLINE_TOKENS:-100000} "$(program evictions)" --nocapture
