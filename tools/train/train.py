"""Trains the built-in model for a wall-clock budget, in one call or in several calls.

train.py --data DIR --run DIR --minutes M --total-minutes T [--resume] [--finish]
train.py --data DIR --run DIR --minutes M --finish --start FILE.gguf [--rate R]

Everything that changes during training is a function of the progress p = training time so far / planned total. --finish ends the run with
this call: the plan is stretched or shortened so that the learning rate reaches zero just before --minutes are over. Writes
DIR/checkpoint.pt and DIR/loss.csv. Compiles while `prepare.py` is still running; DIR/ready shows that the data is complete.

--start begins a further run, from the file's rounded weights, with rows of 8,192 tokens and the data of prepare.py --further.
"""

import argparse
import csv
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo
import torch.nn.functional as F

import gguf
from batches import Batches
from model import LTE, Block, Config, Model
from optim import fake_quantized, optimizers
from prepare import FURTHER_LONGEST, LONGEST, MIX, SECOND_PHASE

ROUTER_ON = 0.08  # before: every token is kept (full attention)
CAP_ON = 0.25  # from here a query sees at most `buffer_size` older tokens per head
ALL_CLOSED = 0.85  # until here every token is kept (full attention)
DECAY = 0.68
QUANTIZE = 0.72
PRICE_LEAST, PRICE_MOST, PRICE_STEP = 1e-3, 10.0, 1.02  # of the L1 price, changed at every step
LIFT = 0.01
KEPT = (0.5, 0.02)  # share of the tokens that score above zero, at ROUTER_ON and from CAP_ON on


def learning_rate(p):
    """Returns the share of the full rate: flat, then linear to zero. (The warm-up is counted in steps.)"""
    return 1.0 if p < DECAY else max(0.0, (1 - p) / (1 - DECAY))


def open_share(p):
    """Returns the share of the rows in which every token is kept, so that dropped tokens still receive a gradient."""
    return 1.0 if p < ROUTER_ON else 0.2 if p < CAP_ON else 0.1 if p < ALL_CLOSED else 0.0


def kept_share(p):
    x = min(1.0, max(0.0, (p - ROUTER_ON) / (CAP_ON - ROUTER_ON)))
    return KEPT[0] ** (1 - x) * KEPT[1] ** x


def token_losses(hidden, head, targets):
    """Returns the cross entropy and whether the most probable token is right, per token."""
    logits = F.linear(hidden.to(torch.bfloat16), head.to(torch.bfloat16)) if hidden.is_cuda else F.linear(hidden, head)
    logits = logits.flatten(0, -2)
    loss = F.cross_entropy(logits.float(), targets.flatten(), reduction="none").view_as(targets)
    return loss, logits.detach().argmax(-1).view_as(targets) == targets


# For a further run: steps of warm-up, the initial price, the progress from which its rate falls, and from which no row keeps all its
# tokens.
WARMUP, PRICE, FALLS, CLOSED = 40, 0.05, 0.3, 0.7


@dataclass
class Plan:
    """The settings at a progress p of a run."""

    phase: int  # of the mix
    answers: bool  # whether only the assistant's messages and plain text are learned
    rate: float  # share of the full learning rate
    open_share: float  # of the rows in which every token is kept
    kept_share: float  # the target for a head's share of kept tokens
    capped: bool  # whether a query sees at most `buffer_size` older tokens per head
    routed: bool  # whether the share of kept tokens is controlled at all
    quantized: bool  # whether the model computes with rounded weights


def plan(p, further, rate):
    """Returns the settings at progress p. rate: a further run's, as a share of the full learning rate."""
    second = p >= SECOND_PHASE
    if further:
        return Plan(2, second, rate * min(1.0, (1 - p) / (1 - FALLS)), 0.1 if p < CLOSED else 0.0, KEPT[1], True, True, True)
    return Plan(int(second), second, learning_rate(p), open_share(p), kept_share(p), p >= CAP_ON, p >= ROUTER_ON, p >= QUANTIZE)


