"""Times one token mixer at its paper's size: waterline, and the reference's PyTorch code on the same CPU.

    pip install torch flash-linear-attention transformers
    python tools/reference/layer_times.py target/release/waterline > layers.md

For every row `waterline synth` makes a model of a few layers with only the mixer, in f32, and `waterline bench` times it. The reference has
as many layers of the same sizes, also in f32: flash-linear-attention's plain PyTorch functions (fla/ops/*/naive.py) between PyTorch
projections, since its layers need Triton and a GPU; the models of transformers for Mamba and Mamba-2; PyTorch's own attention. A dash means
that no code runs on a CPU. The two programs alternate; each time is a median over tokens, and the best of the rounds is shown. Progress
goes to standard error.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

LAYERS = 4
PROMPT = 512
DEPTH = 1536
STEPS = 32


def references():
    """Returns the reference's layers by name: functions from a width to a `torch.nn.Module`."""
    import torch
    import torch.nn.functional as F
    from fla.ops.gated_delta_rule.naive import naive_chunk_gated_delta_rule, naive_recurrent_gated_delta_rule
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.gsa.naive import naive_recurrent_gsa
    from fla.ops.retention.naive import naive_retention
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
    from torch import nn

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Mixer(nn.Module):
        """Norm, projections, heads, the mixer's own computation, output projection, residual."""

        def __init__(self, hidden, heads, key, value, kv_heads=None):
            super().__init__()
            self.heads, self.kv_heads = heads, kv_heads or heads
            self.norm = nn.RMSNorm(hidden)
            self.q = linear(hidden, heads * key)
            self.k = linear(hidden, self.kv_heads * key)
            self.v = linear(hidden, self.kv_heads * value)
            self.o = linear(heads * value, hidden)

        def forward(self, x, state):
            h = self.norm(x)
            split = lambda y, heads: y.unflatten(-1, (heads, -1))
            q, k, v = split(self.q(h), self.heads), split(self.k(h), self.kv_heads), split(self.v(h), self.kv_heads)
            o, state = self.mix(h, q, k, v, state)
            return x + self.o(o.flatten(-2)), state

    class Gated(Mixer):
        def __init__(self, hidden, heads, key, value):
            super().__init__(hidden, heads, key, value)
            self.g = linear(hidden, heads * value)
            self.o_norm = nn.RMSNorm(value)

        def gate(self, h, o):
            return self.o_norm(o) * F.silu(self.g(h).unflatten(-1, (self.heads, -1)))

    class Gla(Gated):
        def __init__(self, hidden):
            super().__init__(hidden, 4, 256, 512)
            self.gk = nn.Sequential(linear(hidden, 16), nn.Linear(16, 4 * 256))

        def mix(self, h, q, k, v, state):
            gk = F.logsigmoid(self.gk(h)).unflatten(-1, (self.heads, -1)) / 16
            o, state = naive_recurrent_gla(q, k, v, gk, state, True)
            return self.gate(h, o), state

    class RetNet(Gated):
        def __init__(self, hidden):
            super().__init__(hidden, 8, 256, 512)
            self.decay = torch.log1p(-(2.0 ** (-5.0 - torch.arange(8))))

        def mix(self, h, q, k, v, state):
            if q.shape[1] > 1:  # the parallel form; the state would need a second pass
                o = naive_retention(*(y.transpose(1, 2) for y in (q, k, v))).transpose(1, 2)
            else:
                g = self.decay.expand(1, 1, 8)
                o, state = naive_recurrent_simple_gla(q, k, v, g, initial_state=state, output_final_state=True)
            return self.gate(h, o), state

    class GatedDeltaNet(Gated):
        def __init__(self, hidden):
            super().__init__(hidden, 8, 256, 256)
            self.a, self.b = linear(hidden, 8), linear(hidden, 8)
            conv = lambda: nn.Conv1d(2048, 2048, 4, groups=2048, bias=False)
            self.convs = nn.ModuleList([conv(), conv(), conv()])

        def mix(self, h, q, k, v, state):
            lasts, state = state or ([torch.zeros(1, 2048, 3)] * 3, None)
            inputs = [torch.cat([last, y.flatten(-2).transpose(1, 2)], -1) for last, y in zip(lasts, (q, k, v))]
            lasts = [y[..., -3:] for y in inputs]
            q, k, v = (
                F.silu(conv(y)).transpose(1, 2).unflatten(-1, (8, -1)) for conv, y in zip(self.convs, inputs)
            )
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            beta, g = self.b(h).sigmoid(), -F.softplus(self.a(h))
            if q.shape[1] > 1:
                o, state = naive_chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state, output_final_state=True)
            else:
                o, state = naive_recurrent_gated_delta_rule(
                    q, k, v, beta, g, initial_state=state, output_final_state=True
                )
            return self.gate(h, o), (lasts, state)

    class Gsa(Mixer):
        def __init__(self, hidden):
            super().__init__(hidden, 4, 512, 512)
            self.f = linear(hidden, 4 * 64)
            self.o_norm = nn.RMSNorm(hidden)

        def mix(self, h, q, k, v, state):
            f = F.logsigmoid(self.f(h)).unflatten(-1, (4, -1)) / 8
            o, state = naive_recurrent_gsa(F.silu(q), F.silu(k), F.silu(v), 1 - f.exp(), f, 1.0, state, True)
            return self.o_norm(F.silu(o).flatten(-2)).unflatten(-1, (4, -1)), state

    class Attention(Mixer):
        """Attention over keys and values kept for DEPTH tokens and a few more, without the rotation."""

        def __init__(self, hidden, kv_heads, window=None):
            super().__init__(hidden, 32, 64, 64, kv_heads)
            self.window = window

        def mix(self, h, q, k, v, state):
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
            past, cache = state or (0, torch.zeros(2, 1, self.kv_heads, DEPTH + PROMPT, 64))
            end = past + q.shape[2]
            cache[0][:, :, past:end], cache[1][:, :, past:end] = k, v
            begin = max(0, end - self.window) if self.window and q.shape[2] == 1 else 0
            keys, values = cache[0][:, :, begin:end], cache[1][:, :, begin:end]
            causal = q.shape[2] > 1
            o = F.scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=True)
            return o.transpose(1, 2), (end, cache)

    class Stack(nn.Module):
        """LAYERS layers; `start` returns a state at which decoding begins."""

        def __init__(self, kind, hidden, *arguments):
            super().__init__()
            self.hidden = hidden
            self.layers = nn.ModuleList(kind(hidden, *arguments) for _ in range(LAYERS))
            self.full = isinstance(self.layers[0], Attention)

        def start(self):
            if not self.full:
                return self.read(1, [None] * LAYERS)
            caches = (torch.randn(2, 1, layer.kv_heads, DEPTH + PROMPT, 64) for layer in self.layers)
            return [(DEPTH, cache) for cache in caches]

        def read(self, tokens, states=None):
            x = torch.randn(1, tokens, self.hidden)
            after = []
            for layer, state in zip(self.layers, states or [None] * LAYERS):
                x, state = layer(x, state)
                after.append(state)
            return after

    class Transformers:
        """A model of transformers whose layers are only mixers."""

        def __init__(self, model):
            self.model = model.eval()

        def start(self):
            return self.read(4)

        def read(self, tokens, cache=None):
            ids = torch.randint(0, 256, (1, tokens))
            return self.model(ids, cache_params=cache, use_cache=True).cache_params

    def mamba():
        from transformers import MambaConfig, MambaModel

        return Transformers(MambaModel(MambaConfig(vocab_size=256, hidden_size=2048, num_hidden_layers=LAYERS)))

    def mamba2():
        from transformers import Mamba2Config, Mamba2Model

        sizes = {"hidden_size": 2048, "num_heads": 64, "head_dim": 64, "n_groups": 1, "state_size": 128}
        return Transformers(Mamba2Model(Mamba2Config(vocab_size=256, num_hidden_layers=LAYERS, **sizes)))

    return {
        "gla-1.3b": lambda: Stack(Gla, 2048),
        "retnet-1.3b": lambda: Stack(RetNet, 2048),
        "gdn-1.3b": lambda: Stack(GatedDeltaNet, 2048),
        "gsa-1.3b": lambda: Stack(Gsa, 2048),
        "mamba-1.4b": mamba,
        "mamba2-1.3b": mamba2,
        "swa-1.3b": lambda: Stack(Attention, 2048, 8, 1024),
        "transformer-1.3b": lambda: Stack(Attention, 2048, 8),
    }


