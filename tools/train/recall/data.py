"""Sequences to train on, the same for every model: data.py --rows N --out FILE.npz

Row i is drawn with a seed of its own, far from those of the evaluation. The first rows have few pairs; from RAMP of the rows on, up to 64.
"""

import argparse
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from tasks import JOINT_CONTEXTS, SplitMix64, sequence, shortest

LENGTH = 384  # tokens of a row, padded
TASKS = ("mqar", "needles", "joint")
FIRST_SEED = 2**40  # evaluation counts its seeds from 1
RAMP = 0.3


def draw(job):
    """(number of the row, most quads of pairs) to (tokens, questions, task)."""
    i, most = job
    rng = SplitMix64(FIRST_SEED + i)
    task = rng.below(len(TASKS))
    if TASKS[task] == "needles":
        keys = 1 + rng.below(8)
        length = 64 + rng.below(LENGTH - 63)
    else:
        keys = JOINT_CONTEXTS * (1 + rng.below(most))
        # A quarter of the rows has filler.
        length = rng.below(LENGTH + 1) if rng.below(4) == 0 else 0
    assert shortest(TASKS[task], keys) <= LENGTH
    s = sequence(TASKS[task], keys, length, rng.next())
    return bytes(s.tokens).ljust(LENGTH, b"\0"), [p for p, _ in s.questions], task


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    jobs = ((i, min(16, 4 + int(12 * i / (RAMP * args.rows)))) for i in range(args.rows))
    tokens = np.zeros((args.rows, LENGTH), np.uint8)
    asked = np.zeros((args.rows, LENGTH), bool)
    task = np.zeros(args.rows, np.uint8)
    with Pool() as pool:
        for i, (row, questions, t) in enumerate(pool.imap(draw, jobs, chunksize=512)):
            tokens[i], task[i] = np.frombuffer(row, np.uint8), t
            asked[i, questions] = True
    np.savez(args.out, tokens=tokens, asked=asked, task=task)


if __name__ == "__main__":
    main()
