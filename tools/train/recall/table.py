"""Recall of trained models, unchanged and with mechanisms disabled: table.py WATERLINE FOLDER SCRATCH prints the table of the GGUFs of
tests/models in FOLDER as Markdown. SCRATCH gets MODEL.recall.csv with a line for each count; lines that exist are not computed again. Cells are
the percentage of right answers with its standard error.

`answer` does the same for the models of an experiment (report.py).
"""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import text

SHIPPED = {"sse-n4k1": ("partitions", "shared"), "gla": (), "hax-mamba2": ("attention",), "mamba2": (), "lalte": ("set", "attention"),
    "gdn-swa": ("attention",), "softmax-gla": ("read-gate", "write-gate", "read-gate,write-gate")}
ASKED = [("mqar", 32, 0), ("mqar", 64, 0), ("joint", 32, 0), ("joint", 64, 0)]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def ask(waterline, model, asked, switches, path, books=None):
    """Evaluates what the table at `path` lacks; returns (switches, task, keys, length) to the fields of a line."""
    table = read(path)
    for without in ("",) + switches:
        for task, length in dict.fromkeys((task, length) for task, _, length in asked):
            keys = [k for t, k, n in asked if (t, n) == (task, length) and (without.replace(",", "+"), t, k, n) not in table]
            if not keys:
                continue
            if task == text.TASK:
                table[without.replace(",", "+"), task, 0, length] = loss(waterline, books, model, length, without)
            else:
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


def loss(waterline, books, model, length, without):
    """Returns a model's loss on the held-out books, in nats per token, read from an empty state at most `length` tokens at a time."""
    command = [waterline, "eval", "bpb", books / "held.jsonl", model, "--tokens", str(length), "--threads", "1", "--json"]
    result = json.loads(run(*command, *(["--without", without] if without else [])))
    return {"model": Path(model).stem, "without": without.replace(",", "+"), "task": text.TASK, "keys": 0, "length": length,
        "tokens": result["tokens"], "loss": f"{result['bits_per_token'] * math.log(2):.5f}", "model_sha256": result["model_sha256"]}


def read(path):
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {(r["without"], r["task"], int(r["keys"]), int(r["length"])): r for r in csv.DictReader(file)}


def files(experiment, arm, seed):
    """Returns the models derived from a trained one: (arm, name, options of `waterline convert`)."""
    from experiments import EXPERIMENTS  # imports PyTorch, which `read` does without

    converted = {arm: ()} | EXPERIMENTS[experiment].arms[arm].converted
    return [(title, f"{experiment}.{title}.{seed}", options) for title, options in converted.items()]


def answer(waterline, folder, experiment, arm, seed, books=None):
    """Converts and evaluates the models derived from one trained model in `folder`; `books` is the folder of text.py."""
    from experiments import EXPERIMENTS

    setup = EXPERIMENTS[experiment]
    for _, name, options in files(experiment, arm, seed):
        model = folder / f"{name}.gguf"
        if not model.exists():
            trained = folder / f"{experiment}.{arm}.{seed}"
            run(waterline, "convert", trained, "-o", model, "--type", "f16", *options)
        ask(waterline, model, setup.asked, setup.arms[arm].without, folder / f"{name}.recall.csv", books)


def cell(row):
    return f"{100 * float(row['accuracy']):.1f} ± {100 * float(row['stderr']):.1f} ({row['right']})"


def main():
    waterline, folder, scratch = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    tables = {}
    for model, switches in SHIPPED.items():
        path = scratch / f"{model}.recall.csv"
        ask(waterline, folder / f"{model}.gguf", ASKED, switches, path)
        tables[model] = read(path)
    questions = [tables["gla"]["", *asked]["questions"] for asked in ASKED]
    heads = [f"{task} {keys}, of {n}" for (task, keys, _), n in zip(ASKED, questions)]
    print("| model | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    for model, switches in SHIPPED.items():
        for without in ("",) + switches:
            off = " − " + without.replace(",", ", ") if without else ""
            cells = [cell(tables[model][without.replace(",", "+"), *asked]) for asked in ASKED]
            print(f"| {model}{off} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
