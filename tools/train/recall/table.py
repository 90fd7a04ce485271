"""Recall of trained models, unchanged and with mechanisms disabled, as Markdown: table.py WATERLINE shipped FOLDER SCRATCH or table.py
WATERLINE EXPERIMENT DIR

`shipped`: the GGUFs of tests/models. Otherwise an experiment of `experiments.py` whose models are in DIR (see README.md): each model is
converted to f16 and evaluated on the experiment's questions with every switch of its arm. SCRATCH or DIR gets MODEL.recall.csv with a line
for each count; lines that exist are not computed again. Cells are the mean over seeds of the right answers in percent, with the range over
seeds; for a single file, with its standard error.
"""

import csv
import subprocess
import sys
from pathlib import Path

from experiments import EXPERIMENTS, SEEDS

SHIPPED = {"sse-n4k1": ("partitions", "shared"), "gla": (), "hax-mamba2": ("attention",), "mamba2": (), "lalte": ("set", "attention"),
    "gdn-swa": ("attention",), "softmax-gla": ("read-gate", "write-gate", "read-gate,write-gate")}
ASKED = [("mqar", 32, 0), ("mqar", 64, 0), ("joint", 32, 0), ("joint", 64, 0)]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def ask(waterline, model, asked, switches, path):
    """Evaluates what the table at `path` lacks; returns (switches, task, keys, length) to the fields of a line."""
    table = read(path)
    for without in ("",) + switches:
        for task, length in dict.fromkeys((task, length) for task, _, length in asked):
            keys = [k for t, k, n in asked if (t, n) == (task, length) and (without.replace(",", "+"), t, k, n) not in table]
            if not keys:
                continue
            part = Path(f"{path}.part")
            command = [waterline, "eval", "recall", model, "--task", task, "--keys", ",".join(map(str, keys)), "--length", str(length)]
            command += ["--threads", "1", "--csv", part] + (["--without", without] if without else [])
            run(*command)
            table |= read(part)
            part.unlink()
            with open(path, "w", newline="") as file:
                writer = csv.DictWriter(file, next(iter(table.values())))
                writer.writeheader()
                writer.writerows(table.values())


def read(path):
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {(r["without"], r["task"], int(r["keys"]), int(r["length"])): r for r in csv.DictReader(file)}


def files(experiment, arm, seed):
    """Returns the models derived from a trained one: (arm, name, options of `waterline convert`)."""
    converted = {arm: ()} | EXPERIMENTS[experiment].arms[arm].converted
    return [(title, f"{experiment}.{title}.{seed}", options) for title, options in converted.items()]


def answer(waterline, folder, experiment, arm, seed):
    """Converts and evaluates the models derived from one trained model in `folder`."""
    setup = EXPERIMENTS[experiment]
    for _, name, options in files(experiment, arm, seed):
        model = folder / f"{name}.gguf"
        if not model.exists():
            trained = folder / f"{experiment}.{arm}.{seed}"
            run(waterline, "convert", trained, "-o", model, "--type", "f16", *options)
        ask(waterline, model, setup.asked, setup.arms[arm].without, folder / f"{name}.recall.csv")


def cell(rows):
    shares = [100 * float(r["accuracy"]) for r in rows]
    if len(rows) == 1:
        return f"{shares[0]:.1f} ± {100 * float(rows[0]['stderr']):.1f} ({rows[0]['right']})"
    return f"{sum(shares) / len(shares):.1f} ({min(shares):.1f}–{max(shares):.1f})"


def show(arms, asked):
    """Prints the table. `arms` maps a row's title to its tables, one per seed, and its switches."""
    tables = [table for found, _ in arms.values() for table in found]
    questions = [next((table["", *a]["questions"] for table in tables if ("", *a) in table), "none") for a in asked]
    heads = [f"{task} {keys}" + (f" in {length}" if length else "") + f", of {n}" for (task, keys, length), n in zip(asked, questions)]
    print("| model | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for title, (found, switches) in arms.items():
        for without in ("",) + switches:
            rows = [[table[key] for table in found if (key := (without.replace(",", "+"), *a)) in table] for a in asked]
            if all(rows):
                seeds = "" if len(rows[0]) in (1, len(SEEDS)) else f", {len(rows[0])} seeds"
                off = " − " + without.replace(",", ", ") if without else ""
                print(f"| {title}{off}{seeds} | " + " | ".join(cell(r) for r in rows) + " |")


def main():
    waterline, what, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    arms = {}
    if what == "shipped":
        asked = ASKED
        for model, switches in SHIPPED.items():
            path = Path(sys.argv[4]) / f"{model}.recall.csv"
            ask(waterline, folder / f"{model}.gguf", asked, switches, path)
            arms[model] = [read(path)], switches
    else:
        asked = EXPERIMENTS[what].asked
        for arm, setup in EXPERIMENTS[what].arms.items():
            for seed in SEEDS:
                if (folder / f"{what}.{arm}.{seed}").exists():
                    answer(waterline, folder, what, arm, seed)
                for title, name, _ in files(what, arm, seed):
                    if table := read(folder / f"{name}.recall.csv"):
                        arms.setdefault(title, ([], setup.without))[0].append(table)
    show(arms, asked)


if __name__ == "__main__":
    main()