# Preset, name, paper.
ROWS = [
    ("gla-1.3b", "GLA", "2312.06635"),
    ("retnet-1.3b", "RetNet", "2307.08621"),
    ("gdn-1.3b", "Gated DeltaNet", "2412.06464"),
    ("gsa-1.3b", "gated slot attention", "2409.07146"),
    ("sla-gla-1.3b", "SLA on GLA", "2602.01744"),
    ("sla-retnet-1.3b", "SLA on RetNet", "2602.01744"),
    ("sla-gdn-1.3b", "SLA on Gated DeltaNet", "2602.01744"),
    ("sse-n4k1-1.3b", "SSE, 1 of 4 partitions", "2507.16577"),
    ("sse-n16k1-1.3b", "SSE, 1 of 16 partitions", "2507.16577"),
    ("sse-gdn-n4k1-1.3b", "SSE of GDN, 1 of 4 partitions", "2507.16577"),
    ("lte-1.3b", "learned token eviction", "2510.20787"),
    ("nsa-1.3b", "native sparse attention", "2502.11089"),
    ("mamba-1.4b", "Mamba", "2312.00752"),
    ("mamba2-1.3b", "Mamba-2", "2405.21060"),
    ("hax-mamba-790m", "HAX on Mamba", "2507.00449"),
    ("hax-mamba2-790m", "HAX on Mamba-2", "2507.00449"),
    ("swa-1.3b", "window of 1024", ""),
    ("transformer-1.3b", "full attention", ""),
]


