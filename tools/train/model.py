"""The built-in model: Gated DeltaNet blocks alternating with LTE (learned token eviction) attention blocks.

Tensor names and config keys are those of `hybrid_gated_deltanet` checkpoints, so `waterline convert` reads the trained models. Several
documents share one row of a batch. `pos` [B, T] is each token's position in its document; convolutions, the recurrence, attention and the
router never cross a document's border.
"""

import json
import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

CHUNK = 64  # tokens per chunk of the recurrence, and per change of the buffer's threshold
BLOCK = 128  # block size of FlexAttention's mask


@dataclass
class Config:
    """Model sizes; the JSON form is that of a `hybrid_gated_deltanet` config.json."""

    vocab_size: int = 4096
    hidden_size: int = 512
    intermediate_size: int = 768
    num_hidden_layers: int = 8
    num_heads: int = 4
    head_dim: int = 64
    expand_v: float = 2
    conv_size: int = 4
    norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    attn: dict = field(default_factory=lambda: {
        "attn_type": "lte", "layers": [1, 3, 5, 7], "num_heads": 8, "num_kv_heads": 4, "window_size": 127, "buffer_size": 64,
        "sink_size": 4, "conv_size": [3, 3, 3], "conv_dilation": [2, 2, 2], "receptive_margin": 6, "routing_shared": "head",
        "routing_method": "sigmoid", "routing_grad": True, "l1_lambda_shared": "head", "dropout_prob": 0.1, "qkv_bias": False,
        "rope_theta": 1e6})

    @staticmethod
    def load(path):
        with open(path) as f:
            raw = json.load(f)
        return Config(**{k: raw[k] for k in Config.__dataclass_fields__ if k in raw})

    def to_json(self):
        own = {k: getattr(self, k) for k in Config.__dataclass_fields__}
        return own | {
            "architectures": ["HybridGatedDeltaNetForCausalLM"], "model_type": "hybrid_gated_deltanet", "attn_mode": "chunk",
            "use_gate": True, "use_short_conv": True, "hidden_act": "swish", "hidden_ratio": 4, "initializer_range": 0.02,
            "max_position_embeddings": 32768, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "torch_dtype": "float16",
            "fuse_norm": True, "fuse_swiglu": True, "fuse_cross_entropy": False, "use_cache": True}


def shift(x, n, pos):
    """Returns x [B, T, ...] delayed by n tokens (n < 0: advanced), with zeros where that would cross a document's border."""
    if n == 0:
        return x
    flat = x.flatten(2)
    T = x.shape[1]
    if n > 0:
        y, same = F.pad(flat, (0, 0, n, 0))[:, :T], pos >= n
    else:
        y, same = F.pad(flat, (0, 0, 0, -n))[:, -n:], F.pad(pos, (0, -n))[:, -n:] >= -n
    return torch.where(same[..., None], y, 0).view_as(x)


