#!/usr/bin/env python3
"""Redraws the figures on cost of five papers with waterline's own numbers: paper_figures.py WATERLINE OUT [FIGURE...] [--device cuda]

Models have random weights and are layers of mixers alone, at the papers' sizes. Figures, all of them if none is named:

    sse        arXiv 2507.16577, Figure 6: cost against the number of partitions, of which a token uses one
    gsa-state  arXiv 2409.07146, Table 1: sizes of states
    gsa        arXiv 2409.07146, Figure 4c: latency after 2,048 tokens
    sla        arXiv 2602.01744, Figure 3: cost of gates over heads
    lalte      arXiv 2510.20787, Figure 4 b and c: prefill and decode of attention layers, and their memory
    retention  arXiv 2510.20787, Figure 5: share of tokens that each head of the built-in model retains
    hax        arXiv 2507.00449: cost of HAX's attention next to Mamba's

OUT gets FIGURE-DEVICE.md with the numbers, FIGURE-DEVICE.json with every round, and FIGURE-DEVICE.svg where there are lines to draw. --small
takes shorter texts and fewer rounds.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from chart import lines

ROOT = Path(__file__).resolve().parent.parent.parent
PRESETS = ROOT / "tools/presets"
LAYERS = 4
GEN = 32


def shape(preset, **changes):
    """A preset's description with other values in the description of its layers' mixer or, where they are there, of the model."""
    model = json.loads((PRESETS / f"{preset}.json").read_text())
    (group,) = model["layers"]
    (layer,) = group["of"]
    for key, value in changes.items():
        (model if key in model else layer)[key] = value
    return model


class Machine:
    """Runs the program on models that it makes."""

    def __init__(self, args, folder):
        self.program, self.device, self.threads, self.folder, self.small = args.waterline, args.device, args.threads, Path(folder), args.small
        self.rounds = args.rounds or (2 if args.small else 3)

    def run(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def model(self, name, description, layers=LAYERS):
        """Writes a model of mixers; `description` is a preset's name or a description."""
        path = self.folder / f"{name}.gguf"
        what = [description]
        if isinstance(description, dict):
            (self.folder / f"{name}.json").write_text(json.dumps(description))
            what = ["--shape", self.folder / f"{name}.json"]
        self.run("synth", *what, "--layers", layers, "--mixers-only", "--vocab", 256, "--type", "f16", "-o", path)
        return path

    def models(self, descriptions):
        return {name: self.model(name, description) for name, description in descriptions.items()}

    def bench(self, path, prompt, depths):
        words = ["--device", self.device, "--threads", self.threads, "--prompt", prompt, "--gen", GEN, "--depth", ",".join(map(str, depths))]
        result = json.loads(self.run("bench", path, *words, "--context", max([prompt, *depths]) + GEN + 18, "--json", "-"))
        decode = {d["position"]: d["p50_us"] / LAYERS for d in result["depths"]}
        return {"prefill": 1e6 / result["prefill_tokens_per_s"] / LAYERS, "decode": decode, "gpu": result["provenance"]["gpu"], "cpu": result["machine"]["cpu"]}

    def measure(self, models, prompts, depths):
        """Microseconds of a layer for a token, medians over rounds in which the models take turns: of each model {"prefill": {prompt:
        time}, "decode": {depth: time}}. Also every round."""
        rounds = []
        for _ in range(self.rounds):
            for name, path in models.items():
                for prompt in prompts:
                    # Tokens are generated after the longest prompt's measurement only.
                    found = self.bench(path, prompt, depths if prompt == prompts[-1] else [0])
                    rounds.append({"model": name, "prompt": prompt, **found})
        result = {}
        for name in models:
            own = [r for r in rounds if r["model"] == name]
            prefill = {p: median(r["prefill"] for r in own if r["prompt"] == p) for p in prompts}
            decode = {d: median(r["decode"][d] for r in own if r["prompt"] == prompts[-1]) for d in depths}
            result[name] = {"prefill": prefill, "decode": decode}
        return result, rounds

    def state(self, path, context):
        """Bytes of state of a layer."""
        report = json.loads(self.run("inspect", path, "--json", "--context", context))
        layers = report["session"]["layers"]
        return sum(layer["bytes"] for layer in layers) / len(layers)


def table(heads, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]) + "\n"


def ratio(times, name, base, of):
    """`12.3 us (1.04)`: a time, and its ratio to the base's."""
    time = of(times[name])
    return f"{time:,.1f} us ({time / of(times[base]):.2f})"


def compared(times, base, more=()):
    """Rows of all times with their ratios to a base, and the heads. `more`: a head and a function of the name."""
    first = times[base]
    heads = ["layer"] + [f"prefill of {p:,}" for p in first["prefill"]] + [f"decode at {d:,}" for d in first["decode"]] + [head for head, _ in more]
    rows = []
    for name in times:
        cells = [ratio(times, name, base, lambda t, p=p: t["prefill"][p]) for p in first["prefill"]]
        cells += [ratio(times, name, base, lambda t, d=d: t["decode"][d]) for d in first["decode"]]
        rows.append([name, *cells, *(of(name) for _, of in more)])
    return table(heads, rows)


def size(count):
    return f"{count / 2**20:,.2f} MiB"