class Ours:
    """A model file of LAYERS mixers."""

    def __init__(self, program, preset, folder, threads):
        self.program, self.file, self.threads = program, os.path.join(folder, "model.gguf"), threads
        size = ["--layers", str(LAYERS), "--mixers-only", "--vocab", "256", "--type", "f32"]
        self.run("synth", preset, *size, "-o", self.file)

    def run(self, *arguments):
        return subprocess.run([self.program, *arguments], check=True, stdout=subprocess.PIPE).stdout

    def bytes(self):
        """Returns the bytes of a layer's state, and the bytes that a token reads and writes."""
        report = json.loads(self.run("inspect", self.file, "--json", "--context", str(DEPTH)))
        blocks = report["session"]["layers"]
        total = lambda key: sum(block[key] for block in blocks) // len(blocks)
        return total("bytes"), total("read_per_token") + total("written_per_token")

    def times(self):
        """Returns the seconds per layer for each token of a prompt, and for a token at DEPTH."""
        plan = ["--prompt", str(PROMPT), "--gen", str(STEPS), "--depth", str(DEPTH), "--context", str(DEPTH + STEPS + 2)]
        report = json.loads(self.run("bench", self.file, *plan, "--threads", str(self.threads), "--json", "-"))
        prefill = 1 / report["prefill_tokens_per_s"]
        return prefill / LAYERS, report["depths"][0]["p50_us"] * 1e-6 / LAYERS


class Theirs:
    """The reference's layers."""

    def __init__(self, make):
        self.model = make()

    def times(self):
        seconds = []
        state = self.model.start()
        for _ in range(STEPS):
            start = time.perf_counter()
            state = self.model.read(1, state)
            seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        self.model.read(PROMPT)
        prefill = (time.perf_counter() - start) / PROMPT
        return prefill / LAYERS, median(seconds) / LAYERS


def count(number):
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the waterline program")
    parser.add_argument("--only", nargs="+", metavar="PRESET", help="these rows")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-reference", action="store_true", help="waterline alone, without PyTorch")
    arguments = parser.parse_args()

    kinds = {}
    if not arguments.no_reference:
        import torch

        torch.set_num_threads(arguments.threads)
        torch.set_grad_enabled(False)
        kinds = references()
    print("| mixer | paper | preset | state of a layer | touched by a token | prefill, tokens/s: waterline / PyTorch | decode, us/token: waterline / PyTorch |")
    print("|---|---|---|---|---|---|---|")
    for preset, name, paper in ROWS:
        if arguments.only and preset not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            sides = [Ours(arguments.program, preset, folder, arguments.threads)]
            if preset in kinds:
                sides.append(Theirs(kinds[preset]))
            state, touched = sides[0].bytes()
            turns = [[] for _ in sides]
            for turn in range(arguments.turns):
                for side, times in zip(sides, turns):
                    times.append(side.times())
                    print(f"{preset}: {type(side).__name__} {turn + 1}: {times[-1]}", file=sys.stderr)
        best = [[min(times) for times in zip(*side)] for side in turns]
        prefill = " / ".join(f"{1 / side[0]:,.0f}" for side in best)
        decode = " / ".join(f"{1e6 * side[1]:,.0f}" for side in best)
        dash = " / -" if len(best) == 1 else ""
        paper = f"arXiv {paper}" if paper else ""
        cells = [name, paper, f"`{preset}`", count(state), count(touched), prefill + dash, decode + dash]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
