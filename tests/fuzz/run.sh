#!/usr/bin/env bash
# Fuzzes every kind of file, or those named, for a while each: tests/fuzz/run.sh [SECONDS [KIND...]]
# Needs cargo-fuzz (cargo install cargo-fuzz; the compiler may be the stable one). Findings lie in tests/fuzz/artifacts; each becomes a regression test.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-600}
shift || true
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=(gguf safetensors config tokenizer template snapshot prefix calls)
# Sanitizers and coverage are unstable options of the compiler, which the stable one takes with this.
export RUSTC_BOOTSTRAP=1
# A GPU's driver keeps memory, which is no leak of ours; memory that the system refuses is an error that callers get.
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}"
for kind in "${kinds[@]}"; do
    mkdir -p "corpus/$kind"
    [ ! -d "kept/$kind" ] || cp "kept/$kind"/* "corpus/$kind/"
    WATERLINE_KIND=$kind WATERLINE_SEEDS=corpus/$kind cargo fuzz run --fuzz-dir . any -- -runs=1
    # A C program may ask for a session of any size; here the system refuses more than a GiB.
    options=$ASAN_OPTIONS
    [ "$kind" != calls ] || options=$options:max_allocation_size_mb=1024
    ASAN_OPTIONS=$options cargo fuzz run --fuzz-dir . "$kind" -- -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -malloc_limit_mb=2048 -max_len=1048576
done
