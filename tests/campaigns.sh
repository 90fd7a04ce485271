#!/usr/bin/env bash
# Hostile inputs, wrong models and random schedules, from seeds: tests/campaigns.sh [SEED [COUNT]]
# COUNT (13,000) is how many inputs of each kind are tried; the others follow from it. WATERLINE_CASES and WATERLINE_GGUF name folders
# with more recorded cases. Findings are printed, and kept in the temporary folder; the status is 1 if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."
export WATERLINE_SEED=${1:-1} WATERLINE_MUTATIONS=${2:-13000}
export WATERLINE_SCHEDULES=$((WATERLINE_MUTATIONS / 60))
# The features of the test suite, so that nothing is compiled twice.
build=(--release --workspace --features emulator)
cargo build "${build[@]}"
cargo test "${build[@]}" --test mutations --test wrong_models --test schedules --test counters --test evictions -- --nocapture
python3 tests/campaign.py target/release/waterline --seed "$WATERLINE_SEED" --count $((WATERLINE_MUTATIONS / 20))
python3 tests/serve_campaign.py target/release/waterline --seed "$WATERLINE_SEED" --count $((WATERLINE_MUTATIONS / 50))
python3 tests/serve_bodies.py target/release/waterline --seed "$WATERLINE_SEED" --count $((WATERLINE_MUTATIONS / 10))