class Sparsity:
    """The paper's sparsity control: an L1 price on positive scores, per LTE layer and kv head, that rises while more tokens than the target
    score above zero and falls while fewer do.

    The price has no effect on a token below zero, so the last bias of a head that has dropped almost everything is raised.
    """

    def __init__(self, model, device):
        self.biases = [layer.attn.router.conv_stack.proj.bias for layer in model.model.layers if isinstance(layer.attn, LTE)]
        self.price = torch.zeros(len(self.biases), len(self.biases[0]), device=device)
        self.kept = torch.ones_like(self.price)

    def penalty(self, scores):
        """scores: per layer [B, T, Hk]."""
        return (torch.stack([x.float().relu().mean((0, 1)) for x in scores]) * self.price).mean()

    @torch.no_grad()
    def update(self, scores, share):
        self.kept.lerp_(torch.stack([(x > 0).float().mean((0, 1)) for x in scores]), 0.05)
        rising = (self.price * PRICE_STEP).clamp(min=PRICE_LEAST)
        price = torch.where(self.kept > 1.05 * share, rising, torch.where(self.kept < 0.9 * share, self.price / PRICE_STEP, self.price))
        self.price.copy_(torch.where(price < PRICE_LEAST, 0.0, price).clamp(max=PRICE_MOST))
        for bias, kept in zip(self.biases, self.kept):
            bias.add_(LIFT * (kept < share / 3))

    def state(self):
        return self.price, self.kept

    def load(self, state):
        self.price.copy_(state[0])
        self.kept.copy_(state[1])


