#!/usr/bin/env python3
"""Redraws the cost figures of five papers with waterline's numbers: paper_figures.py WATERLINE OUT [FIGURE...] [--device cuda]

Models have random weights and consist of a few mixer layers, at the papers' sizes. Figures, by default all of them:

    sse        arXiv 2507.16577, Figure 6: cost against the number of partitions, of which a token uses one
    gsa-state  arXiv 2409.07146, Table 1: sizes of states
    gsa        arXiv 2409.07146, Figure 4c: latency after 2,048 tokens
    sla        arXiv 2602.01744, Figure 3: cost of gates over heads
    lalte      arXiv 2510.20787, Figure 4 b and c: prefill and decode of attention layers, and their memory
    retention  arXiv 2510.20787, Figure 5: share of tokens that each head of the built-in model retains
    hax        arXiv 2507.00449: cost of HAX's attention next to Mamba's

OUT gets FIGURE-DEVICE.json with every round, FIGURE-DEVICE.svg where there are lines to draw, and README.md, the page of all figures whose
JSON is in OUT. `--small` uses fewer layers, shorter texts and one round. `--page` measures nothing and rewrites pictures and page.
"""

import argparse
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from chart import lines

ROOT = Path(__file__).resolve().parent.parent.parent
PRESETS = ROOT / "tools/presets"
GEN = 32


def preset(name):
    return json.loads((PRESETS / f"{name}.json").read_text())


def changed(name, **changes):
    """Returns a preset's description with changed values of the model, or else of its layers' mixer."""
    model = preset(name)
    (group,) = model["layers"]
    (layer,) = group["of"]
    for key, value in changes.items():
        (model if key in model else layer)[key] = value
    return model


def without_attention(name):
    """Returns HAX's preset without its attention."""
    model = preset(name)
    del model["layers"][0]["of"][0]["hax"]
    return model


class Machine:
    """Runs the program on models that it writes to a folder."""

    def __init__(self, args, folder):
        self.program, self.device, self.threads, self.folder = args.waterline, args.device, args.threads, Path(folder)
        self.form = "small" if args.small else args.device
        self.layers, self.rounds = (2, args.rounds or 1) if args.small else (4, args.rounds or 3)

    def run(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def model(self, name, description, layers):
        """Writes a model of mixers; `description` is a preset's name or a description."""
        path = self.folder / f"{name}.gguf"
        what = [description]
        if isinstance(description, dict):
            (self.folder / f"{name}.json").write_text(json.dumps(description))
            what = ["--shape", self.folder / f"{name}.json"]
        self.run("synth", *what, "--layers", layers, "--mixers-only", "--vocab", 256, "--type", "f16", "-o", path)
        return path

    def models(self, descriptions):
        """Returns the models' paths by name."""
        with ThreadPoolExecutor(min(8, os.cpu_count())) as pool:
            paths = pool.map(lambda item: self.model(item[0].replace(" ", "-"), item[1], self.layers), descriptions.items())
            return dict(zip(descriptions, paths))

    def compile(self, paths, context):
        """Opens every model once, several at a time, so that their kernels are cached on disk."""
        with ThreadPoolExecutor(min(8, os.cpu_count())) as pool:
            list(pool.map(lambda path: self.bench([path], 16, [0], context), paths))

    def bench(self, paths, prompt, depths, context):
        words = ["--device", self.device, "--threads", self.threads, "--prompt", prompt, "--gen", GEN, "--depth", ",".join(map(str, depths))]
        result = json.loads(self.run("bench", *paths, *words, "--context", context, "--json", "-"))
        return result if isinstance(result, list) else [result]

    def state(self, path, context):
        """Returns the bytes of a layer's state."""
        report = json.loads(self.run("inspect", path, "--json", "--context", context))
        layers = report["session"]["layers"]
        return sum(layer["bytes"] for layer in layers) / len(layers)


def table(heads, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows]) + "\n"


def shown(number):
    """Formats a number with three digits, or with all digits before the point."""
    return next(f"{number:,.{digits}f}" for least, digits in ((100, 0), (10, 1), (1, 2), (0, 3)) if number >= least)


def size(count):
    return f"{count / 2**20:,.2f} MiB"


