"""Trains one model on the recall tasks: train.py MODEL --data FILE.npz --out DIR

Every model sees the same rows in the same order, with the same optimizer and schedule. One step of a few thousand small kernels is
recorded as a CUDA graph and replayed. Writes DIR/MODEL (a Hugging Face directory) and DIR/MODEL.loss.csv.
"""

import argparse
import csv
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from data import TASKS
from export import export, round_matrices
from models import CONFIGS, Model

BATCH = 64
WARMUP = 0.04  # of the steps
OPEN = ((0.15, 1.0), (0.85, 0.15), (1.0, 0.0))  # until which progress LTE keeps all tokens of which share of the rows


def rate(p):
    """Share of the full learning rate at progress p."""
    return p / WARMUP if p < WARMUP else 0.5 + 0.5 * math.cos(math.pi * (p - WARMUP) / (1 - WARMUP))


def optimizer(model, lr):
    """AdamW; matrices decay, all else does not. The learning rate is a tensor, so that a recorded step can change it."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    decayed = [p for n, p in named if p.dim() == 2 and "embeddings" not in n]
    plain = [p for n, p in named if p.dim() != 2 or "embeddings" in n]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    cuda = plain[0].is_cuda
    return torch.optim.AdamW(groups, lr=torch.tensor(lr, device=plain[0].device), betas=(0.9, 0.95), capturable=cuda, fused=cuda)


class Step:
    """One step on fixed buffers, so that it can be recorded."""

    def __init__(self, model, opt, length, device):
        self.model, self.opt = model, opt
        self.tokens = torch.zeros(BATCH, length, dtype=torch.long, device=device)
        self.asked = torch.zeros(BATCH, length, dtype=torch.bool, device=device)
        self.task = torch.zeros(BATCH, dtype=torch.long, device=device)
        self.open = torch.zeros(BATCH, dtype=torch.bool, device=device)
        self.sums = torch.zeros(len(TASKS), 3, device=device)  # loss, right, questions

    def run(self):
        logits, penalty = self.model(self.tokens, self.open)
        target = self.tokens.roll(-1, 1)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)
        asked = self.asked.float()
        # Rows count alike, whatever the number of their questions.
        mean = ((loss * asked).sum(1) / asked.sum(1).clamp(min=1)).mean()
        self.opt.zero_grad(set_to_none=True)
        (mean + penalty).backward()
        torch.nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], 1.0, foreach=True)
        self.opt.step()
        right = (logits.detach().argmax(-1) == target) * asked
        rows = torch.stack([(loss.detach() * asked).sum(1), right.sum(1), asked.sum(1)], 1)
        self.sums.index_add_(0, self.task, rows)

    def record(self):
        """Returns what replays a step. The warm-up has rows of zeros and no learning rate."""
        for group in self.opt.param_groups:
            group["lr"].zero_()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        return graph.replay


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="no CUDA graph")
    parser.add_argument("--steps", type=int, help="stop early (the schedule is that of all rows)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="hasten the schedule if the rows take longer than this")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = Model(CONFIGS[args.model]).to(device)
    opt = optimizer(model, args.lr)
    data = np.load(args.data)
    rows = {name: torch.from_numpy(data[name]).to(device) for name in ("tokens", "asked", "task")}
    step = Step(model, opt, rows["tokens"].shape[1], device)
    advance = step.run if args.eager or device == "cpu" else step.record()
    steps = len(rows["task"]) // BATCH
    args.out.mkdir(parents=True, exist_ok=True)
    with open(args.out / f"{args.model}.loss.csv", "w", newline="") as file:
        log = csv.writer(file)
        log.writerow(["step", "seconds", "loss"] + [f"{kind}_{task}" for kind in ("loss", "accuracy") for task in TASKS])
        step.sums.zero_()
        start = time.time()
        last = args.steps or steps
        for i in range(last):
            if device == "cuda" and i % 10 == 0:
                torch.cuda.synchronize()  # keeps the clock honest
            p = max(i / steps, (time.time() - start) / args.seconds)
            if p >= 1:
                i -= 1
                break
            batch = slice(i * BATCH, (i + 1) * BATCH)
            for name in ("tokens", "asked", "task"):
                getattr(step, name).copy_(rows[name][batch])
            step.open.copy_(torch.arange(BATCH, device=device) < next(share for end, share in OPEN if p < end) * BATCH)
            for group in opt.param_groups:
                group["lr"].fill_(args.lr * rate(p))
            advance()
            if (i + 1) % 100 == 0 or i + 1 == last:
                sums = step.sums.cpu().clone()
                step.sums.zero_()
                loss, right = sums[:, 0] / sums[:, 2].clamp(min=1), sums[:, 1] / sums[:, 2].clamp(min=1)
                mean = sums[:, 0].sum() / sums[:, 2].sum()
                log.writerow([i + 1, f"{time.time() - start:.1f}", f"{mean:.4f}"] + [f"{x:.4f}" for x in loss.tolist() + right.tolist()])
                file.flush()
                if not math.isfinite(mean):
                    raise SystemExit(f"{args.model}: loss is {mean} at step {i + 1}")
    accuracy = " ".join(f"{task} {x:.3f}" for task, x in zip(TASKS, right.tolist()))
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0
    print(f"{args.model}: {i + 1} steps in {time.time() - start:.0f} s, loss {mean:.3f}, {accuracy}, {memory:.1f} GiB", flush=True)
    round_matrices(model)
    export(model, args.out / args.model)


if __name__ == "__main__":
    main()
