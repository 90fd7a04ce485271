"""Compares accuracy from PyTorch and from waterline: compare.py PYTORCH.csv WATERLINE.csv...

Prints a Markdown table of the settings that both have for every model (percent; where they differ, PyTorch first) and fails if a setting
differs by more than half a point.
"""

import csv
import sys

LIMIT = 0.5


def read(paths):
    found = {}
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                setting = row["task"].lower(), int(row["keys"]), int(row["length"])
                found.setdefault(row["model"], {})[setting] = int(row["questions"]), 100 * float(row["accuracy"])
    return found


def main():
    torch, ours = read(sys.argv[1:2]), read(sys.argv[2:])
    settings = [s for s in next(iter(torch.values())) if all(s in found for found in ours.values())]
    print("| model | " + " | ".join(f"{t} {k}" + (f", {n}" if n else "") for t, k, n in settings) + " |")
    print("|---|" + "---|" * len(settings))
    worst, count = (0.0, ""), 0
    for model, expected in torch.items():
        cells = []
        for setting in settings:
            (questions, a), (asked, b) = expected[setting], ours[model][setting]
            assert questions == asked, f"{model} {setting}: {questions} questions, waterline asked {asked}"
            worst = max(worst, (abs(a - b), f"{model}, {setting}"))
            count += abs(a - b) > 0
            cells.append(f"{a:.1f}" if f"{a:.1f}" == f"{b:.1f}" else f"{a:.1f} / {b:.1f}")
        print(f"| {model} | " + " | ".join(cells) + " |")
    print(f"\nlargest difference {worst[0]:.2f} points ({worst[1] or 'none'}); {count} of {len(torch) * len(settings)} settings differ at all")
    if worst[0] > LIMIT:
        raise SystemExit(f"more than {LIMIT} points")


if __name__ == "__main__":
    main()