@dataclass
class Costs:
    """A figure of a layer's time per token, and of states.

    `groups` are the models, by preset or description, in groups whose first model is the base of ratios. `prompts` and `depths` are the
    lengths of prompts and the positions of decoding for each form (small, cpu, cuda), `contexts` the contexts at which the state's size is
    shown."""

    title: str
    says: str
    groups: list
    prompts: dict
    depths: dict
    contexts: tuple = (4096,)
    across: str = ""

    def measure(self, machine):
        prompts, depths = self.prompts[machine.form], self.depths[machine.form]
        paths = machine.models({name: what for group in self.groups for name, what in group.items()})
        context = max(*prompts, *depths) + len(depths) * (GEN + 2) + 16
        if machine.device != "cpu":
            machine.compile(paths.values(), context)
        rounds = []
        for _ in range(machine.rounds):
            for prompt in prompts:
                # Tokens are generated only after the longest prompt.
                found = machine.bench(paths.values(), prompt, depths if prompt == prompts[-1] else [0], context)
                rounds += [(name, prompt, report) for name, report in zip(paths, found)]
        data = {"machine": place(rounds[0][2], machine), "models": {}, "rounds": []}
        for name, path in paths.items():
            state = {context: machine.state(path, context) for context in self.contexts}
            data["models"][name] = {"prefill": {}, "decode": {}, "state": state}
        for name, prompt, report in rounds:
            decode = {d["position"]: d["p50_us"] / machine.layers for d in report["depths"]} if prompt == prompts[-1] else {}
            prefill = 1e6 / report["prefill_tokens_per_s"] / machine.layers
            data["rounds"].append({"model": name, "prefill": {prompt: prefill}, "decode": decode})
        for name, found in data["models"].items():
            for what, at in (("prefill", prompts), ("decode", depths)):
                own = [r[what] for r in data["rounds"] if r["model"] == name]
                found[what] = {p: median(r[p] for r in own if p in r) for p in at}
        return data

    def show(self, data):
        """Returns the table as text and the lines of the picture."""
        models = data["models"]
        first = next(iter(models.values()))
        columns = [(what, p) for what in ("prefill", "decode") for p in first[what]]
        heads = ["layer", *(f"{what} {'of' if what == 'prefill' else 'at'} {int(p):,}, us" for what, p in columns)]
        heads += [f"state at {int(c):,}" if len(self.contexts) > 1 else "state" for c in first["state"]]
        rows = []
        for group in self.groups:
            base = models[next(iter(group))]
            for name in group:
                own = models[name]
                times = [f"{shown(own[what][p])} ({own[what][p] / base[what][p]:.2f})" for what, p in columns]
                rows.append([name, *times, *map(size, own["state"].values())])
        if not self.across:
            return table(heads, rows), {}
        if self.across == "partitions":
            drawn = {f"{what} {int(p):,}": [(int(name.split()[-1]), models[name][what][p]) for name in models] for what, p in columns}
        else:
            drawn = {}
            for what in ("prefill", "decode"):
                drawn |= {f"{name}, {what}": [(int(p), t) for p, t in own[what].items()] for name, own in models.items() if len(own[what]) > 1}
        return table(heads, rows), drawn


class States:
    """A table of sizes of states."""

    title = "GSA, Table 1: sizes of states"
    says = "numbers of state of the whole model in units of L d, 24 layers of 2,048 channels; the paper leaves Mamba's convolutions out."
    paper = {"mamba-1.4b": 64, "retnet-1.3b": 512, "gla-1.3b": 256, "hgrn2-1.3b": 128, "gsa-1.3b": 128}
    across = ""

    def measure(self, machine):
        return {"numbers": {name: machine.state(machine.model(name, name, 1), 4096) / 4 for name in self.paper}}

    def show(self, data):
        rows = []
        for name, own in data["numbers"].items():
            (group,) = preset(name)["layers"]
            rows.append([name, group["repeat"], f"{own:,.0f}", f"{own * group['repeat'] / 24 / 2048:.0f} L d", f"{self.paper[name]} L d"])
        return table(["model", "layers", "numbers of state in a layer", "of the model", "the paper"], rows), {}


class Retention:
    """A table of the shares of tokens that heads retain."""

    title = "laLTE, Figure 5: what heads retain"
    says = ("shares of a 1.4B model's heads range from few to all of the tokens outside of the window, more in higher layers. "
            "Here the built-in model, small, after the text of LICENSE, which is unlike what it was trained on: `inspect --retention FILE`.")
    across = ""

    def measure(self, machine):
        return json.loads(machine.run("inspect", "--retention", ROOT / "LICENSE", "--json"))

    def show(self, data):
        shares = [" ".join(f"{100 * share:.1f}" for share in layer["shares"]) for layer in data["layers"]]
        rows = [[layer["layer"], layer["window"], layer["capacity"], own] for layer, own in zip(data["layers"], shares)]
        return table(["layer", "window", "most that a head holds", f"share of older tokens after {data['tokens']:,}, % by head"], rows), {}


