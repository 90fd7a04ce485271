#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: the kernels that index memory by counters of the state, with counters at their limits, under
# compute-sanitizer; and how often learnable token eviction differs between the CPU and the GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
export WATERLINE_DEVICE=cuda
cargo test --release -p waterline --no-run --test counters --test evictions
newest() { ls -t target/release/deps/"$1"-* | grep -v '\.d$' | head -1; }
for tool in memcheck; do
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$(newest counters)" --nocapture --test-threads 1
done
WATERLINE_TOKENS=100000 "$(newest evictions)" --nocapture
