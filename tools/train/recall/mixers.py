"""Linear mixers in training form, by the tensor names of flash-linear-attention: GLA (with or without softmax head gates), GSA, SSE.

Every mixer takes x [B, T, D] and `row` (see models.py) and returns its output and a penalty to add to the loss (or None).
"""

import torch
import torch.nn.functional as F
from torch import nn

from model import Weight, rms, shift
from scan import linear_scan


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


def low_rank(inputs, rank, outputs, bias=False):
    return nn.Sequential(linear(inputs, rank), linear(rank, outputs, bias))


def conv(x, weight, pos):
    """Depthwise causal convolution without an activation: x [B, T, C], weight [C, 1, W]."""
    W = weight.shape[-1]
    return sum(weight[:, 0, W - 1 - j] * shift(x, j, pos) for j in range(W))


class GLA(nn.Module):
    """Gated linear attention; with head gates (`softmax_gla`) a softmax over the heads weighs what is written and read."""

    def __init__(self, c):
        super().__init__()
        D, self.heads, self.eps = c["hidden_size"], c["num_heads"], c["norm_eps"]
        K, V = int(D * c["expand_k"]), int(D * c["expand_v"])
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
        self.gates = c["model_type"].startswith("softmax_")
        if self.gates:
            self.gate_q_proj, self.gate_k_proj = linear(D, self.heads), linear(D, self.heads)

    def forward(self, x, row):
        def heads(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.convs:
            parts = ((q, self.q_conv1d), (k, self.k_conv1d), (v, self.v_conv1d))
            q, k, v = (F.silu(conv(y, w.weight, row["pos"])) for y, w in parts)
        q, k, v, g = heads(q), heads(k), heads(v), heads(F.logsigmoid(self.gk_proj(x)) / 16)
        if self.gates:
            k = k * self.gate_k_proj(x).softmax(-1).transpose(1, 2)[..., None]
            q = q * self.gate_q_proj(x).softmax(-1).transpose(1, 2)[..., None]
        o = linear_scan(q * q.shape[-1] ** -0.5, k, v, gk=g).transpose(1, 2)
        o = rms(o, self.g_norm_swish_gate.weight, self.eps).flatten(2) * F.silu(self.g_proj(x))
        return self.o_proj(o), None


class GSA(nn.Module):
    """Gated slot attention: keys and values fade slot by slot, and a softmax over the slots reads them."""

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
        def heads(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.convs:
            parts = ((q, self.q_conv1d), (k, self.k_conv1d), (v, self.v_conv1d))
            q, k, v = (F.silu(conv(y, w.weight, row["pos"])) for y, w in parts)
        q, k, v = (F.silu(heads(y)) for y in (q, k, v))
        f = heads(F.logsigmoid(self.f_proj(x)) / self.normalizer)
        s = 1 - f.exp()
        p = linear_scan(q, k, s, gv=f).softmax(-1)
        o = linear_scan(p, s, v, gk=f).transpose(1, 2).flatten(2)
        return self.o_proj(rms(F.silu(o), self.g_norm.weight, 1e-5)), None


class SSE(nn.Module):
    """Sparse state expansion with gated linear attention: a shared state, and partitions of which each token uses the best few."""

    def __init__(self, c):
        super().__init__()
        D, self.heads, d, self.eps = c["hidden_size"], c["num_heads"], c["head_dim"], c["norm_eps"]
        self.partitions, self.used = c["num_sparse_partition"], c["num_writer"]
        assert c["num_reader"] == self.used and c["linear_attn_type"] == "gla" and c["sse_lora"] and c["use_output_gate"]
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
        def heads(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q1, k1, v = self.q_proj(x), self.k_proj(x), F.silu(heads(self.v_proj(x)))
        q2, k2 = q1 + self.lora_q_proj(x), k1 + self.lora_k_proj(x)
        if self.convs:
            q1, k1 = (conv(y, w.weight, row["pos"]) for y, w in ((q1, self.q_conv1d_shared), (k1, self.k_conv1d_shared)))
        q1, q2 = F.silu(heads(q1)), F.silu(heads(q2))
        k1, k2 = heads(k1).softmax(-1), heads(k2).softmax(-1)
        g1, g2 = (heads(F.logsigmoid(gate(x)) / 16) for gate in self.gk_proj)
        p = self.e_proj(x).softmax(-1)
        chosen = torch.zeros_like(p).scatter(-1, p.topk(self.used, -1).indices, 1.0)
        p = p * chosen
        qs, ks, gs = [q1], [k1], [g1]
        for i in range(self.partitions):  # an unused partition is neither decayed nor written nor read
            weight, use = p[:, None, :, i, None], chosen[:, None, :, i, None]
            qs, ks, gs = qs + [q2 * weight], ks + [k2 * weight], gs + [g2 * use]
        n = 1 + self.partitions
        o = linear_scan(torch.cat(qs, 1), torch.cat(ks, 1), v.repeat(1, n, 1, 1), gk=torch.cat(gs, 1))
        o = o.unflatten(1, (n, self.heads)).sum(1).transpose(1, 2) * v.shape[-1] ** -0.5
        o = rms(o, self.o_norm.weight, self.eps).flatten(2) * F.silu(self.g_proj(x))
        # As mixtures of experts do it: shares of use times mean weights, least when all partitions are used alike.
        load = chosen.mean((0, 1)) * self.e_proj(x).softmax(-1).mean((0, 1))
        return self.o_proj(o), 0.01 * self.partitions * load.sum()
