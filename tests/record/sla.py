#!/usr/bin/env python3
"""Records softmax linear attention (arXiv 2602.01744) with the read gate after the output norm. The paper has no code: these are
the layers of flash-linear-attention between the paper's gates.

sla.py CHECKOUT...: flash-linear-attention (bc3b101d), and where transformers and einops are if they are not installed.
"""

from case import checkouts, randomize, readers, record

checkouts(__doc__)

import fla.layers.gated_deltanet  # noqa: E402
import fla.layers.gla  # noqa: E402
import fla.layers.multiscale_retention  # noqa: E402
import torch  # noqa: E402
from fla.models import (  # noqa: E402
    GatedDeltaNetConfig, GatedDeltaNetForCausalLM, GLAConfig, GLAForCausalLM, RetNetConfig, RetNetForCausalLM,
)
from fla.models.utils import Cache  # noqa: E402

SMALL = dict(hidden_size=32, num_heads=4, num_hidden_layers=2, intermediate_size=48, vocab_size=64)
# The gates of the layer that runs, [batch, tokens, heads].
GATES = {}


def gated(recurrence, weighed):
    """Multiplies the heads' keys, or their values, by the write gate."""

    def run(**keys):
        return recurrence(**keys | {weighed: keys[weighed] * GATES["write"][..., None]})

    return run


class ReadAfter(torch.nn.Module):
    """The norm, then the read gate."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, *inputs):
        return self.norm(*inputs) * GATES["read"][..., None]


def compute_gates(layer, args, keys):
    x = keys["hidden_states"] if "hidden_states" in keys else args[0]
    GATES["read"], GATES["write"] = (gate(x).softmax(-1) for gate in (layer.gate_q_proj, layer.gate_k_proj))


def case(name, exercises, seed, config, model, norm):
    model = model(config).eval()
    torch.manual_seed(seed)
    for layer in model.model.layers:
        for gate in ("gate_q_proj", "gate_k_proj"):
            setattr(layer.attn, gate, torch.nn.Linear(config.hidden_size, config.num_heads, bias=False))
        layer.attn.register_forward_pre_hook(compute_gates, with_kwargs=True)
    randomize(model, seed)
    weights = model.state_dict()
    for layer in model.model.layers:
        setattr(layer.attn, norm, ReadAfter(getattr(layer.attn, norm)))
    logits_of, steps_of = readers(model, Cache)
    about = {
        "family": "sla",
        "exercises": exercises,
        "seed": seed,
        "weights": weights,
        "reference": {"fla-org/flash-linear-attention": "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89", "gates": "arXiv 2602.01744, equations 10 to 15"},
        "kernels": "the library's Triton kernels, run by Triton's interpreter",
    }
    keys = {"model_type": f"softmax_{config.model_type}", "sla_gate_after_norm": True}
    record(name, model, logits_of, config.to_diff_dict() | keys, about, steps_of, tokens=60)


for module, kernel, weighed in (
    (fla.layers.gla, "fused_recurrent_gla", "k"),
    (fla.layers.multiscale_retention, "fused_recurrent_retention", "k"),
    (fla.layers.gated_deltanet, "fused_recurrent_gated_delta_rule", "v"),
):
    setattr(module, kernel, gated(getattr(module, kernel), weighed))

case("sla_gla_after_norm", "gates on GLA, the read gate after the norm", 931, GLAConfig(**SMALL), GLAForCausalLM, "g_norm_swish_gate")
case("sla_retnet_after_norm", "gates on RetNet, the read gate after the norm", 932, RetNetConfig(**SMALL), RetNetForCausalLM, "g_norm_swish_gate")
case("sla_gdn_after_norm", "gates on Gated DeltaNet, the read gate after the norm", 933, GatedDeltaNetConfig(head_dim=8, **SMALL),
     GatedDeltaNetForCausalLM, "o_norm")
