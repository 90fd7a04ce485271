#!/usr/bin/env python3
"""Measures time per token and bytes of a session against position, for models of five papers: positions.py WATERLINE [MODEL...] [--device cuda]

Models have random weights in Q4_0, at the papers' sizes. Writes runtime/docs/figures/positions-DEVICE.json, with a record for each model, and
positions-DEVICE.svg, and prints the table of papers.md. Models that have a record are not measured again. `--page` only draws and prints.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from chart import lines

FIGURES = Path(__file__).resolve().parents[2] / "runtime/docs/figures"
# With their longest positions: a full cache must fit the device.
MODELS = {"sse-n4k1-1.3b": 1_000_000, "gsa-1.3b": 1_000_000, "sla-gla-1.3b": 1_000_000, "sla-retnet-1.3b": 1_000_000, "sla-gdn-1.3b": 1_000_000,
    "lalte-1.4b": 1_000_000, "lansa-1.4b": 100_000, "hax-mamba2-790m": 1_000_000, "hax-mamba-790m": 1_000_000, "gla-1.3b": 1_000_000,
    "gdn-1.3b": 1_000_000, "gdn-swa-1.4b": 1_000_000, "transformer-1.3b": 100_000}
POSITIONS = (1_000, 10_000, 100_000, 1_000_000)
PROMPT, GEN = 64, 64


def run(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def measured(waterline, model, device, folder):
    """Returns a model's record: times in us per token, bytes of a session that can hold each position."""
    path = folder / f"{model}.gguf"
    positions = [position for position in POSITIONS if position <= MODELS[model]]
    run(waterline, "synth", model, "--type", "q4_0", "-o", path)
    command = ["--device", device, "--prompt", PROMPT, "--gen", GEN, "--depth", ",".join(map(str, positions)), "--context", positions[-1] + 200]
    result = json.loads(run(waterline, "bench", path, *command, "--json", "-"))
    rows = []
    for depth in result["depths"]:
        session = json.loads(run(waterline, "inspect", path, "--json", "--context", depth["position"] + GEN))["session"]
        rows.append({"position": depth["position"], "p50_us": depth["p50_us"], "p99_us": depth["p99_us"], "session_bytes": session["bytes"]})
    path.unlink()
    return {"model": model, "commit": result["provenance"]["commit"], "date": result["provenance"]["date"], "rows": rows}


def table(records):
    heads = ["model"] + [f"{position:,}" for position in POSITIONS] + ["session, MiB"]
    out = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for record in records:
        cells = {row["position"]: f"{row['p50_us']:,.0f} ({row['p99_us']:,.0f})" for row in record["rows"]}
        sizes = dict.fromkeys(f"{row['session_bytes'] / 2**20:,.1f}" for row in (record["rows"][0], record["rows"][-1]))
        out.append("| " + " | ".join([record["model"], *(cells.get(position, "") for position in POSITIONS), " to ".join(sizes)]) + " |")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("waterline")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    path = FIGURES / f"positions-{args.device}.json"
    records = {record["model"]: record for record in json.loads(path.read_text())} if path.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for model in [] if args.page else args.models or MODELS:
            if model not in records:
                records[model] = measured(args.waterline, model, args.device, Path(folder))
                path.write_text(json.dumps(list(records.values()), indent=1) + "\n")
    series = {name: [(row["position"], row["p50_us"]) for row in record["rows"]] for name, record in records.items()}
    path.with_suffix(".svg").write_text(lines(f"time per token ({args.device})", "position", "microseconds", series))
    print(table(list(records.values())))


if __name__ == "__main__":
    main()
