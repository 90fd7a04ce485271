#!/usr/bin/env python3
"""Shows what takes space in a program with symbols: bytes of code and of data by crate, then the largest symbols.

    cargo build --release --config 'profile.release.package.waterline-tools.strip=false'
    tools/reference/sizes.py target/release/waterline
"""

import collections
import re
import subprocess
import sys

code, data, pieces = collections.Counter(), collections.Counter(), []
symbols = subprocess.run(["nm", "-S", "-C", sys.argv[1]], capture_output=True, text=True, check=True).stdout
for line in symbols.splitlines():
    found = re.match(r"\S+ (\S+) (\w) (.*)", line)
    if not found:
        continue
    size, kind, name = int(found[1], 16), found[2], found[3]
    crate = re.split(r"[:<> ]", re.sub(r"^[<&\[( ]*(dyn |mut |impl )*", "", name))[0]
    (code if kind in "tTwW" else data)[crate] += size
    pieces.append((size, kind, name))
for title, counts in (("code", code), ("data", data)):
    print(f"{title}: {sum(counts.values()):,} bytes")
    for crate, size in counts.most_common(16):
        print(f"  {size:>12,}  {crate}")
print("largest")
for size, kind, name in sorted(pieces, reverse=True)[:20]:
    print(f"  {size:>12,}  {kind} {name[:100]}")