def sse(machine):
    counts = (2, 4, 8, 16, 32, 64)
    sizes = {"hidden": 1024, "heads": 8, "value_heads": 8}
    models = machine.models({f"n{n}": shape("sse-n4k1-1.3b", partitions=n, **sizes) for n in counts})
    prompts = (128, 512, 2048) if machine.small else (512, 2048, 8192) if machine.device == "cpu" else (2048, 32768)
    times, rounds = machine.measure(models, prompts, (2048,))
    drawn = {f"prefill of {p:,}": [(n, times[f"n{n}"]["prefill"][p]) for n in counts] for p in prompts}
    drawn["decode at 2,048"] = [(n, times[f"n{n}"]["decode"][2048]) for n in counts]
    chart = lines("SSE, one partition of n for a token", "partitions", "us a token and layer", drawn)
    return compared(times, "n2", [("state", lambda name: size(machine.state(models[name], 4096)))]), chart, rounds


def gsa_state(machine):
    """Numbers of state for each channel of 24 layers of 2,048: L d in the paper."""
    paper = {"mamba-1.4b": 64, "retnet-1.3b": 512, "gla-1.3b": 256, "hgrn2-1.3b": 128, "gsa-1.3b": 128}
    rows = []
    for preset, said in paper.items():
        (group,) = json.loads((PRESETS / f"{preset}.json").read_text())["layers"]
        own = machine.state(machine.model(preset, preset, 1), 4096) / 4
        rows.append([preset, group["repeat"], f"{own:,.0f}", f"{own * group['repeat'] / 24 / 2048:.1f} L d", f"{said} L d"])
    return table(["model", "layers", "numbers of state in a layer", "of the model", "the paper"], rows), None, rows


def gsa(machine):
    models = machine.models({name: name for name in ("gla-1.3b", "gsa-1.3b", "retnet-1.3b", "hgrn2-1.3b", "mamba2-1.3b", "transformer-1.3b")})
    depths = (2048,) if machine.small else (2048, 8192)
    times, rounds = machine.measure(models, (2048,), depths)
    return compared(times, "gla-1.3b", [("state", lambda name: size(machine.state(models[name], 4096)))]), None, rounds


def sla(machine):
    pairs = ("gla-1.3b", "sla-gla-1.3b", "retnet-1.3b", "sla-retnet-1.3b", "gdn-1.3b", "sla-gdn-1.3b")
    models = machine.models({name: name for name in pairs})
    depths = (512, 2048) if machine.small else (512, 2048, 8192)
    times, rounds = machine.measure(models, (2048,), depths)
    blocks = []
    for base, gated in zip(pairs[::2], pairs[1::2]):
        own = {name: times[name] for name in (base, gated)}
        blocks.append(compared(own, base, [("state", lambda name: size(machine.state(models[name], 4096)))]))
    drawn = {name: list(times[name]["decode"].items()) for name in pairs}
    return "\n".join(blocks), lines("SLA: decode with and without gates of heads", "position", "us a token and layer", drawn), rounds


def lalte(machine):
    names = {"SWA of 1,024": "swa-1.3b", "LTE, 769 and 512": "lte-1.3b", "NSA": "nsa-1.3b", "full": "transformer-1.3b"}
    models = machine.models(names)
    small = machine.small or machine.device == "cpu"
    lengths = (1024, 4096) if small else (1024, 4096, 16384)
    times, rounds = machine.measure(models, lengths, lengths if machine.small else (1024, 4096, 16384))
    base = next(iter(names))
    memory = [(f"memory at {n:,}", lambda name, n=n: size(machine.state(models[name], n))) for n in (4096, 32768, 131072)]
    drawn = {f"{name}, {what}": list(times[name][what].items()) for what in ("prefill", "decode") for name in names}
    return compared(times, base, memory), lines("Attention layers of 1.4B", "position", "us a token and layer", drawn), rounds


def retention(machine):
    text = ROOT / "runtime/docs/performance.md"
    report = json.loads(machine.run("inspect", "--retention", text, "--json"))
    rows = [[layer["layer"], layer["window"], layer["capacity"], " ".join(f"{100 * share:.1f}" for share in layer["shares"])] for layer in report["layers"]]
    heads = ["layer", "window", "capacity", f"share of older tokens held after {report['tokens']:,}, % by head"]
    return table(heads, rows), None, report


def hax(machine):
    descriptions = {}
    for preset in ("hax-mamba-790m", "hax-mamba2-790m"):
        bare = shape(preset)
        del bare["layers"][0]["of"][0]["hax"]
        descriptions |= {preset.removeprefix("hax-"): bare, preset: preset}
    models = machine.models(descriptions)
    times, rounds = machine.measure(models, (2048,), (512, 2048) if machine.small else (512, 2048, 8192))
    blocks = [compared({name: times[name] for name in pair}, pair[0]) for pair in (list(models)[:2], list(models)[2:])]
    return "\n".join(blocks), None, rounds


FIGURES = {"sse": sse, "gsa-state": gsa_state, "gsa": gsa, "sla": sla, "lalte": lalte, "retention": retention, "hax": hax}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("waterline", help="the program")
    parser.add_argument("out", type=Path)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], help="by name")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for figure in args.figures or FIGURES:
        with tempfile.TemporaryDirectory() as folder:
            text, chart, rounds = FIGURES[figure](Machine(args, folder))
        name = args.out / f"{figure}-{args.device}"
        name.with_suffix(".md").write_text(text)
        name.with_suffix(".json").write_text(json.dumps(rounds, indent=1) + "\n")
        if chart:
            name.with_suffix(".svg").write_text(chart)
        print(f"{figure}, {args.device}\n{text}", flush=True)


if __name__ == "__main__":
    main()
