#!/usr/bin/env bash
# Fuzzes every kind of file, or those named, for a while each: tests/fuzz/run.sh [SECONDS [KIND...]]
# Needs cargo-fuzz (cargo install cargo-fuzz; the compiler may be the stable one). Findings lie in tests/fuzz/artifacts; each becomes a regression test.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-600}
shift || true
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=(gguf safetensors config tokenizer template snapshot calls)
# Sanitizers and coverage are unstable options of the compiler, which the stable one takes with this.
export RUSTC_BOOTSTRAP=1
# A GPU's driver keeps memory, which is no leak of ours; memory that the system refuses is an error that callers get.
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}"
for kind in "${kinds[@]}"; do
    mkdir -p "corpus/$kind"
    WATERLINE_KIND=$kind WATERLINE_SEEDS=corpus/$kind cargo fuzz run --fuzz-dir . any -- -runs=1
    cargo fuzz run --fuzz-dir . "$kind" -- -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=1048576
done
