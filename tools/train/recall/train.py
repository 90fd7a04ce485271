"""Trains models on the recall tasks, concurrently in one process: train.py [MODEL...] --out DIR

Every model sees the same rows in the same order, with the same optimizer and schedule. A model's step, a few thousand small kernels, is
recorded as a CUDA graph and replayed on a separate stream, so that the models fill the gaps between each other's kernels. Rows grow from a
few pairs to many (STAGES): the model learns to bind values to keys with few pairs, and that carries over.

Writes DIR/MODEL (a Hugging Face directory, rewritten after every stage) and DIR/MODEL.loss.csv.
"""

import argparse
import csv
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from draw import TASKS, draw
from export import export, round_matrices
from models import CONFIGS, Model

# Per stage: progress at its end, steps, tokens of a row, maximum number of pairs in a row, rows of a step.
STAGES = ((0.12, 1680, 32, 6, 256), (0.25, 740, 64, 14, 256), (0.45, 840, 128, 30, 128), (1.0, 2600, 384, 64, 64))
WARMUP, DECAY = 0.02, 0.5  # progress until which the learning rate rises, and from which it falls
OPEN = ((0.3, 1.0), (0.85, 0.15), (1.0, 0.0))  # (progress, share): until this progress, LTE keeps all tokens in this share of the rows
BLOCK = 20  # steps between two changes of the learning rate
POOL = 200  # steps whose rows are drawn together
LOG = 100  # steps per line of the log


def rate(p):
    """Returns the share of the full learning rate at progress p."""
    if p < DECAY:
        return min(1.0, p / WARMUP)
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (p - DECAY) / (1 - DECAY)))


def optimizer(model, lr):
    """Returns AdamW with weight decay on matrices only. The learning rate is a tensor, so that a recorded step can change it."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decayed = [p for n, p in named if p.dim() == 2 and "embeddings" not in n]
    plain = [p for n, p in named if p.dim() != 2 or "embeddings" in n]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    cuda = plain[0].is_cuda
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), capturable=cuda, fused=cuda)


class Stage:
    """The rows of a stage, shared by all models."""

    def __init__(self, generator, length, most, rows):
        self.generator, self.length, self.most, self.rows = generator, length, most, rows
        self.open = torch.ones(rows, dtype=torch.bool, device=generator.device)
        self.tokens, self.asked, self.task = self.drawn()

    def drawn(self):
        return draw(self.generator, POOL * self.rows, self.length, self.most)

    def renew(self):
        for to, new in zip((self.tokens, self.asked, self.task), self.drawn()):
            to.copy_(new)


class Trainee:
    """A model in training."""

    def __init__(self, name, seed, lr, folder, device):
        torch.manual_seed(seed)
        self.name, self.folder = name, folder
        self.model = Model(CONFIGS[name]).to(device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.opt = optimizer(self.model, lr)
        self.at = torch.zeros((), dtype=torch.long, device=device)  # the next step's index in the pool
        self.sums = torch.zeros(len(TASKS), 3, device=device)  # loss, right, questions
        self.stream = torch.cuda.Stream() if device == "cuda" else None
        self.file = open(folder / f"{name}.loss.csv", "w", newline="")
        self.log = csv.writer(self.file)
        self.log.writerow(["step", "seconds", "loss"] + [f"{kind}_{task}" for kind in ("loss", "accuracy") for task in TASKS])

    def step(self, stage):
        rows = self.at * stage.rows + torch.arange(stage.rows, device=self.at.device)
        tokens, asked, task = stage.tokens[rows].long(), stage.asked[rows].float(), stage.task[rows]
        self.at += 1
        logits, penalty = self.model(tokens, stage.open)
        target = tokens.roll(-1, 1)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        # Rows have equal weight, whatever the number of their questions.
        mean = ((loss * asked).sum(1) / asked.sum(1).clamp(min=1)).mean()
        self.opt.zero_grad(set_to_none=True)
        (mean + penalty).backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0, foreach=True)
        self.opt.step()
        right = (logits.detach().argmax(-1) == target) * asked
        rows = torch.stack([(loss.detach() * asked).sum(1), right.sum(1), asked.sum(1)], 1)
        self.sums.index_add_(0, task, rows)

    def prepare(self, stage):
        """Sets `advance`, which does a step of the stage. Recording needs a few steps first; with a learning rate of zero they change
        nothing."""
        if self.stream is None:
            self.advance = lambda: self.step(stage)
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step(stage)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):  # a separate stream, since cuBLAS keeps scratch memory for each stream
            self.step(stage)
        torch.cuda.synchronize()

        def replay():
            with torch.cuda.stream(self.stream):
                graph.replay()

        self.advance = replay

    def write(self, step, seconds):
        """Writes a line of the log; returns whether the loss is finite."""
        sums = self.sums.cpu().clone()
        self.sums.zero_()
        self.loss, self.right = sums[:, 0] / sums[:, 2].clamp(min=1), sums[:, 1] / sums[:, 2].clamp(min=1)
        self.mean = (sums[:, 0].sum() / sums[:, 2].sum()).item()
        values = self.loss.tolist() + self.right.tolist()
        self.log.writerow([step, f"{seconds:.1f}", f"{self.mean:.4f}"] + [f"{x:.4f}" for x in values])
        self.file.flush()
        return math.isfinite(self.mean)

    def __str__(self):
        accuracy = " ".join(f"{task} {x:.3f}" for task, x in zip(TASKS, self.right.tolist()))
        return f"{self.name}: loss {self.mean:.3f}, {accuracy}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(CONFIGS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    lr = torch.zeros((), device=device)
    trainees = [Trainee(name, args.seed, lr, args.out, device) for name in args.models]
    generator = torch.Generator(device).manual_seed(args.seed)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    start, step, p = time.time(), 0, 0.0
    for number, (end, steps, length, most, rows) in enumerate(STAGES):
        stage = Stage(generator, length, most, rows)
        lr.zero_()
        for trainee in trainees:
            trainee.prepare(stage)
            trainee.at.zero_()
            trainee.sums.zero_()
        first, begun, before = step, time.time(), p
        while step - first < steps:
            p = before + (end - before) * (step - first) / steps
            lr.fill_(args.lr * rate(p))
            stage.open.copy_(torch.arange(rows, device=device) < next(share for until, share in OPEN if p < until) * rows)
            wait()
            for _ in range(BLOCK):
                for trainee in trainees:
                    trainee.advance()
            step += BLOCK
            wait()
            if (step - first) % POOL == 0:
                stage.renew()
                for trainee in trainees:
                    trainee.at.zero_()
            if (step - first) % LOG == 0:
                trainees = [t for t in trainees if t.write(step, time.time() - start) or print(f"{t.name}: lost at step {step}", flush=True)]
        p = end
        print(f"stage {number + 1}: {step - first} steps in {time.time() - begun:.0f} s, {time.time() - start:.0f} s in all", flush=True)
        for trainee in trainees:
            if (step - first) % LOG:
                trainee.write(step, time.time() - start)
            print(f"  {trainee}", flush=True)
            trainee.advance = None  # releases a recorded step's memory
            if number + 1 == len(STAGES):
                round_matrices(trainee.model)
            export(trainee.model, args.out / trainee.name)
    memory = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if device == "cuda" else ""
    print(f"{step} steps in {time.time() - start:.0f} s{memory}", flush=True)


if __name__ == "__main__":
    main()
