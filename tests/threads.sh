#!/usr/bin/env bash
# Runs multithreaded tests under a sanitizer of the compiler: tests/threads.sh [pool] [batch] [constraints] [server]
# The thread pool; batches, prefix stores and schedules of sessions on several threads; grammars; a server with its clients. SANITIZER
# (thread) may be address.
# The standard library is not instrumented, so the ordering by its threads, channels and reference counts is invisible and looks like races.
# Therefore a race counts only if functions of this project make both accesses, other than by freeing. Tests that fork are skipped, because
# the sanitizer does not follow threads after a fork.
set -euo pipefail
cd "$(dirname "$0")/.."
sanitizer=${SANITIZER:-thread}
target=$(rustc -vV | sed -n 's/^host: //p')
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
# The sanitizer is an unstable option, which the stable compiler accepts with this variable.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=$sanitizer -Cunsafe-allow-abi-mismatch=sanitizer ${RUSTFLAGS:-}"
export TSAN_OPTIONS="exitcode=0 log_path=$reports/race ${TSAN_OPTIONS:-}"
# An invalid access ends the program. Memory that lives until the program exits is not a leak; refused memory is an error for the caller.
export ASAN_OPTIONS="detect_leaks=0 allocator_may_return_null=1 ${ASAN_OPTIONS:-}"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(pool batch constraints server)
for part in "${parts[@]}"; do
  case $part in
  pool) cargo test --release --target "$target" -p waterline-compute --lib -- cpu::pool --skip forked ;;
  batch) cargo test --release --target "$target" -p waterline --test batch --test prefix_store --test schedules -- --skip killed ;;
  constraints) cargo test --release --target "$target" -p waterline --features constraints --test constraints ;;
  server)
    cargo build --release --target "$target" -p waterline-tools
    python3 tests/serve_campaign.py "${CARGO_TARGET_DIR:-target}/$target/release/waterline" --count 60 --growth 1024
    ;;
  *) echo "there is no part $part" >&2 && exit 2 ;;
  esac
done
[ "$sanitizer" = thread ] || exit 0
cat "$reports"/* 2>/dev/null | awk '
  /^WARNING: ThreadSanitizer/ { report = ""; ours = 0; all++ }
  { report = report "\n" $0 }
  /^  (Read|Write|Atomic|Previous)/ { first = 1; next }
  # Skips memory copies, and judges their callers.
  first && /#[0-9]+ (__tsan_)?mem[a-z]+ / { next }
  first { first = 0; ours += $2 ~ /^<?waterline(_[a-z]+)?::/ }
  /^SUMMARY/ && ours == 2 { print report; races++ }
  END { printf "%d races, and %d reports of the standard library\n", races, all - races; exit races > 0 }'
