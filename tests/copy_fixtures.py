#!/usr/bin/env python3
"""Copies recorded cases into tests/fixtures, without the arrays that no test reads.

copy_fixtures.py SOURCE CASE...

SOURCE is a folder of cases (config.json, model.safetensors, case.safetensors, meta.json). Of case.safetensors, the input and the arrays
that meta.json lists in "compare", final states and pooled vectors are kept.
"""

import json
import shutil
import struct
import sys
from pathlib import Path


def copy_arrays(source, target, wanted):
    """Rewrites a safetensors file with only the wanted arrays."""
    data = source.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    kept, body = {}, b""
    for name, entry in header.items():
        if name in wanted:
            start, end = entry["data_offsets"]
            chunk = data[8 + length + start : 8 + length + end]
            kept[name] = entry | {"data_offsets": [len(body), len(body) + len(chunk)]}
            body += chunk
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    source, target = Path(sys.argv[1]), Path(__file__).parent / "fixtures"
    for case in sys.argv[2:]:
        (target / case).mkdir(parents=True, exist_ok=True)
        meta = json.loads((source / case / "meta.json").read_text())
        for name in ("config.json", "meta.json", "model.safetensors"):
            shutil.copyfile(source / case / name, target / case / name)
        wanted = {"input_ids", "final", "embed_mean", "embed_cls", "embed_last", *meta["compare"]}
        copy_arrays(source / case / "case.safetensors", target / case / "case.safetensors", wanted)


if __name__ == "__main__":
    main()