PARTITIONS = (2, 4, 8, 16, 32, 64)
FIGURES = {
    "sse": Costs(
        "SSE, Figure 6: cost against the number of partitions, one for a token",
        "at 8 heads of 128 and one partition for a token the time of prefill is nearly constant in the number of partitions (A100, 8 to 256k tokens).",
        [{f"n = {n}": changed("sse-n4k1-1.3b", partitions=n, hidden=1024, heads=8, value_heads=8) for n in PARTITIONS}],
        {"small": (128, 1024), "cpu": (512, 2048, 8192), "cuda": (2048, 32768)},
        {"small": (1024,), "cpu": (2048,), "cuda": (2048,)},
        across="partitions",
    ),
    "gsa-state": States(),
    "gsa": Costs(
        "GSA, Figure 4c: latency after 2,048 tokens",
        "decoding takes time in the order of states, so GSA is before GLA and RetNet (H800, batch 1; bars without numbers).",
        [{name: name for name in ("gla-1.3b", "gsa-1.3b", "retnet-1.3b", "hgrn2-1.3b", "mamba2-1.3b", "transformer-1.3b")}],
        {"small": (512,), "cpu": (2048,), "cuda": (2048,)},
        {"small": (2048,), "cpu": (2048, 8192), "cuda": (2048, 8192)},
    ),
    "sla": Costs(
        "SLA, Figure 3: cost of gates over heads",
        "gates cost a slight but consistent part of the throughput, and a mild and constant increase of latency (H20; lines without numbers).",
        [{f"{base}-1.3b": f"{base}-1.3b", f"sla-{base}-1.3b": f"sla-{base}-1.3b"} for base in ("gla", "retnet", "gdn")],
        {"small": (512,), "cpu": (2048,), "cuda": (2048,)},
        {"small": (512, 1024), "cpu": (512, 2048, 8192), "cuda": (512, 2048, 8192)},
        across="position",
    ),
    "lalte": Costs(
        "laLTE, Figure 4 b and c: attention layers of 1.4B",
        "LTE's layers take about the time of a sliding window's, in prefill and decode, far less than full attention's (H100, batch 32; lines without numbers).",
        [{"SWA of 1,024": "swa-1.3b", "LTE, 769 and 512": "lte-1.3b", "NSA": "nsa-1.3b", "full": "transformer-1.3b"}],
        {"small": (2048,), "cpu": (1024, 4096), "cuda": (1024, 4096, 16384)},
        {"small": (1024, 4096), "cpu": (1024, 4096, 16384), "cuda": (1024, 4096, 16384)},
        contexts=(4096, 32768, 131072),
        across="position",
    ),
    "retention": Retention(),
    "hax": Costs(
        "HAX: cost of its attention next to Mamba's scan",
        "no cost is given.",
        [{base: without_attention(f"hax-{base}"), f"hax-{base}": f"hax-{base}"} for base in ("mamba-790m", "mamba2-790m")],
        {"small": (512,), "cpu": (2048,), "cuda": (2048,)},
        {"small": (1024,), "cpu": (2048, 8192), "cuda": (2048, 8192)},
    ),
}


def place(report, machine):
    """Describes the machine and the conditions of a measurement in words."""
    made = report["provenance"]
    on = made["gpu"] or f"{report['machine']['cpu']}, threads: {report['threads']}"
    return f"{on}; {made['date'][:10]}, commit {made['commit']}; {machine.layers} layers, rounds: {machine.rounds}"


def page(out):
    """Draws the measured figures, and writes the page of all figures."""
    parts = ["# Figures of five papers, drawn again\n", (
        "`python3 tools/reference/paper_figures.py WATERLINE OUT` measures and writes this page, `--small` in a few minutes, `--device cuda` on a GPU. "
        "Models have random weights and the papers' sizes; a layer is a mixer with its norm, without feed-forward network, in f16. "
        "Times are microseconds of a layer for a token, one sequence, medians over rounds in which models are interleaved; "
        "in brackets the ratio to the first model of the group.\n")]
    for name, figure in FIGURES.items():
        parts.append(f"## {figure.title}\nThe paper: {figure.says}\n")
        for device in ("cpu", "cuda"):
            file = out / f"{name}-{device}.json"
            if not file.exists():
                continue
            data = json.loads(file.read_text())
            text, drawn = figure.show(data)
            if "machine" in data:
                parts.append(data["machine"] + ".\n")
            parts.append(text)
            if drawn:
                picture = file.with_suffix(".svg")
                picture.write_text(lines(figure.title, figure.across, "us of a layer for a token", drawn))
                parts.append(f"![{figure.title}]({picture.name})\n")
    (out / "README.md").write_text("\n".join(parts))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("waterline", help="the program")
    parser.add_argument("out", type=Path)
    parser.add_argument("figures", nargs="*", choices=[*FIGURES, []], help="by name")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in [] if args.page else args.figures or FIGURES:
        figure = FIGURES[name]
        if args.device != "cpu" and not isinstance(figure, Costs):
            continue  # a table of sizes, the same on any device
        with tempfile.TemporaryDirectory() as folder:
            data = figure.measure(Machine(args, folder))
        (args.out / f"{name}-{args.device}.json").write_text(json.dumps(data, indent=1) + "\n")
        print(f"{name}, {args.device}\n{figure.show(json.loads(json.dumps(data)))[0]}", flush=True)
    page(args.out)


if __name__ == "__main__":
    main()
