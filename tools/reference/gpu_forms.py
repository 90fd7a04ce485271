#!/usr/bin/env python3
"""Shows how a step runs on one GPU, as itself and with the programs of other GPUs (WATERLINE_GPU_AS): a table in Markdown.

    tools/reference/gpu_forms.py target/release/waterline gdn-1.3b-q4_0.gguf gdn-1.3b-bf16.gguf > forms.md

A tile is a stage of the weight pipeline. Its cycles are the time of a token, at the SMs' highest clock, divided by the tiles of one SM;
they include waits for memory and for other thread blocks.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile

OVERRIDES = [
    ("as it is", ""),
    ("RTX 4090", "compute_89,sms=128,shared=99"),
    ("RTX 3090", "compute_86,sms=82,shared=99"),
    ("AGX Orin", "compute_80,sms=16,shared=163"),
    ("Orin Nano", "compute_80,sms=8,shared=163"),
    ("8 SMs", "sms=8"),
]


def output(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def query(what):
    fields = output(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]).stdout
    return fields.splitlines()[0].strip() if fields else "?"


def measure(program, model, override):
    """Returns bench's JSON and output, or the reason why it failed."""
    environment = dict(os.environ, WATERLINE_GPU_AS=override) if override else dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bench.json")
        command = [program, "bench", model, "--device", "cuda", "--prompt", "64", "--gen", "100", "--depth", "500", "--json", path]
        try:
            said = output(command, env=environment, timeout=90)
        except subprocess.TimeoutExpired:
            return None, "no result in 90 s"
        if not os.path.exists(path):
            return None, (said.stderr.strip().splitlines() or ["failed"])[-1]
        with open(path) as file:
            return json.load(file), said.stdout + said.stderr


def row(program, model, name, override, clock):
    bench, said = measure(program, model, override)
    name = f"{name} (`{override}`)" if override else name
    if bench is None:
        return [os.path.basename(model), name, said, "", "", ""]
    form = re.search(r"a step on the GPU is ([^:]*): (.*)", said)
    pipeline = re.search(r"(\d+) thread blocks.*pipeline of (\d+) stages of (\d+) bytes", said)
    time = bench["depths"][-1]["p50_us"]
    cells = [os.path.basename(model), name, form[1] if form else "?", "", f"{time:.0f}", ""]
    if pipeline:
        blocks, stages, stage = map(int, pipeline.groups())
        tiles = bench["model"]["weight_bytes"] / blocks / stage
        cells[3], cells[5] = f"{blocks} / {stages} of {stage}", f"{time * clock / tiles:.0f}"
    elif form:
        cells[2] += f": {form[2]}"
    return cells


def main():
    program, *models = sys.argv[1:]
    clock = float(query("clocks.max.sm"))
    print(f"{query('name')}, driver {query('driver_version')}, {clock:.0f} MHz, {datetime.date.today()}.\n")
    print("| model | program of | form | thread blocks / stages | us a token | cycles a tile |")
    print("|---|---|---|---|---|---|")
    for model in models:
        for name, override in OVERRIDES:
            print("| " + " | ".join(row(program, model, name, override, clock)) + " |", flush=True)


main()