def rms(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def l2(x):
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rotary(positions, dim, theta):
    """Returns cos, sin [..., dim/2] of the rotation at each position."""
    freq = theta ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angle = positions[..., None].float() * freq
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def gated_delta_rule(q, k, v, g, beta):
    """The recurrence of Gated DeltaNet over complete rows.

    q, k [B, H, T, dk] (l2-normalised), v [B, H, T, dv], g [B, H, T] log decay, beta [B, H, T]; all f32. Returns [B, H, T, dv].
    Within a chunk the delta rule is a triangular system. From chunk to chunk the state obeys S' = A S + C, a chain that is solved
    for all chunks at once by a scan (log2 of their number rounds), so that only matrix products remain.
    """
    B, H, T, dk = q.shape
    pad = -T % CHUNK
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        g, beta = F.pad(g, (0, pad)), F.pad(beta, (0, pad))
    N = (T + pad) // CHUNK
    q, k, v = (x.reshape(B, H, N, CHUNK, -1) for x in (q, k, v))
    G = g.reshape(B, H, N, CHUNK).cumsum(-1)
    beta = beta.reshape(B, H, N, CHUNK, 1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = torch.where(lower, (G[..., :, None] - G[..., None, :]).masked_fill(~lower, 0).exp(), 0)
    L = (beta * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    eye = torch.eye(CHUNK, device=q.device)
    with torch.no_grad():
        inv = torch.linalg.solve_triangular(eye + L, eye.expand_as(L), upper=False, unitriangular=True)
    inv = inv - inv @ (L - L.detach()) @ inv  # value: inv; gradient: that of (I + L)^-1
    into = G.exp()[..., None]
    u = inv @ (beta * v)
    w = inv @ (beta * into * k)
    k_end = (k * (G[..., -1:] - G).exp()[..., None]).transpose(-1, -2)
    A = eye_like(dk, q) * G[..., -1, None, None].exp() - k_end @ w
    C = k_end @ u
    step = 1
    while step < N:
        C = C + torch.cat([torch.zeros_like(C[:, :, :step]), A[:, :, step:] @ C[:, :, :-step]], 2)
        if 2 * step < N:
            A = torch.cat([A[:, :, :step], A[:, :, step:] @ A[:, :, :-step]], 2)
        step *= 2
    S = F.pad(C[:, :, :-1], (0, 0, 0, 0, 1, 0))  # the state before each chunk
    o = (q * into) @ S + (q @ k.transpose(-1, -2) * decay) @ (u - w @ S)
    return o.reshape(B, H, N * CHUNK, -1)[:, :, :T] * dk**-0.5


def eye_like(n, x):
    return torch.eye(n, device=x.device, dtype=x.dtype)


class Weight(nn.Module):
    """A module with one tensor named `weight`."""

    def __init__(self, *shape, bias=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        if bias is not None:
            self.bias = nn.Parameter(torch.zeros(bias))


def short_conv(x, conv, pos):
    """Depthwise causal convolution, then silu. x [B, T, C], weight [C, 1, W]."""
    w = conv.weight[:, 0]
    W = w.shape[1]
    x = x.float()
    return F.silu(sum(w[:, W - 1 - j] * shift(x, j, pos) for j in range(W)))


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.dk, self.dv, self.eps = c.num_heads, c.head_dim, int(c.head_dim * c.expand_v), c.norm_eps
        D, K, V = c.hidden_size, self.heads * self.dk, self.heads * self.dv
        self.q_proj, self.k_proj = nn.Linear(D, K, bias=False), nn.Linear(D, K, bias=False)
        self.v_proj, self.g_proj = nn.Linear(D, V, bias=False), nn.Linear(D, V, bias=False)
        self.a_proj, self.b_proj = nn.Linear(D, self.heads, bias=False), nn.Linear(D, self.heads, bias=False)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = Weight(K, 1, c.conv_size), Weight(K, 1, c.conv_size), Weight(V, 1, c.conv_size)
        self.o_norm = Weight(self.dv)
        self.o_proj = nn.Linear(V, D, bias=False)
        # Heads start with memories of very different lengths: log-uniform time steps, and rates spread over the heads.
        dt = torch.exp(torch.rand(self.heads) * math.log(100) + math.log(1e-3))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.linspace(math.log(0.5), math.log(16), self.heads))

    def gates(self, x):
        """Returns the log decay and write strength [..., H], f32."""
        g = -self.A_log.float().exp() * F.softplus(self.a_proj(x).float() + self.dt_bias)
        return g, self.b_proj(x).float().sigmoid()

    def emit(self, o, x):
        """Maps o [..., H, dv] to the block's output: norm per head, gate, projection."""
        gate = self.g_proj(x).view(o.shape)
        return self.o_proj((rms(o, self.o_norm.weight, self.eps) * F.silu(gate.float())).flatten(-2))

    def forward(self, x, row):
        def heads(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        pos = row["pos"]
        q = l2(heads(short_conv(self.q_proj(x), self.q_conv1d, pos)))
        k = l2(heads(short_conv(self.k_proj(x), self.k_conv1d, pos)))
        v = heads(short_conv(self.v_proj(x), self.v_conv1d, pos))
        g, beta = self.gates(x)
        g = torch.where((pos == 0)[..., None], -30.0, g)  # a new document forgets everything (e^-30)
        with torch.autocast(x.device.type, enabled=False):
            o = gated_delta_rule(q, k, v, g.transpose(1, 2), beta.transpose(1, 2))
        return self.emit(o.transpose(1, 2), x), None


class ConvStack(nn.Module):
    """The router's convolutions over time: [k ; v] of a head, centred, each halving the channels; then one logit per head."""

    def __init__(self, channels, kernels, dilations, groups):
        super().__init__()
        self.dilations = dilations
        self.convs = nn.ModuleList()
        for i, kernel in enumerate(kernels):
            out = channels // 2
            self.convs.append(Weight(groups * out, channels, 1, kernel, bias=groups * out))
            channels = out
        self.proj = Weight(groups, channels, 1, 1, bias=groups)


class Router(nn.Module):
    def __init__(self, a, head_dim):
        super().__init__()
        self.groups = a["num_kv_heads"] if a["routing_shared"] == "head" else 1
        self.method, self.dropout = a["routing_method"], a.get("dropout_prob", 0.0)
        self.margin = sum((k - 1) * d for k, d in zip(a["conv_size"], a["conv_dilation"])) // 2
        self.conv_stack = ConvStack(2 * head_dim, a["conv_size"], a["conv_dilation"], self.groups)

    def forward(self, k, v, pos):
        """Returns scores [B, T, Hk] from the tokens' keys (before the rotation) and values [B, T, Hk, d]."""
        x = torch.cat([k, v], -1)
        B, T, H, _ = x.shape
        for conv, dilation in zip(self.conv_stack.convs, self.conv_stack.dilations):
            taps = conv.weight.shape[-1]
            x = torch.cat([shift(x, (taps // 2 - i) * dilation, pos) for i in range(taps)], -1)
            w = conv.weight[:, :, 0].unflatten(0, (self.groups, -1)).transpose(-1, -2).flatten(-2)  # [groups, out, taps * in]
            x = torch.einsum("bthi,hoi->btho", x, w.expand(H, -1, -1)) + conv.bias.view(self.groups, -1)
            x = F.dropout(F.silu(x), self.dropout, self.training)
        proj = self.conv_stack.proj
        z = (x.float() * proj.weight[:, :, 0, 0]).sum(-1) + proj.bias
        return z.sigmoid() - 0.5 if self.method == "sigmoid" else z.relu()


class LTE(nn.Module):
    def __init__(self, c):
        super().__init__()
        a = c.attn
        self.heads, self.kv_heads, self.theta = a["num_heads"], a["num_kv_heads"], a["rope_theta"]
        self.keys, self.buffer, self.sinks = a["window_size"] + 1, a["buffer_size"], a["sink_size"]
        D, self.d = c.hidden_size, c.hidden_size // self.heads
        self.q_proj, self.o_proj = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(D, self.kv_heads * self.d, bias=False) for _ in range(2))
        self.router = Router(a, self.d)

    def project(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return q.unflatten(-1, (self.heads, -1)), k.unflatten(-1, (self.kv_heads, -1)), v.unflatten(-1, (self.kv_heads, -1))

    @torch.no_grad()
    def threshold(self, score, row):
        """Returns the threshold that a key's score must exceed to be seen beyond the window, per chunk of queries: [B, Hk, T / CHUNK].

        With the cap, this is the (buffer + 1)-th largest score among the tokens of the same document that had left the window when the
        chunk began. A set that evicts its lowest score holds exactly the best `buffer` of them.
        """
        B, H, T = score.shape
        first = torch.arange(0, T, CHUNK, device=score.device)
        start = first - row["pos"][:, ::CHUNK]
        key = torch.arange(T, device=score.device)
        left = (key >= start[..., None]) & (key <= first[:, None] - self.keys)
        eligible = torch.where(left[:, None], score[:, :, None], -1.0)
        rank = self.buffer + 1
        if T > rank:
            bar = eligible.topk(rank, dim=-1, sorted=True).values[..., -1].clamp(min=0)
        else:
            bar = torch.zeros_like(eligible[..., 0])
        return torch.where(row["open"][:, None, None], -2.0, bar * row["capped"])

    def forward(self, x, row):
        """Keys are laid out twice, [window keys ; selected older keys], so that one mask covers both."""
        q, k, v = self.project(x)
        score = self.router(k, v, row["pos"])
        cos, sin = row["cos"], row["sin"]
        q, k = (rotate(y, cos, sin).transpose(1, 2).to(v.dtype) for y in (q, k))
        v, s = v.transpose(1, 2), score.transpose(1, 2)
        # Straight through: the value is v; the gradient with respect to the score is <grad v, v>.
        v = v + (v.detach() * (s - s.detach())[..., None]).to(v.dtype)
        k, v = torch.cat([k, k], 2), torch.cat([v, v], 2)
        rank = torch.where((row["pos"] < self.sinks)[:, None], 1e4, s.detach().float())
        bar = self.threshold(rank, row)
        T, keys, group, pos = x.shape[1], self.keys, self.heads // self.kv_heads, row["pos"]

        def visible(b, h, i, j):
            old = j >= T
            key = torch.where(old, j - T, j)
            chosen = rank[b, h // group, key] > bar[b, h // group, i // CHUNK]
            near = i - key < keys
            return (key <= i) & (key >= i - pos[b, i]) & torch.where(old, chosen & ~near, near)

        o = attend(q.contiguous(), k, v, visible, row["blocks"])
        return self.o_proj(o.transpose(1, 2).flatten(2)), score


def attend(q, k, v, visible, blocks):
    """Softmax attention under `visible(b, h, query, key)`. `blocks` is a FlexAttention block mask, or None for the dense form."""
    if blocks is not None:
        def mask(score, b, h, i, j):
            return torch.where(visible(b, h, i, j), score, -float("inf"))

        return flex_attention(q, k, v, score_mod=mask, block_mask=blocks, enable_gqa=True)
    B, H, T, d = q.shape
    b, h, i, j = (torch.arange(n, device=q.device) for n in (B, H, T, k.shape[2]))
    seen = visible(b[:, None, None, None], h[:, None, None], i[:, None], j)
    k, v = (y.repeat_interleave(H // k.shape[1], 1) for y in (k, v))
    p = (q.float() @ k.float().transpose(-1, -2) * d**-0.5).masked_fill(~seen, -float("inf")).softmax(-1)
    return (p @ v.float()).to(v.dtype)


def block_mask(pos, keys):
    """Returns the blocks of (query, key) that can hold a visible pair, derived only from the documents' borders: shared by all layers."""
    B, T = pos.shape
    n = T // BLOCK
    i = torch.arange(n, device=pos.device)
    start = (torch.arange(T, device=pos.device) - pos).view(B, n, BLOCK).amin(-1)[..., None]  # earliest document in the block
    last = i * BLOCK + BLOCK - 1
    same = last >= start
    near = same & (i <= i[:, None]) & (last + keys > i[:, None] * BLOCK)
    far = same & (i * BLOCK <= last[:, None] - keys)
    need = torch.cat([near, far], -1).to(torch.int32)[:, None]
    order = need.argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return BlockMask.from_kv_blocks(need.sum(-1, dtype=torch.int32), order, BLOCK_SIZE=BLOCK, seq_lengths=(T, 2 * T))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        D, I = c.hidden_size, c.intermediate_size
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(D, I, bias=False), nn.Linear(D, I, bias=False), nn.Linear(I, D, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c, lte):
        super().__init__()
        self.eps = c.norm_eps
        self.attn_norm, self.mlp_norm = Weight(c.hidden_size), Weight(c.hidden_size)
        self.attn = LTE(c) if lte else GatedDeltaNet(c)
        self.mlp = MLP(c)

    def forward(self, x, row):
        y, score = self.attn(rms(x, self.attn_norm.weight, self.eps), row)
        x = x + y
        return x + self.mlp(rms(x, self.mlp_norm.weight, self.eps)), score


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Block(c, i in c.attn["layers"]) for i in range(c.num_hidden_layers))
        self.norm = Weight(c.hidden_size)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = Body(c)
        if not c.tie_word_embeddings:
            self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.block = Block.forward  # replaced by its compiled form for training
        for name, p in self.named_parameters():
            if name.endswith("proj.weight") and p.dim() == 2 or "embeddings" in name:
                scale = (2 * c.num_hidden_layers) ** -0.5 if "o_proj" in name or "down_proj" in name else 1.0
                nn.init.normal_(p, std=0.02 * scale)
            elif "conv1d" in name:
                nn.init.uniform_(p, -0.5, 0.5)
            elif "router" in name and p.dim() == 4:
                nn.init.normal_(p, std=(1.6 / (p.shape[1] * p.shape[3])) ** 0.5)
            elif name.endswith("router.conv_stack.proj.bias"):
                nn.init.constant_(p, 0.5)

    @property
    def head(self):
        """Returns the output matrix [V, D]."""
        return self.model.embeddings.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def row(self, pos, open_rows=None, capped=True, flex=False, angle=None):
        """Returns the values that all blocks share for a batch: positions, rotations, the rows that keep every token, whether the set is
        capped.

        `angle` [B, T] are the positions to rotate by, if they differ from `pos`.
        """
        a = self.config.attn
        cos, sin = rotary(pos if angle is None else angle, self.config.hidden_size // a["num_heads"], a["rope_theta"])
        return {
            "pos": pos, "cos": cos[:, :, None], "sin": sin[:, :, None],
            "open": torch.zeros(pos.shape[0], dtype=torch.bool, device=pos.device) if open_rows is None else open_rows,
            "capped": torch.tensor(float(capped), device=pos.device),
            "blocks": block_mask(pos, a["window_size"] + 1) if flex else None}

    def forward(self, tokens, row):
        """Returns the hidden states after the final norm [B, T, D], and the LTE layers' scores, each [B, T, Hk]."""
        x, scores = self.model.embeddings(tokens), []
        for layer in self.model.layers:
            x, score = self.block(layer, x, row)
            if score is not None:
                scores.append(score)
        return rms(x, self.model.norm.weight, self.config.norm_eps), scores


def is_matrix(name, p):
    """Returns whether the shipped file quantizes a tensor: the projections. (The embedding is handled separately; the rest stays f32.)"""
    return p.dim() == 2 and name.endswith("proj.weight") and not name.endswith(("a_proj.weight", "b_proj.weight"))


def load_weights(model, tensors):
    """Loads a checkpoint's tensors, ignoring the reference's sparsity bookkeeping."""
    tensors = {k: v.float() for k, v in tensors.items() if k not in ("model.l1_lambda", "model.num_kept")}
    model.load_state_dict(tensors)
