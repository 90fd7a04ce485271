"""Mamba-2 in training form, alone or with the sparse attention of HAX, whose statistics are running over the sequence."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from mixers import conv, linear
from model import Weight, rms
from joint import ranking
from scan import running_best, scalar_scan

RANKING = 0.1  # weight of the ranking loss


class Mamba2(nn.Module):
    def __init__(self, c):
        super().__init__()
        D, self.state, self.heads, self.eps = c["hidden_size"], c["state_size"], c["num_heads"], c["layer_norm_epsilon"]
        assert c["n_groups"] == 1 and c["use_conv_bias"] and not c["use_bias"]
        self.inner = self.heads * c["head_dim"]
        convolved = self.inner + 2 * self.state
        self.in_proj = linear(D, self.inner + convolved + self.heads)
        self.conv1d = Weight(convolved, 1, c["conv_kernel"], bias=convolved)
        # Time steps are log-uniform in 0.1..1, rates from 1/500 to 1/10. (With the authors' 0.001..0.1 and 1..16, a token's write is a
        # hundred times smaller, negligible compared with D x, and a model of this size did not learn to read it.)
        dt = torch.exp(-torch.rand(self.heads) * math.log(10))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.linspace(math.log(1 / 500), math.log(1 / 10), self.heads))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = Weight(self.inner)
        self.out_proj = linear(self.inner, D)
        self.ranks = False  # whether the scores of key selection learn from the authors' ranking loss instead of the attention
        self.sparse = c["sparse_arch"].split("+") if c.get("sparse_arch") else []
        if self.sparse:
            self.keys, N = c["sparse_keys"] // len(self.sparse), self.state
            self.every = c.get("data_max_length", 2048) // self.keys
            self.xx_proj = linear(self.inner, 2 * N)
            self.E = nn.Parameter(torch.ones(self.inner))
        if "sign_bin_lsh" in self.sparse:
            self.lsh_hash = nn.Parameter(torch.randn(N, c["num_hash"]), requires_grad=False)
        if "key_selection" in self.sparse:
            self.dx_proj_1, self.dx_proj_2, self.dx_proj_3 = (linear(2 * N, n, bias=True) for n in (2 * N, 2 * N, 1))

    def forward(self, u, row):
        z, xbc, dt = self.in_proj(u).split([self.inner, self.inner + 2 * self.state, self.heads], -1)
        xbc = F.silu(conv(xbc, self.conv1d.weight, row["pos"]) + self.conv1d.bias)
        x, b, c = xbc.split([self.inner, self.state, self.state], -1)
        dt = F.softplus(dt + self.dt_bias).transpose(1, 2)  # [B, H, T]
        values = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        rate = -self.A_log.exp()[:, None]
        o = scalar_scan(c[:, None], b[:, None], values * dt[..., None], dt * rate) + values * self.D[:, None, None]
        o, penalty = o.transpose(1, 2).flatten(2), None
        if self.sparse:
            read, penalty = self.attention(x, row)
            o = o + read * self.E
        return self.out_proj(rms(o * F.silu(z), self.norm.weight, self.eps)), penalty

    def attention(self, x, row):
        """Returns attention in which each query sees the tokens of its sources, and the penalty: x [B, T, inner]."""
        k, q = self.xx_proj(x).chunk(2, -1)
        k = k * self.state**-0.5
        T = x.shape[1]
        at = torch.arange(T, device=x.device)
        count = at[:, None] + 1
        mean_q = q.cumsum(1) / count
        seen, learn, penalty = torch.zeros(T, T, dtype=torch.bool, device=x.device), 0.0, None
        if "sliding_window" in self.sparse:
            seen = seen | (at[:, None] - at < self.keys)
        if "sink" in self.sparse:
            seen = seen | (at < self.keys)
        if "dilated" in self.sparse:
            number = count // self.every  # the number of this source's tokens so far
            seen = seen | ((at + 1) % self.every == 0) & (number - (at + 1) // self.every < self.keys)
        if "key_selection" in self.sparse:
            features = torch.cat([k, F.normalize(mean_q, dim=-1)], -1)
            h = F.relu(self.dx_proj_1(features.detach() if self.ranks else features))
            score = self.dx_proj_3(F.relu(self.dx_proj_2(h)))[..., 0]
            best = running_best(score.detach(), self.keys)
            seen = seen | best
            if self.ranks:
                penalty = RANKING * ranking(score, q.detach(), k.detach(), row["used"], self.keys)
            else:
                # Straight through: the selection is not weighted, but a selected key's score learns the gradient of its weight.
                learn = torch.where(best, (score - score.detach())[:, None], 0.0)
        if "sign_bin_lsh" in self.sparse:
            seen = seen | self.same_bin(q - mean_q, k - k.cumsum(1) / count)
        seen = seen & (at[:, None] >= at)
        # A finite mask, so that a query that sees no key gives no NaN; its sum is then set to zero.
        weights = (q @ k.transpose(1, 2) + learn).masked_fill(~seen, -1e9).softmax(-1)
        return (weights * seen) @ x, penalty

    @torch.no_grad()
    def same_bin(self, q, k):
        """Returns [B, query, key]: the last `keys` keys in the query's bin, whose number is a code of signs."""
        power = 2 ** torch.arange(self.lsh_hash.shape[1], device=q.device)
        bin_q, bin_k = (((y @ self.lsh_hash > 0) * power).sum(-1) for y in (q, k))
        same = (bin_q[..., None] == bin_k[:, None]).tril()
        return same & (same.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1) <= self.keys)
