"""Attention layers of hybrids: sliding window, and LTE (learned token eviction) with its set exactly as a decoder holds it."""

import torch
from torch import nn

from mixers import linear
from model import Router, rotary, rotate
from scan import running_best

PRICE = 0.1  # of a score above zero, so that tokens that are never read are dropped


class Attention(nn.Module):
    """Causal softmax attention over the last `window_size` keys, including the current one, or over all keys."""

    def __init__(self, c):
        super().__init__()
        a, D = c["attn"], c["hidden_size"]
        self.heads, self.kv_heads, self.theta, self.keys = a["num_heads"], a["num_kv_heads"], a["rope_theta"], a.get("window_size") or 1 << 20
        self.d = D // self.heads
        self.q_proj, self.o_proj = linear(D, D), linear(D, D)
        self.k_proj, self.v_proj = (linear(D, self.kv_heads * self.d) for _ in range(2))

    def project(self, x):
        """Returns queries, keys (before the rotation) and values, [B, T, heads, d]."""
        sizes = ((self.q_proj, self.heads), (self.k_proj, self.kv_heads), (self.v_proj, self.kv_heads))
        return [proj(x).unflatten(-1, (heads, -1)) for proj, heads in sizes]

    def attend(self, q, k, v, row, seen):
        """`seen` [B or 1, heads or 1, query, key]."""
        cos, sin = rotary(row["pos"], self.d, self.theta)
        q, k = (rotate(y, cos[:, :, None], sin[:, :, None]) for y in (q, k))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        p = (q @ k.transpose(-1, -2) * self.d**-0.5).masked_fill(~seen, -torch.inf).softmax(-1)
        return self.o_proj((p @ v).transpose(1, 2).flatten(2))

    def window(self, T, device):
        """Returns the window's mask [query, key]."""
        return torch.ones(T, T, dtype=torch.bool, device=device).tril().triu(1 - self.keys)

    def forward(self, x, row):
        q, k, v = self.project(x)
        return self.attend(q, k, v, row, self.window(x.shape[1], x.device)), None


class LTE(Attention):
    """A window, plus the `buffer_size` older tokens with the router's highest scores, for each key head."""

    def __init__(self, c):
        super().__init__(c)
        a = c["attn"]
        self.keys = a["window_size"] + 1
        self.buffer, self.sinks = a["buffer_size"], a["sink_size"]
        self.router = Router(a | {"dropout_prob": 0.0}, self.d)

    def forward(self, x, row):
        q, k, v = self.project(x)
        score = self.router(k, v, row["pos"])  # [B, T, kv_heads]
        # Straight through: the value is v; the gradient with respect to the score is <grad v, v>.
        v = v + v.detach() * (score - score.detach())[..., None]
        s = score.detach().transpose(1, 2)
        s = torch.where((row["pos"] < self.sinks)[:, None], torch.inf, torch.where(s > 0, s, -torch.inf))
        T = x.shape[1]
        best = running_best(s, self.buffer)
        # A query sees the set as it was when the token `keys` before the query had left the window.
        best = torch.cat([torch.zeros_like(best[:, :, : self.keys]), best[:, :, : max(0, T - self.keys)]], 2)[:, :, :T]
        near = self.window(T, x.device)
        older = torch.ones_like(near).tril(-self.keys)
        seen = near | older & (best | row["open"][:, None, None, None])
        seen = seen.repeat_interleave(self.heads // self.kv_heads, 1)
        return self.attend(q, k, v, row, seen), PRICE * score.relu().mean()
