#!/usr/bin/env python3
"""Counts the public items of the library, or the lines of code.

    cargo doc -p waterline --no-deps --release
    tools/reference/counts.py items target/doc/waterline
    tools/reference/counts.py lines .

Items are those with their own page, and their methods, fields and variants, without items from traits or dereferencing. Lines are neither
blank nor comments; tests are not counted.
"""

import collections
import pathlib
import re
import sys

ENDS = {".rs", ".cu", ".c", ".cpp", ".h", ".hpp", ".py", ".sh"}
TESTS = {"tests", "fuzz", "instrument", "rig", "op_rig"}


def items(folder):
    found = collections.Counter()
    for page in folder.rglob("*.html"):
        text = page.read_text()
        if not re.match(r"(struct|enum|trait|fn|type|constant|static|macro|union)\.", page.name) or 'http-equiv="refresh"' in text:
            continue
        found["pages"] += 1
        if page.name.startswith("type."):
            continue  # lists the items of the aliased type
        text = re.split('id="(?:deref-methods|trait-implementations|synthetic-implementations)', text)[0]
        for name, pattern in (
            ("fields", r"structfield\.\w+"),
            ("variants", r"variant\.\w+"),
            ("fields of variants", r"variant\.\w+\.field\.\w+"),
            ("methods", r"(?:ty)?method\.\w+"),
        ):
            found[name] += len(set(re.findall(f'id="({pattern})"', text)))
    return found


def is_test(path):
    return bool(TESTS & {*path.parts[:-1], path.stem}) or path.stem.endswith("_tests")


def code(path):
    """Counts lines of code. A Rust item under `#[cfg(test)]` ends with its braces, or with a semicolon."""
    lines, test, depth, comment = 0, False, 0, False
    for line in map(str.strip, path.read_text(errors="replace").splitlines()):
        if test:
            depth += line.count("{") - line.count("}")
            test = depth > 0 or not line.endswith(("}", ";"))
        elif line == "#[cfg(test)]" and path.suffix == ".rs":
            test, depth = True, 0
        elif comment or line.startswith("/*"):
            comment = "*/" not in line
        elif line and not line.startswith("#" if path.suffix in (".py", ".sh") else "//"):
            lines += 1
    return lines


def lines(root):
    found = collections.Counter()
    for path in sorted(root.rglob("*")):
        path = path.relative_to(root)
        made = any(part.startswith(".") or part in ("target", "dist") for part in path.parts)
        if path.suffix in ENDS and not made and not is_test(path):
            found[path.parts[0]] += code(root / path)
    return found


counts = {"items": items, "lines": lines}[sys.argv[1]](pathlib.Path(sys.argv[2]))
for name, count in counts.items():
    print(f"{count:>8,}  {name}")
print(f"{counts.total():>8,}  in all")
