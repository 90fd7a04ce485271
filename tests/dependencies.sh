#!/usr/bin/env bash
# Checks licences, sources, versions and known vulnerabilities of all dependencies, offline after `cargo fetch`: tests/dependencies.sh
# .ci/advisories.tar.gz holds the advisories of github.com/rustsec/advisory-db as of 20 August 2026. A newer copy:
#   git -C advisory-db archive --format=tar HEAD crates | gzip -9n > .ci/advisories.tar.gz
set -euo pipefail
cd "$(dirname "$0")/.."
# cargo-deny derives this name from the repository's address, and it reads only a git repository.
advisories=target/advisories/advisory-db-3157b0e258782691
rm -rf target/advisories
mkdir -p "$advisories"
tar -xzf .ci/advisories.tar.gz -C "$advisories"
git -C "$advisories" init --quiet
git -C "$advisories" add .
git -C "$advisories" -c user.name=snapshot -c user.email=snapshot commit --quiet --message snapshot
cargo deny --offline --workspace check
