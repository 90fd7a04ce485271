#!/usr/bin/env bash
# Runs hostile inputs, wrong models and random schedules, from seeds: tests/campaigns.sh [SEED [COUNT]]
# COUNT (13,000) is the number of inputs of each kind; the other counts derive from it. WATERLINE_CASES and WATERLINE_GGUF name folders
# with more cases. Findings are printed and kept in the temporary folder; the status is then 1.
set -euo pipefail
cd "$(dirname "$0")/.."
export WATERLINE_SEED=${1:-1} WATERLINE_MUTATIONS=${2:-13000}
export WATERLINE_SCHEDULES=$((WATERLINE_MUTATIONS / 60))
# The test suite's build, so that nothing is compiled twice: `cargo build` gives dependencies other features. It includes the program.
build=(--release --workspace --features emulator)
cargo test "${build[@]}" --no-run
cargo test "${build[@]}" --test mutations --test wrong_models --test schedules --test counters --test evictions -- --nocapture
python3 tests/campaign.py target/release/waterline --seed "$WATERLINE_SEED" --count $((WATERLINE_MUTATIONS / 20))
# Both models fit, then one does.
for memory in 400 100; do
    python3 tests/serve_campaign.py target/release/waterline --seed "$WATERLINE_SEED" --count $((WATERLINE_MUTATIONS / 100)) --memory "$memory"
done
python3 tests/serve_bodies.py target/release/waterline --seed "$WATERLINE_SEED" --count $((WATERLINE_MUTATIONS / 10))