def warm_up(model, losses, args, flex):
    """Compiles the blocks on a row of random tokens; the weights stay unchanged."""
    tokens = torch.randint(6, model.config.vocab_size, (args.rows, args.length), device="cuda")
    pos = torch.arange(args.length, device="cuda").expand(args.rows, -1).contiguous()
    model.train()
    row = model.row(pos, torch.zeros(args.rows, dtype=torch.bool, device="cuda"), flex=flex, angle=pos.clone())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden, scores = model(tokens, row)
        loss, _ = losses(hidden, model.head, tokens)
    (loss.mean() + sum(x.float().mean() for x in scores)).backward()
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="wall clock of this call, compilation included")
    parser.add_argument("--total-minutes", type=float, default=1.0, help="planned training time of all calls")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--finish", action="store_true")
    parser.add_argument("--start", type=Path, metavar="GGUF", help="a further run, from these weights")
    parser.add_argument("--rate", type=float, default=0.5, help="of a further run: its share of --lr")
    parser.add_argument("--config", type=Path, help="config.json; default: the built-in model's sizes")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--length", type=int)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--warmup", type=int, help="steps")
    parser.add_argument("--no-fake-quant", dest="fake_quant", action="store_false")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--dense", action="store_true", help="dense attention instead of FlexAttention (slow; few rows)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    called = time.time()
    further = args.start is not None
    args.length = args.length or (FURTHER_LONGEST if further else LONGEST)
    args.rows = args.rows or 65536 // args.length
    args.warmup = args.warmup or (WARMUP if further else 100)
    args.run.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)

    model = Model(Config.load(args.config) if args.config else Config()).to(device)
    sparsity = Sparsity(model, device)
    opts = optimizers(model, args.lr)
    step, trained, data_state, tokens = 0, 0.0, None, 0
    checkpoint = args.run / "checkpoint.pt"
    if further:
        model.load_state_dict(gguf.load(args.start, {k: v.shape for k, v in model.state_dict().items()}))
        sparsity.kept.fill_(plan(0, further, args.rate).kept_share)
        sparsity.price.fill_(PRICE)
    if args.resume:
        saved = torch.load(checkpoint, map_location=device, weights_only=False)
        model.load_state_dict(saved["model"])
        for opt, state in zip(opts, saved["opts"]):
            opt.load_state_dict(state)
        sparsity.load(saved["sparsity"])
        step, trained, data_state, tokens = saved["step"], saved["trained"], saved["data"], saved["tokens"]
        torch.manual_seed(args.seed + step)
    losses, flex = token_losses, device == "cuda" and not args.dense
    if args.compile and device == "cuda":
        torch._dynamo.config.cache_size_limit = 64
        model.block = torch.compile(Block.forward, dynamic=False)
        losses = torch.compile(token_losses, dynamic=False)
        warm_up(model, losses, args, flex)
    while not (args.data / "ready").exists():
        if time.time() - called > args.minutes * 60 / 2:
            raise SystemExit(f"{args.data}/ready has not appeared")
        time.sleep(0.2)
    print(f"compiled, and data found, after {time.time() - called:.0f} s", flush=True)
    batches = Batches(args.data, args.rows, args.length, data_state, plan(0, further, args.rate).phase, args.seed + step)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters; step {step}, {trained / 60:.1f} min trained; "
        f"{sum(len(g.tokens) for g in batches.groups.values()) / 1e6:.0f} M tokens of data", flush=True)


    def save():
        temporary = checkpoint.with_suffix(".tmp")
        torch.save({"model": model.state_dict(), "opts": [o.state_dict() for o in opts], "step": step,
            "trained": trained, "data": batches.state(), "tokens": tokens, "sparsity": sparsity.state(),
            "config": model.config.to_json()}, temporary)
        os.replace(temporary, checkpoint)

    log_path = args.run / "loss.csv"
    fresh = not (args.resume and log_path.exists())
    log = open(log_path, "w" if fresh else "a", newline="")
    writer = csv.writer(log)
    names = list(MIX)
    if fresh:
        writer.writerow(["step", "minutes", "tokens", "lr", "loss", "recall_accuracy", "kept", "grad_norm"] + names)
    total = args.total_minutes * 60
    sums = torch.zeros(len(names), 2, device=device)
    recall = torch.zeros(2, device=device)
    first_step, saved_at, last_log = step, time.time(), (time.time(), 0)
    clock = None
    model.train()
    while True:
        now = time.time()
        if step == first_step + 2:  # the first two steps compile
            if device == "cuda":
                torch.cuda.synchronize()
            now = clock = time.time()
            last_log = (now, tokens)
            if args.finish:
                total = trained + max(1.0, called + args.minutes * 60 - now - 3)
            print(f"compiled in {now - called:.0f} s", flush=True)
        elapsed = trained + (now - clock if clock else 0)
        p = elapsed / total
        if p >= 1 or now - called > args.minutes * 60 - 3:
            break
        now_is = plan(p, further, args.rate)
        rate = now_is.rate * min(1.0, (step + 1) / args.warmup)
        batch = batches.next(now_is.phase, now_is.answers, device)
        # Dropped rows are spread evenly; while the router is off, all rows are open.
        open_rows = torch.rand(args.rows, device=device) < now_is.open_share
        with fake_quantized(model, args.fake_quant and now_is.quantized):
            row = model.row(batch["pos"], open_rows, capped=now_is.capped, flex=flex, angle=batch["angle"])
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                hidden, scores = model(batch["tokens"], row)
                loss, right = losses(hidden, model.head, batch["targets"])
            weight = batch["weight"]
            mean = (loss * weight).sum() / weight.sum().clamp(min=1)
            (mean + sparsity.penalty(scores)).backward()
        if now_is.routed:
            sparsity.update([s.detach() for s in scores], now_is.kept_share)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = group["base_lr"] * rate
            opt.step()
        model.zero_grad(set_to_none=True)
        step, tokens = step + 1, tokens + batch["tokens"].numel()

        with torch.no_grad():
            learned = (weight > 0).float()
            flat = batch["group"].flatten()
            sums[:, 0].index_add_(0, flat, (loss.detach() * learned).flatten())
            sums[:, 1].index_add_(0, flat, learned.flatten())
            recall += torch.stack([(right & batch["recalled"]).sum(), batch["recalled"].sum()])
        if step % 50 == 0 or step == first_step + 1:
            if device == "cuda":
                torch.cuda.synchronize()
            speed = (tokens - last_log[1]) / (time.time() - last_log[0]) if clock else 0
            last_log = (time.time(), tokens)
            by_group = (sums[:, 0] / sums[:, 1].clamp(min=1)).tolist()
            accuracy = (recall[0] / recall[1].clamp(min=1)).item()
            row_out = [step, f"{elapsed / 60:.3f}", tokens, f"{rate * args.lr:.6f}", f"{mean.item():.4f}", f"{accuracy:.4f}",
                f"{sparsity.kept.mean().item():.4f}", f"{norm.item():.3f}"] + [f"{x:.4f}" for x in by_group]
            writer.writerow(row_out)
            log.flush()
            if step % 200 == 0 or step <= first_step + 50:
                groups = " ".join(f"{n}={x:.2f}" for n, x in zip(names, by_group) if x)
                print(f"step {step} p {p:.3f} loss {mean.item():.3f} recall {accuracy:.3f} kept {sparsity.kept.mean().item():.4f} "
                    f"[{sparsity.kept.min().item():.4f} {sparsity.kept.max().item():.4f}] price {sparsity.price.mean().item():.4f} "
                    f"norm {norm.item():.2f} {speed / 1e3:.0f}k tok/s | {groups}", flush=True)
            sums.zero_()
            recall.zero_()
            if not torch.isfinite(mean):
                raise SystemExit(f"loss is {mean.item()} at step {step}; the last checkpoint is kept")
        elif step % 10 == 0 and device == "cuda":
            torch.cuda.synchronize()  # keeps the clock accurate
        if time.time() - saved_at > 120 and clock:
            trained, clock = trained + time.time() - clock, time.time()
            save()
            saved_at = time.time()
    if clock:
        trained += time.time() - clock
    save()
    print(f"stopped at step {step}, p {trained / total:.3f}, {trained / 60:.2f} min trained, {tokens / 1e6:.1f} M tokens; sets read: "
        + " ".join(f"{n}={e:.2f}" for n, e in batches.epochs().items()), flush=True)
    if device == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    os._exit(0)  # the batch thread may be blocked


if __name__ == "__main__":
    main()
