"""Accuracy of exported models on the evaluation sequences: evaluate.py DIR... --csv FILE --json FILE

Uses the same sequences and the same counting as `waterline eval recall`: complete sequences that include the right answers; a question
counts as right if the largest of all logits is the value's.
"""

import argparse
import csv
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from models import Model
from tasks import sequence

SETTINGS = ([("mqar", keys, 0, 1) for keys in (8, 16, 32, 64)] + [("needle", 1, length, 4) for length in (256, 512, 1024, 2048)]
    + [("needles", 8, length, 1) for length in (256, 512, 1024, 2048)] + [("joint", keys, 0, 1) for keys in (16, 32, 64)])
BATCH_TOKENS = 8192


@torch.no_grad()
def evaluate(model, task, keys, length, count, seed, device):
    """Returns the numbers of questions and right answers, in total and by distance (upper bound 64, 128, 256, ...)."""
    sequences = [sequence(task, keys, length, seed + i) for i in range(count)]
    T = len(sequences[0].tokens)
    rows = max(1, BATCH_TOKENS // T)
    by_distance = {}
    for first in range(0, count, rows):
        batch = sequences[first : first + rows]
        tokens = torch.tensor([s.tokens for s in batch], device=device)
        guess = model(tokens)[0].argmax(-1).cpu()
        for row, s in enumerate(batch):
            for p, written in s.questions:
                bound = 64
                while bound < p - written:
                    bound *= 2
                entry = by_distance.setdefault(bound, [0, 0])
                entry[0] += 1
                entry[1] += int(all(guess[row, p + i] == s.tokens[p + i + 1] for i in range(s.answer)))
    return by_distance


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--sequences", type=int, default=64, help="of each setting; four times as many for single needles")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = []
    for folder in args.models:
        model = Model(json.loads((folder / "config.json").read_text())).eval()
        model.load_state_dict({n: t.float() for n, t in load_file(folder / "model.safetensors").items()})
        model.to(device)
        settings = []
        for task, keys, length, times in SETTINGS:
            count = args.sequences * times
            by_distance = evaluate(model, task, keys, length, count, args.seed, device)
            questions, right = (sum(e[i] for e in by_distance.values()) for i in (0, 1))
            settings.append({"task": task, "keys": keys, "length": length, "sequences": count, "questions": questions, "right": right,
                "accuracy": right / questions,
                "by_distance": [{"up_to": b, "questions": q, "right": r} for b, (q, r) in sorted(by_distance.items())]})
            print(f"{folder.name} {task} {keys} keys, length {length}: {right / questions:.4f}", flush=True)
        results.append({"model": folder.name, "settings": settings})
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            columns = ["model", "task", "keys", "length", "sequences", "questions", "right", "accuracy"]
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            for result in results:
                writer.writerows({"model": result["model"], **s, "accuracy": f"{s['accuracy']:.6f}"} for s in result["settings"])
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
