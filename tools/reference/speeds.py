#!/usr/bin/env python3
"""Measures the presets of runtime/docs/models.md on a CPU and on a GPU, for models.py.

usage: speeds.py WATERLINE OUTPUT.json [--type q4_k] [--threads N] [--seconds S] [--devices cpu,cuda] [PRESET...]

Each preset is written with random weights to a temporary folder, measured with `waterline bench` (a prompt of 512 tokens, a generation of
64) and removed. A preset that takes longer than S seconds is left out. OUTPUT has tokens per second of the prompt and of the generation,
for each preset and device.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from models import PRESETS


def bench(program, model, device, threads, seconds):
    """Returns tokens per second of a prompt and of a generation."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [program, "bench", str(model), "--device", device, "--threads", str(threads), "--prompt", "512", "--gen", "64", "--depth", "0"]
        subprocess.run([*command, "--json", out.name], check=True, stdout=subprocess.DEVNULL, timeout=seconds)
        result = json.load(open(out.name))
    return result["prefill_tokens_per_s"], result["decode_tokens_per_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("waterline")
    parser.add_argument("output", type=Path)
    parser.add_argument("presets", nargs="*", default=[])
    parser.add_argument("--type", default="q4_k")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--devices", default="cpu,cuda")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    speeds = json.loads(args.output.read_text()) if args.output.exists() else {}
    for preset in args.presets or PRESETS.values():
        left = end - time.monotonic()
        if left < 5:
            print(f"{preset}: no time left", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model.gguf"
            write = [args.waterline, "synth", preset, "--type", args.type, "-o", str(model)]
            try:
                subprocess.run(write, check=True, stdout=subprocess.DEVNULL, timeout=left)
                for device in args.devices.split(","):
                    left = max(1, end - time.monotonic())
                    speeds.setdefault(preset, {})[device] = bench(args.waterline, model, device, args.threads, left)
                    print(preset, device, speeds[preset][device], flush=True)
            except (subprocess.SubprocessError, KeyError) as error:
                print(f"{preset}: {error}", file=sys.stderr)
        args.output.write_text(json.dumps(speeds, indent=1) + "\n")


if __name__ == "__main__":
    main()
