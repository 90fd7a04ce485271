#!/usr/bin/env bash
# Fuzzes every kind of file, or those named, for a while each, two at once: tests/fuzz/run.sh [SECONDS [KIND...]]
# Needs cargo-fuzz (cargo install cargo-fuzz; the compiler may be the stable one). Findings lie in tests/fuzz/artifacts; each becomes a
# regression test.
set -euo pipefail
cd "$(dirname "$0")"
export seconds=${1:-600}
shift || true
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=(gguf safetensors config tokenizer template snapshot prefix state modules split packed imatrix formats form answer history calls)
# Sanitizers and coverage are unstable options of the compiler, which the stable one takes with this.
export RUSTC_BOOTSTRAP=1
# A GPU's driver keeps memory, which is no leak of ours; memory that the system refuses is an error that callers get.
export ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:${ASAN_OPTIONS:-}"
cargo fuzz build --fuzz-dir . any
fuzz() {
    export WATERLINE_KIND=$1
    mkdir -p "corpus/$1" "artifacts/$1"
    [ ! -d "kept/$1" ] || cp "kept/$1"/* "corpus/$1/"
    # A C program may ask for a session of any size; here the system refuses more than a GiB.
    [ "$1" != calls ] || ASAN_OPTIONS+=:max_allocation_size_mb=1024
    program=$(ls "${CARGO_TARGET_DIR:-target}"/*/release/any)
    WATERLINE_SEEDS=corpus/$1 "$program" "corpus/$1" -artifact_prefix="artifacts/$1/" -runs=1 >"artifacts/$1.log" 2>&1 &&
        "$program" "corpus/$1" -artifact_prefix="artifacts/$1/" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
            -malloc_limit_mb=2048 -max_len=1048576 >"artifacts/$1.log" 2>&1 &&
        echo "$1: $(grep -o 'Done .*' "artifacts/$1.log")" || { tail -40 "artifacts/$1.log"; return 255; }
}
export -f fuzz
printf '%s\n' "${kinds[@]}" | xargs -P 2 -I {} bash -c 'fuzz {}'
