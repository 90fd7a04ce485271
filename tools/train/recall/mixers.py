"""Linear mixers in training form, with the tensor names of flash-linear-attention: RetNet, GLA and Gated DeltaNet (with or without softmax
head gates), GSA, SSE.

Every mixer takes x [B, T, D] and `row` (see models.py) and returns its output and a penalty to add to the loss (or None).
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import model
from model import Weight, gated_delta_rule, l2, rms, rotary, rotate, shift, short_conv
from scan import grouped_scan, linear_scan, scalar_scan


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


def low_rank(inputs, rank, outputs, bias=False):
    return nn.Sequential(linear(inputs, rank), linear(rank, outputs, bias))


def conv(x, weight, pos):
    """Depthwise causal convolution without an activation: x [B, T, C], weight [C, 1, W]."""
    W = weight.shape[-1]
    return sum(weight[:, 0, W - 1 - j] * shift(x, j, pos) for j in range(W))


def split(x, heads):
    """[B, T, heads d] to [B, heads, T, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class HeadGates(nn.Module):
    """Softmax linear attention: a softmax over the heads weights writes and reads. The gates read x, or each reads its head's q or k."""

    def __init__(self, c, key_width):
        super().__init__()
        heads = c["num_heads"]
        self.per_head = c.get("sla_gate_input") == "head"
        width = key_width // heads if self.per_head else c["hidden_size"]
        self.gate_q_proj, self.gate_k_proj = linear(width, heads), linear(width, heads)

    def gates(self, x, q, k):
        """Returns the read and write gates, [B, H, T, 1]; q, k [B, H, T, dk] in the layout of the recurrence."""
        if self.per_head:
            logits = [(y * proj.weight[:, None]).sum(-1) for y, proj in ((q, self.gate_q_proj), (k, self.gate_k_proj))]
            return [y.softmax(1)[..., None] for y in logits]
        return [proj(x).softmax(-1).transpose(1, 2)[..., None] for proj in (self.gate_q_proj, self.gate_k_proj)]


def gated(c):
    return c["model_type"].startswith("softmax_")


class RetNet(HeadGates):
    """Linear attention with rotary positions and one fixed decay per head."""

    def __init__(self, c):
        D = c["hidden_size"]
        K, V = int(D * c["expand_k"]), int(D * c["expand_v"])
        super().__init__(c, K)
        self.heads, self.eps, self.gated = c["num_heads"], c["norm_eps"], gated(c)
        if not self.gated:
            del self.gate_q_proj, self.gate_k_proj
        self.q_proj, self.k_proj, self.v_proj = linear(D, K), linear(D, K), linear(D, V)
        self.g_proj, self.o_proj = linear(D, V), linear(V, D)
        self.g_norm_swish_gate = Weight(V // self.heads)

    def forward(self, x, row):
        q, k, v = (split(proj(x), self.heads) for proj in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = rotary(row["pos"], q.shape[-1], 1e4)
        q, k = (rotate(y, cos[:, None], sin[:, None]) for y in (q, k))
        if self.gated:
            read, write = self.gates(x, q, k)
            q, k = q * read, k * write
        decay = torch.log1p(-(2.0 ** (-5.0 - torch.arange(self.heads, device=x.device))))
        o = scalar_scan(q * q.shape[-1] ** -0.5, k, v, decay[:, None].expand(q.shape[:-1])).transpose(1, 2)
        o = rms(o, self.g_norm_swish_gate.weight, self.eps).flatten(2) * F.silu(self.g_proj(x))
        return self.o_proj(o), None


class GatedDeltaNet(model.GatedDeltaNet):
    """Gated DeltaNet from a dict `c`; its head gates are those of softmax linear attention, on values and outputs."""

    def __init__(self, c):
        super().__init__(SimpleNamespace(**c))
        self.gated = gated(c)
        if self.gated:
            gates = HeadGates(c, self.heads * self.dk)
            self.gate_q_proj, self.gate_k_proj, self.per_head = gates.gate_q_proj, gates.gate_k_proj, gates.per_head

    def forward(self, x, row):
        if not self.gated:
            return super().forward(x, row)
        pos = row["pos"]
        parts = ((self.q_proj, self.q_conv1d), (self.k_proj, self.k_conv1d), (self.v_proj, self.v_conv1d))
        q, k, v = (split(short_conv(proj(x), conv, pos), self.heads) for proj, conv in parts)
        q, k = l2(q), l2(k)
        read, write = HeadGates.gates(self, x, q, k)
        g, beta = self.gates(x)
        o = gated_delta_rule(q, k, v * write, g.transpose(1, 2), beta.transpose(1, 2)) * read
        return self.emit(o.transpose(1, 2), x), None


class GLA(HeadGates):
    """Gated linear attention; `softmax_gla` has head gates."""

    def __init__(self, c):
        D = c["hidden_size"]
        K, V = int(D * c["expand_k"]), int(D * c["expand_v"])
        super().__init__(c, K)
        self.heads, self.eps = c["num_heads"], c["norm_eps"]
        self.q_proj, self.k_proj, self.v_proj = linear(D, K), linear(D, K), linear(D, V)
        self.g_proj, self.o_proj = linear(D, V), linear(V, D)
        self.gk_proj = low_rank(D, 16, K, bias=True)
        nn.init.constant_(self.gk_proj[1].bias, 0)
        with torch.no_grad():  # channels start with memories of different lengths: from 20 tokens to 6,000
            self.gk_proj[1].bias.add_(torch.linspace(0, 6, K))
        self.convs = c["use_short_conv"]
        if self.convs:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (Weight(n, 1, c["conv_size"]) for n in (K, K, V))
        self.g_norm_swish_gate = Weight(V // self.heads)
        self.gated = gated(c)
        if not self.gated:
            del self.gate_q_proj, self.gate_k_proj

    def forward(self, x, row):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.convs:
            parts = ((q, self.q_conv1d), (k, self.k_conv1d), (v, self.v_conv1d))
            q, k, v = (F.silu(conv(y, w.weight, row["pos"])) for y, w in parts)
        q, k, v, g = (split(y, self.heads) for y in (q, k, v, F.logsigmoid(self.gk_proj(x)) / 16))
        if self.gated:
            read, write = self.gates(x, q, k)
            q, k = q * read, k * write
        o = linear_scan(q * q.shape[-1] ** -0.5, k, v, gk=g).transpose(1, 2)
        o = rms(o, self.g_norm_swish_gate.weight, self.eps).flatten(2) * F.silu(self.g_proj(x))
        return self.o_proj(o), None


class GSA(nn.Module):
    """Gated slot attention: keys and values decay per slot, and a softmax over the slots reads them."""

    def __init__(self, c):
        super().__init__()
        D, self.heads, self.slots = c["hidden_size"], c["num_heads"], c["num_slots"]
        self.q_proj, self.k_proj, self.v_proj = linear(D, D), linear(D, D), linear(D, D)
        self.f_proj, self.o_proj = linear(D, self.heads * self.slots), linear(D, D)
        self.g_norm = Weight(D)
        self.convs = c["use_short_conv"]
        if self.convs:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (Weight(D, 1, c["conv_size"]) for _ in range(3))
        self.normalizer = c["gate_logit_normalizer"]

    def forward(self, x, row):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.convs:
            parts = ((q, self.q_conv1d), (k, self.k_conv1d), (v, self.v_conv1d))
            q, k, v = (F.silu(conv(y, w.weight, row["pos"])) for y, w in parts)
        q, k, v = (F.silu(split(y, self.heads)) for y in (q, k, v))
        f = split(F.logsigmoid(self.f_proj(x)) / self.normalizer, self.heads)
        s = 1 - f.exp()
        p = linear_scan(q, k, s, gv=f).softmax(-1)
        o = linear_scan(p, s, v, gk=f).transpose(1, 2).flatten(2)
        return self.o_proj(rms(F.silu(o), self.g_norm.weight, 1e-5)), None


class SSE(nn.Module):
    """Sparse state expansion with gated linear attention: a shared state, and partitions, of which each token uses the best few."""

    def __init__(self, c):
        super().__init__()
        D, self.heads, d, self.eps = c["hidden_size"], c["num_heads"], c["head_dim"], c["norm_eps"]
        self.partitions, self.used = c["num_sparse_partition"], c["num_writer"]
        assert c["num_reader"] == self.used and c["linear_attn_type"] == "gla" and c["sse_lora"] and c["use_output_gate"]
        options = c["sse_layer_defaults"]
        self.closes = False  # whether the shared state is missing in open rows
        self.softmax_keys, self.weighs_queries, self.weighs_keys = options["use_k_softmax"], options["emulq"], options["emulk"]
        K = self.heads * d
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = linear(D, K), linear(D, K), linear(D, K), linear(K, D)
        self.lora_q_proj, self.lora_k_proj, self.g_proj = (low_rank(D, d, K) for _ in range(3))
        self.gk_proj = nn.ModuleList(low_rank(D, 16, K, bias=True) for _ in range(2))
        with torch.no_grad():
            for gate in self.gk_proj:
                gate[1].bias.copy_(torch.linspace(0, 6, K))
        self.e_proj = linear(D, self.partitions)
        self.o_norm = Weight(d)
        self.convs = c["use_short_conv"]
        if self.convs:
            self.q_conv1d_shared, self.k_conv1d_shared = (Weight(K, 1, c["conv_size"]) for _ in range(2))

    def forward(self, x, row):
        q1, k1, v = self.q_proj(x), self.k_proj(x), F.silu(split(self.v_proj(x), self.heads))
        q2, k2 = q1 + self.lora_q_proj(x), k1 + self.lora_k_proj(x)
        if self.convs:
            q1, k1 = (conv(y, w.weight, row["pos"]) for y, w in ((q1, self.q_conv1d_shared), (k1, self.k_conv1d_shared)))
        q1, q2 = (F.silu(split(y, self.heads)) for y in (q1, q2))
        k1, k2 = (split(y, self.heads) for y in (k1, k2))
        k1, k2 = (y.softmax(-1) if self.softmax_keys else F.silu(y) for y in (k1, k2))
        g1, g2 = (split(F.logsigmoid(gate(x)) / 16, self.heads) for gate in self.gk_proj)
        p = self.e_proj(x).softmax(-1)
        weights, chosen = p.topk(self.used, -1)  # [B, T, used]

        def repeated(y, weigh=False):
            """Returns [B, H, T used, d]: each token once per partition that it uses."""
            y = y[..., None, :].expand(*y.shape[:-1], self.used, y.shape[-1])
            return (y * weights[:, None, ..., None] if weigh else y).flatten(2, 3)

        parts = repeated(q2, self.weighs_queries), repeated(k2, self.weighs_keys), repeated(v), repeated(g2)
        sparse = grouped_scan(*parts, chosen.flatten(1)).unflatten(2, (-1, self.used)).sum(3)
        shared = linear_scan(q1, k1, v, gk=g1)
        if self.closes:
            shared = shared * ~row["open"][:, None, None, None]
        o = (shared + sparse).transpose(1, 2) * v.shape[-1] ** -0.5
        o = rms(o, self.o_norm.weight, self.eps).flatten(2) * F.silu(self.g_proj(x))
        # As in mixtures of experts: shares of use times mean weights, minimal when all partitions are used equally.
        share = torch.zeros_like(p).scatter(-1, chosen, 1.0).mean((0, 1))
        return self.o_proj(o), 0.01 * self.partitions * (share * p.mean((0, 1))).sum()
