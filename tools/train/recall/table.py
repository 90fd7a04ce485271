"""Recall of trained models, as they are and with mechanisms switched off, as Markdown: table.py WATERLINE shipped FOLDER or EXPERIMENT DIR

`shipped`: the GGUFs of tests/models. Else an experiment of `experiments.py` whose models are in DIR (see README.md): each is converted to f16,
asked the experiment's questions with every switch of its arm, and DIR/EXPERIMENT.recall.csv gets a line for each count; what is in it is not
asked again. Cells are the mean over seeds of the right answers in percent, with the range over seeds; of one file with its standard error.
"""

import csv
import subprocess
import sys
from pathlib import Path

from experiments import EXPERIMENTS, SEEDS

SHIPPED = {"sse-n4k1": ("partitions", "shared"), "gla": (), "hax-mamba2": ("attention",), "mamba2": (), "lalte": ("set", "attention"),
    "gdn-swa": ("attention",), "softmax-gla": ("read-gate", "write-gate", "read-gate,write-gate")}
ASKED = [("mqar", 32, 0), ("mqar", 64, 0), ("joint", 32, 0), ("joint", 64, 0)]


def ask(waterline, model, asked, without, table):
    """Asks what is not in `table`, which maps (model, without, setting) to the fields of a line."""
    name = model.stem
    for task, keys, length in asked:
        key = name, without.replace(",", "+"), task, keys, length
        if key in table:
            continue
        scratch = Path(f"{model}.part")
        command = [waterline, "eval", "recall", model, "--task", task, "--keys", str(keys), "--length", str(length), "--threads", "1", "--csv", scratch]
        subprocess.run(command + (["--without", without] if without else []), check=True, stdout=subprocess.DEVNULL)
        (table[key],) = read(scratch).values()
        scratch.unlink()


def read(path):
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {(r["model"], r["without"], r["task"], int(r["keys"]), int(r["length"])): r for r in csv.DictReader(file)}


def write(path, table):
    rows = list(table.values())
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def cell(rows):
    shares = [100 * float(r["accuracy"]) for r in rows]
    if len(rows) == 1:
        return f"{shares[0]:.1f} ± {100 * float(rows[0]['stderr']):.1f} ({rows[0]['right']})"
    return f"{sum(shares) / len(shares):.1f} ({min(shares):.1f} to {max(shares):.1f})"


def show(title, arms, asked, table):
    """`arms` maps a row's title to its files and switches."""
    questions = [int(next(r for k, r in table.items() if k[2:] == a)["questions"]) for a in asked]
    heads = [f"{task} {keys}" + (f" in {length}" if length else "") + f", of {n}" for (task, keys, length), n in zip(asked, questions)]
    print(f"| {title} | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for arm, (files, switches) in arms.items():
        for without in ("",) + switches:
            off = without.replace(",", "+")
            rows = [[table.get((file, off, *a)) for file in files] for a in asked]
            if all(all(r) for r in rows):
                print(f"| {arm}" + (f" without {without.replace(',', ', ')}" if without else "") + " | " + " | ".join(cell(r) for r in rows) + " |")


def main():
    waterline, what, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    cache = (Path(sys.argv[4]) if len(sys.argv) > 4 else folder) / f"{what}.recall.csv"
    table = read(cache)
    if what == "shipped":
        asked, arms = ASKED, {model: ([model], switches) for model, switches in SHIPPED.items()}
    else:
        setup = EXPERIMENTS[what]
        asked = list(setup.asked)
        arms = {arm: ([f"{what}.{arm}.{seed}" for seed in SEEDS], setup.arms[arm].without) for arm in setup.arms}
    for files, switches in arms.values():
        for file in files:
            model = folder / f"{file}.gguf"
            if not model.exists() and (folder / file).exists():
                subprocess.run([waterline, "convert", folder / file, "-o", model, "--type", "f16"], check=True, stdout=subprocess.DEVNULL)
            if model.exists():
                for without in ("",) + switches:
                    ask(waterline, model, asked, without, table)
                write(cache, table)
    show("model", arms, asked, table)


if __name__ == "__main__":
    main()
