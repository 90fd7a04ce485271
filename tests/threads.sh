#!/usr/bin/env bash
# The thread pool and sessions on several threads under ThreadSanitizer: tests/threads.sh
# The standard library is not instrumented: locks are seen where they are inlined, joins where the sanitizer intercepts them.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(rustc -vV | sed -n 's/^host: //p')
# The sanitizer is an unstable option of the compiler, which the stable one takes with this.
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
export WATERLINE_SCHEDULES=${WATERLINE_SCHEDULES:-20}
test() { cargo test --release --target "$target" -p waterline "$@"; }
test --lib cpu::pool
test --test schedules --test batch -- --nocapture
