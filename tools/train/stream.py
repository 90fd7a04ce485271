"""Decodes one token at a time in fixed memory, with the runtime's semantics: recurrent state, ring of the window, capped set.

All sequences of a batch advance in lockstep from position 0. A token's score is computed when its right context is complete (margin m
tokens later). The token enters the set when it leaves the ring, and a full set drops its lowest score if the new token's score is higher.
"""

import torch
import torch.nn.functional as F

from model import GatedDeltaNet, l2, rms, rotary, rotate


class GatedDeltaNetState:
    def __init__(self, attn, batch, device):
        self.attn = attn
        self.state = torch.zeros(batch, attn.heads, attn.dk, attn.dv, device=device)
        self.convs = [(p, c, torch.zeros(batch, c.weight.shape[2], c.weight.shape[0], device=device)) for p, c in (
            (attn.q_proj, attn.q_conv1d), (attn.k_proj, attn.k_conv1d), (attn.v_proj, attn.v_conv1d))]

    def tensors(self):
        return [self.state] + [last for _, _, last in self.convs]

    def step(self, x, t):
        a, out = self.attn, []
        for proj, conv, last in self.convs:
            last.copy_(torch.cat([last[:, 1:], proj(x)[:, None]], 1))
            out.append(F.silu((last * conv.weight[:, 0].t()).sum(1)).unflatten(-1, (a.heads, -1)))
        q, k, v = l2(out[0]) * a.dk**-0.5, l2(out[1]), out[2]
        g, beta = a.gates(x)
        S = self.state * g.exp()[..., None, None]
        u = beta[..., None] * (v - (k[..., None] * S).sum(-2))
        self.state.copy_(S + k[..., None] * u[..., None, :])
        return a.emit((q[..., None] * self.state).sum(-2), x)


class LTEState:
    def __init__(self, attn, batch, device):
        self.attn = attn
        H, d = attn.kv_heads, attn.d
        self.span = 2 * attn.router.margin + 1
        self.recent = torch.zeros(batch, self.span, H, 2 * d, device=device)  # [k ; v] before the rotation, newest last
        self.keys, self.values = (torch.zeros(batch, H, attn.keys + attn.buffer, d, device=device) for _ in range(2))  # ring, then set
        self.ring_score = torch.full((batch, H, attn.keys), -1.0, device=device)
        self.frozen = False  # for ablation: no token enters the set
        self.set_score = torch.full((batch, H, attn.buffer), -1e9, device=device)  # -1e9: free

    def tensors(self):
        return [self.recent, self.keys, self.values, self.ring_score, self.set_score]

    def step(self, x, t):
        """x [B, D] normed; t: 0-dim int64 tensor, the position."""
        a = self.attn
        W, m = a.keys, a.router.margin
        cos, sin = rotary(t, a.d, a.theta)
        q, k, v = a.project(x)
        self.recent.copy_(torch.cat([self.recent[:, 1:], torch.cat([k, v], -1)[:, None]], 1))

        # The score of token t - m, whose right context is now complete.
        at = t - 2 * m + torch.arange(self.span, device=x.device)
        pos = torch.where(at < 0, -1, at)  # before the beginning: masked like another document
        score = self.score(pos)
        score = torch.where(t - m < a.sinks, 1e4, score)
        known = (t - m >= 0) & (torch.arange(W, device=x.device) == (t - m) % W)
        self.ring_score.copy_(torch.where(known, score[..., None], self.ring_score))

        # The oldest token leaves the ring.
        slot = t % W
        ring = torch.arange(W, device=x.device) == slot
        leaving = torch.where((t >= W) & ring, self.ring_score, 0).sum(-1)
        lowest, where = self.set_score.min(-1)
        enter = (leaving > 0) & (leaving > lowest) & (not self.frozen)
        into = enter[..., None] & (torch.arange(a.buffer, device=x.device) == where[..., None])
        index = slot.view(1, 1, 1, 1).expand(x.shape[0], a.kv_heads, 1, a.d)
        for cache, new in ((self.keys, rotate(k, cos, sin)), (self.values, v)):
            cache[:, :, W:] = torch.where(into[..., None], cache.gather(2, index), cache[:, :, W:])
            cache.scatter_(2, index, new[:, :, None].to(cache.dtype))
        self.set_score.copy_(torch.where(into, leaving[..., None], self.set_score))

        seen = torch.cat([(torch.arange(W, device=x.device) <= t).expand_as(self.ring_score), self.set_score > -1e8], -1)
        q = rotate(q, cos, sin).unflatten(1, (a.kv_heads, -1))
        p = (q @ self.keys.transpose(-1, -2) * a.d**-0.5).masked_fill(~seen[:, :, None], -float("inf")).softmax(-1)
        return a.o_proj((p @ self.values).flatten(1))

    def score(self, at):
        """Applies the router to the last 2m + 1 tokens and reads it at their middle. Layers' outputs before position 0 count as zero."""
        a = self.attn
        d = a.d
        first = at.clamp(min=0).amin()
        local = torch.where(at < 0, torch.zeros_like(at), at - first)  # position in the document, as far as shifts can distinguish
        # Tokens before the beginning form a separate document: no shift from a real token reaches them.
        before = torch.arange(self.span, device=at.device)
        pos = torch.where(at < 0, before, local)
        return a.router(self.recent[..., :d], self.recent[..., d:], pos[None].expand(self.recent.shape[0], -1))[:, a.router.margin]


class Stream:
    """A batch of sequences being decoded. `step(tokens [B])` returns logits [B, V]."""

    def __init__(self, model, batch, device="cpu", graph=None):
        model.eval()
        self.model, self.config = model, model.config
        self.t = torch.zeros((), dtype=torch.int64, device=device)
        self.states = [(GatedDeltaNetState if isinstance(b.attn, GatedDeltaNet) else LTEState)(b.attn, batch, device) for b in model.model.layers]
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        self.logits = torch.zeros(batch, self.config.vocab_size, device=device)
        self.graph = self.capture() if (device != "cpu" if graph is None else graph) else None

    def compute(self):
        m = self.model.model
        x = m.embeddings(self.tokens)
        for block, state in zip(m.layers, self.states):
            x = x + state.step(rms(x, block.attn_norm.weight, block.eps), self.t)
            x = x + block.mlp(rms(x, block.mlp_norm.weight, block.eps))
        self.logits.copy_(rms(x, m.norm.weight, self.config.norm_eps) @ self.model.head.t())
        self.t += 1

    @torch.no_grad()
    def capture(self):
        clean = [x.clone() for x in self.tensors()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        for x, c in zip(self.tensors(), clean):
            x.copy_(c)
        return graph

    def tensors(self):
        return [self.t] + [x for s in self.states for x in s.tensors()]

    @torch.no_grad()
    def step(self, tokens):
        self.tokens.copy_(tokens)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.compute()
        return self.logits
