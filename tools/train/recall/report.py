"""Results of the experiments, and the tables that runtime/docs/papers.md draws from them.

    report.py collect WATERLINE DIR [EXPERIMENT...] [--text FOLDER]   evaluates what DIR lacks (see table.py), writes results/EXPERIMENT.csv and EXPERIMENT.training.csv
    report.py write [--check]                         draws the tables anew; with --check fails if papers.md differs

A table in papers.md lies between `<!-- recall EXPERIMENT: TASK KEYS LENGTH; ... -->` and `<!-- end -->`. A cell is percent right: the mean over seeds
and its standard error. `<!-- loss EXPERIMENT: FIRST ARMS ... -->` has nats per token on held-out books instead, and how much lower they are
than the control's of the same seed. Arms that differ in their learning rate (`NAME-rate-R`) share a row: the rate with the best accuracy at the end of training.
"""

import argparse
import csv
import re
import sys
from pathlib import Path
from statistics import mean, stdev

from table import answer, files, read

HERE = Path(__file__).resolve().parent
RESULTS, PAPERS = HERE / "results", HERE.parents[2] / "runtime/docs/papers.md"
TABLE = re.compile(r"(<!-- (recall|loss) (\w+): (.*?) -->\n)(.*?)(<!-- end -->)", re.S)


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def collect(waterline, folder, experiment, books):
    from experiments import EXPERIMENTS, SEEDS

    answers, training = [], []
    for arm in EXPERIMENTS[experiment].arms:
        log = folder / f"{experiment}.{arm}.csv"
        if not log.exists():
            print(f"{experiment}/{arm} is not trained")
            continue
        with open(log, newline="") as file:
            lines = list(csv.DictReader(file))
        last = max(int(line["step"]) for line in lines)
        training += [{"arm": arm} | line for line in lines if int(line["step"]) == last]
        control = {"control": EXPERIMENTS[experiment].arms[arm].control} if EXPERIMENTS[experiment].tasks == ("text",) else {}
        for seed in SEEDS:
            answer(waterline, folder, experiment, arm, seed, books)
            for _, name, _ in files(experiment, arm, seed):
                answers += [row | control for row in read(folder / f"{name}.recall.csv").values()]
    if answers:
        write(RESULTS / f"{experiment}.csv", answers)
        write(RESULTS / f"{experiment}.training.csv", training)


def shares(experiment):
    """Returns arm, switches, task, keys and length to the percentages of its seeds."""
    found = {}
    with open(RESULTS / f"{experiment}.csv", newline="") as file:
        for row in csv.DictReader(file):
            arm = row["model"].split(".", 1)[1].rsplit(".", 1)[0]
            key = arm, row["without"], (row["task"], row["keys"], row["length"])
            found.setdefault(key, []).append(100 * float(row["accuracy"]))
    return found


def chosen(experiment, arms):
    """Returns the arms of the table, title to arm: of those that differ in their learning rate the best trained one."""
    accuracy = {}
    with open(RESULTS / f"{experiment}.training.csv", newline="") as file:
        for row in csv.DictReader(file):
            values = [float(value) for name, value in row.items() if name.startswith("accuracy_")]
            accuracy.setdefault(row["arm"], []).append(mean(values))
    best = {}
    for arm in arms:
        title = arm.split("-rate-")[0]
        if title not in best or mean(accuracy[arm]) > mean(accuracy[best[title]]):
            best[title] = arm
    return best


def cell(values, digits=1):
    error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{mean(values):.{digits}f} ± {error:.{digits}f}"


def table(experiment, questions):
    asked = [tuple(question.split()) for question in questions.split(";")]
    found = shares(experiment)
    arms = list(dict.fromkeys(arm for arm, _, _ in found))
    heads = [f"{task} {keys}" + (f" in {length}" if length != "0" else "") for task, keys, length in asked]
    lines = ["| model | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for title, arm in chosen(experiment, arms).items():
        title += f" (rate {arm.split('-rate-')[1]})" if "-rate-" in arm else ""
        for without in dict.fromkeys(switches for a, switches, _ in found if a == arm):
            row = [found.get((arm, without, question)) for question in asked]
            off = " − " + without.replace("+", ", ") if without else ""
            if all(row):
                lines.append(f"| {title}{off} | " + " | ".join(map(cell, row)) + " |")
    return "\n".join(lines) + "\n"


def losses(experiment, shown):
    """Returns the table of the arms named in `shown`."""
    found, controls = {}, {}
    with open(RESULTS / f"{experiment}.csv", newline="") as file:
        for row in csv.DictReader(file):
            arm = row["model"].split(".", 1)[1].rsplit(".", 1)[0]
            found.setdefault((arm, row["without"]), []).append(float(row["loss"]))
            controls[arm] = row["control"]
    arms = chosen(experiment, list(controls))
    lines = ["| model | nats per token | below its control |", "|---|---|---|"]
    for title in shown.split():
        arm = arms[title]
        control = found.get((arms.get(controls[arm]), ""))
        for (_, without), values in (item for item in found.items() if item[0][0] == arm):
            off = " − " + without.replace("+", ", ") if without else ""
            below = [a - b for a, b in zip(control, values, strict=True)] if control else []
            gain = f"{cell(below, 3)} ({controls[arm]})" if below else ""
            lines.append(f"| {title}{off} | {cell(values, 3)} | {gain} |")
    return "\n".join(lines) + "\n"


DRAWN = {"recall": table, "loss": losses}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_models = commands.add_parser("collect")
    of_models.add_argument("waterline")
    of_models.add_argument("folder", type=Path)
    of_models.add_argument("experiments", nargs="*")
    of_models.add_argument("--text", type=Path, help="the folder that text.py has written")
    of_document = commands.add_parser("write")
    of_document.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.command == "collect":
        from experiments import EXPERIMENTS

        for experiment in args.experiments or EXPERIMENTS:
            collect(args.waterline, args.folder, experiment, args.text)
        return
    text = PAPERS.read_text()
    drawn = TABLE.sub(lambda part: part[1] + DRAWN[part[2]](part[3], part[4]) + part[6], text)
    if args.check and drawn != text:
        sys.exit(f"{PAPERS.name} differs from its results: run report.py write")
    if not args.check:
        PAPERS.write_text(drawn)


if __name__ == "__main__":
    main()
