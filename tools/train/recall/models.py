"""The compared models: their configurations, and the model for any of them. Tensor names are those of the checkpoints."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parent.parent))
from attention import LTE, Attention  # noqa: E402
from mamba import Mamba2  # noqa: E402
from mixers import GLA, GSA, SSE, GatedDeltaNet, RetNet, linear  # noqa: E402
from model import MLP, Weight, rms  # noqa: E402
from tasks import PAD, VOCAB  # noqa: E402

HIDDEN = 128
SHARED = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "tie_word_embeddings": True, "bos_token_id": 1, "torch_dtype": "float16"}
FLA = SHARED | {"num_hidden_layers": 2, "intermediate_size": 192, "hidden_act": "swish", "norm_eps": 1e-6, "attn": None,
    "num_heads": 4, "use_short_conv": True, "conv_size": 4}
GDN = FLA | {"model_type": "gated_deltanet", "head_dim": 32, "expand_v": 1.0, "use_gate": True}
SECOND = {"layers": [1], "num_heads": 4, "num_kv_heads": 4, "qkv_bias": False, "rope_theta": 1e6}
MAMBA2 = SHARED | {"model_type": "mamba2", "num_hidden_layers": 4, "state_size": 32, "expand": 1, "num_heads": 4, "head_dim": 32,
    "n_groups": 1, "conv_kernel": 4, "use_conv_bias": True, "use_bias": False, "hidden_act": "silu", "layer_norm_epsilon": 1e-5}

CONFIGS = {
    "gdn": GDN,
    "gdn-swa": GDN | {"attn": SECOND | {"window_size": 32}},
    "lalte": GDN | {"model_type": "hybrid_gated_deltanet", "attn": SECOND | {"attn_type": "lte", "window_size": 31, "buffer_size": 32,
        "sink_size": 1, "conv_size": [3, 3, 3], "conv_dilation": [2, 2, 2], "receptive_margin": 6, "routing_shared": "head",
        "routing_method": "sigmoid"}},
    "gla": FLA | {"model_type": "gla", "expand_k": 1.0, "expand_v": 1.0, "use_output_gate": True},
    "softmax-gla": FLA | {"model_type": "softmax_gla", "expand_k": 1.0, "expand_v": 1.0, "use_output_gate": True, "sla_gate_input": "hidden"},
    "gsa": FLA | {"model_type": "gsa", "expand_k": 1, "expand_v": 1, "num_slots": 16, "feature_map": "swish", "gate_logit_normalizer": 8},
    "sse-n4k1": FLA | {"model_type": "sse_swa_moba", "sse_layer": "pure", "head_dim": 32, "expand_v": 1.0, "linear_attn_type": "gla",
        "num_sparse_partition": 4, "num_writer": 1, "num_reader": 1, "sse_lora": True, "use_output_gate": True,
        "sse_layer_defaults": {"emulk": True, "emulq": True, "gate_logit_normalizer": 16, "gate_low_rank_dim": 16, "use_k_softmax": True,
            "use_q_softmax": False}},
    "mamba2": MAMBA2,
    "hax-mamba2": MAMBA2 | {"model_type": "hax_mamba2", "sparse_arch": "sign_bin_lsh+key_selection", "sparse_keys": 32, "num_hash": 3,
        "hax_stats": "running"},
}


def mixer(c, layer):
    kind = c["model_type"].removeprefix("softmax_")
    if c.get("attn") and layer in c["attn"].get("layers", []):
        return LTE(c) if c["attn"].get("attn_type") == "lte" else Attention(c)
    known = {"gla": GLA, "gsa": GSA, "retnet": RetNet, "sse_swa_moba": SSE}
    return known.get(kind, GatedDeltaNet)(c)


class Block(nn.Module):
    """A mixer and an MLP."""

    def __init__(self, c, layer):
        super().__init__()
        self.eps = c["norm_eps"]
        self.attn_norm, self.mlp_norm = Weight(c["hidden_size"]), Weight(c["hidden_size"])
        self.attn, self.mlp = mixer(c, layer), MLP(SimpleNamespace(**c))

    def forward(self, x, row):
        y, penalty = self.attn(rms(x, self.attn_norm.weight, self.eps), row)
        x = x + y
        return x + self.mlp(rms(x, self.mlp_norm.weight, self.eps)), penalty


class MambaBlock(nn.Module):
    """Only a mixer."""

    def __init__(self, c, _):
        super().__init__()
        self.eps = c["layer_norm_epsilon"]
        self.norm, self.mixer = Weight(c["hidden_size"]), Mamba2(c)

    def forward(self, x, row):
        y, penalty = self.mixer(rms(x, self.norm.weight, self.eps), row)
        return x + y, penalty


class Model(nn.Module):
    """Any of the models, built from its config.json."""

    def __init__(self, c):
        super().__init__()
        self.config, mamba = c, "mamba" in c["model_type"]
        body = nn.Module()
        body.embeddings = nn.Embedding(c["vocab_size"], c["hidden_size"])
        body.layers = nn.ModuleList((MambaBlock if mamba else Block)(c, i) for i in range(c["num_hidden_layers"]))
        norm = Weight(c["hidden_size"])
        if mamba:
            self.backbone, body.norm_f = body, norm
        else:
            self.model, body.norm = body, norm
        self.body, self.norm, self.eps = [body], [norm], c["layer_norm_epsilon" if mamba else "norm_eps"]
        if not c["tie_word_embeddings"]:
            self.lm_head = linear(c["hidden_size"], c["vocab_size"])
        for name, p in self.named_parameters():
            if "embeddings" in name:
                nn.init.normal_(p, std=0.1)
            elif "conv1d.weight" in name:
                nn.init.uniform_(p, -0.5, 0.5)
            elif "router" in name and p.dim() == 4:
                nn.init.normal_(p, std=(1.6 / (p.shape[1] * p.shape[3])) ** 0.5)
            elif name.endswith("router.conv_stack.proj.bias"):
                nn.init.constant_(p, 0.5)

    def forward(self, tokens, open_rows=None):
        """Returns logits [B, T, V] and the sum of the mixers' penalties. LTE keeps every token of the rows in `open_rows` [B] (see also
        SSE)."""
        B, T = tokens.shape
        if open_rows is None:
            open_rows = torch.zeros(B, dtype=torch.bool, device=tokens.device)
        row = {"pos": torch.arange(T, device=tokens.device).expand(B, T), "open": open_rows, "used": tokens != PAD}
        body, penalties = self.body[0], 0.0
        x = body.embeddings(tokens)
        for layer in body.layers:
            x, penalty = layer(x, row)
            if penalty is not None:
                penalties = penalties + penalty
        head = body.embeddings.weight if self.config["tie_word_embeddings"] else self.lm_head.weight
        return rms(x, self.norm[0].weight, self.eps) @ head.T, penalties
