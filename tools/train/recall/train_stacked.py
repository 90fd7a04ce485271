"""Trains one arm of an experiment, all seeds at once: train_stacked.py EXPERIMENT/ARM --out DIR

Writes DIR/EXPERIMENT.ARM.SEED/{config.json,model.safetensors} for each seed and finally DIR/EXPERIMENT.ARM.csv with loss and accuracy.
"""

import argparse
import csv
import math
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import text
from draw import draw
from experiments import EXPERIMENTS, SEEDS, Stage
from export import export, round_matrices
from stacked import AdamW, Stacked
from train import BLOCK, rate

POOL = 100  # steps whose rows are drawn together
LATE = 3  # exit status of a run that ran out of time


class Run:
    def __init__(self, experiment, arm, seeds, smoke, books):
        """`books` is the folder of `text.py`, for an experiment on text."""
        self.name, self.arm, self.setup, self.seeds = f"{experiment}.{arm}", arm, EXPERIMENTS[experiment], seeds
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.stages = [Stage(2, 2, s.length, s.most) for s in self.setup.stages] if smoke else self.setup.stages
        self.books = books if self.setup.tasks == (text.TASK,) else None
        self.text = text.load(books, self.device) if self.books else None
        self.model = Stacked(self.setup.arms[arm].config, self.setup.arms[arm].prepare, seeds, self.device)

    def warm_up(self, stage):
        """Runs forward and backward over rows without questions, which changes nothing."""
        shape = len(self.seeds), stage.rows, stage.length
        tokens = torch.ones(shape, dtype=torch.long, device=self.device)
        loss, _ = self.loss(tokens, torch.zeros(shape, device=self.device), self.open(stage, 0.0))
        torch.autograd.grad(loss, self.model.flat)

    def open(self, stage, progress):
        """Returns the rows in which LTE keeps all tokens, and in which an SSE layer that closes lacks its shared state."""
        share = next(share for until, share in self.setup.open if progress < until)
        return torch.arange(stage.rows, device=self.device) < share * stage.rows

    def loss(self, tokens, asked, open_rows):
        """Returns the sum over seeds, which share no parameters; and for each row loss, right answers, questions [seeds, rows, 3]."""
        logits, penalties = self.model.forward(tokens, open_rows)
        target = tokens.roll(-1, 2)
        loss = F.cross_entropy(logits.flatten(0, 2), target.flatten(), reduction="none").view_as(target) * asked
        # Rows have equal weight, whatever the number of their questions.
        mean = (loss.sum(2) / asked.sum(2).clamp(min=1)).mean(1)
        right = (logits.detach().argmax(-1) == target) * asked
        return (mean + penalties).sum(), torch.stack([loss.detach().sum(2), right.sum(2), asked.sum(2)], 2)

    def draw(self, stage, generators):
        """Draws a pool of rows for every seed: tokens, asked [seeds, POOL rows, length], task [seeds, POOL rows]."""
        rows = POOL * stage.rows
        if self.books:
            drawn = [text.windows(g, self.text, rows, stage.length) for g in generators]
        else:
            drawn = [draw(g, rows, stage.length, stage.most, self.setup.tasks) for g in generators]
        return [torch.stack(parts) for parts in zip(*drawn)]

    def step(self, stage):
        rows = self.at * stage.rows + torch.arange(stage.rows, device=self.device)
        tokens, asked, task = (part.index_select(1, rows) for part in self.pool)
        self.at += 1
        self.model.redraw()
        loss, counts = self.loss(tokens.long(), asked.float(), self.open_rows)
        self.optimizer.step(loss, self.lr)
        for i in range(len(self.setup.tasks)):
            self.sums[:, i] += (counts * (task == i)[..., None]).sum(1)

    def recorded(self, stage, graphs):
        """Returns a function that does a step: on a GPU with `graphs` a CUDA graph."""
        if self.device == "cpu" or not graphs:
            return lambda: self.step(stage)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.warm_up(stage)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step(stage)
        torch.cuda.synchronize()
        return graph.replay

    def train(self, out, end, graphs):
        """Trains, and writes the models and the log of losses. Returns whether it finished before `end` (of `time.time`)."""
        self.optimizer = AdamW(self.model)
        generators = [torch.Generator(self.device).manual_seed(seed) for seed in self.seeds]
        self.at = torch.zeros((), dtype=torch.long, device=self.device)
        self.lr = torch.zeros((), device=self.device)
        self.sums = torch.zeros(len(self.seeds), len(self.setup.tasks), 3, device=self.device)
        total, done, lines = sum(stage.steps for stage in self.stages), 0, []
        for stage in self.stages:
            begun = time.time()
            self.pool = self.draw(stage, generators)
            self.open_rows = self.open(stage, 0.0)
            self.at.zero_()
            advance = self.recorded(stage, graphs)
            for first in range(0, stage.steps, BLOCK):
                progress = (done + first) / total
                if first and first % POOL == 0:
                    for to, new in zip(self.pool, self.draw(stage, generators)):
                        to.copy_(new)
                    self.at.zero_()
                    lines += self.line(done + first)
                self.lr.fill_(self.setup.arms[self.arm].rate * rate(progress))
                self.open_rows.copy_(self.open(stage, progress))
                for _ in range(min(BLOCK, stage.steps - first)):
                    advance()
                if time.time() > end:
                    print(f"{self.name}: step {done + first} of {total} when the time was over", flush=True)
                    return False
            done += stage.steps
            last = self.line(done)
            lines += last
            del advance
            right = "; ".join(" ".join(f"{task} {x:.2f}" for task, x in zip(self.setup.tasks, line[3:])) for line in last)
            print(f"{self.name}: stage of {stage.length} tokens, {time.time() - begun:.1f} s: {right}", flush=True)
        for index, seed in enumerate(self.seeds):
            model = self.model.one(index)
            round_matrices(model)
            export(model, out / f"{self.name}.{seed}")
            if self.books:
                text.add_tokenizer(self.books, out / f"{self.name}.{seed}")
        with open(out / f"{self.name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([["step", "seed", "loss"] + [f"accuracy_{task}" for task in self.setup.tasks]] + lines)
        return True

    def line(self, step):
        """Returns the loss per question and the accuracy by task since the last line, for every seed. A loss that is not finite ends the
        run."""
        sums = self.sums.cpu().clone()
        self.sums.zero_()
        lines = []
        for seed, counts in zip(self.seeds, sums):
            loss = (counts[:, 0].sum() / counts[:, 2].sum().clamp(min=1)).item()
            if not math.isfinite(loss):
                raise ValueError(f"seed {seed}: the loss of step {step} is {loss}")
            lines.append([step, seed, f"{loss:.4f}"] + (counts[:, 1] / counts[:, 2].clamp(min=1)).tolist())
        return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="EXPERIMENT/ARM")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text", type=Path, help="the folder that text.py has written, for the experiment `text`")
    parser.add_argument("--end", type=float, default=math.inf, help="seconds since 1970 at which to give up")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch every kernel by itself")
    parser.add_argument("--smoke", action="store_true", help="two steps of two rows in every stage")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(*args.run.split("/"), SEEDS, args.smoke, args.text)
    if not run.train(args.out, args.end, args.graphs):
        sys.exit(LATE)


if __name__ == "__main__":
    main()
