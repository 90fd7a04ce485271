#!/usr/bin/env python3
"""Records models of type `sse` with their authors' code, pull request 882 of flash-linear-attention.

sse.py CHECKOUT...: that pull request's folder (4fc9d3e6 and after), and where transformers and einops are if they are not installed.
"""

from case import checkouts, randomize, readers, record

checkouts(__doc__)

import torch  # noqa: E402
from fla.models.sse import SSEConfig, SSEForCausalLM  # noqa: E402
from fla.models.utils import Cache  # noqa: E402

SMALL = dict(hidden_size=32, num_heads=2, head_dim=16, num_hidden_layers=2, intermediate_size=48, vocab_size=64, fuse_norm=True)


def case(name, exercises, seed, rank=None, **keys):
    config = SSEConfig(**{**SMALL, **keys})
    torch.manual_seed(seed)
    model = SSEForCausalLM(config).eval()
    if rank is not None:
        # The paper's rank; the code takes the width of a value head.
        for layer in model.model.layers[:1]:
            for lora in (layer.attn.lora_q_proj, layer.attn.lora_k_proj):
                lora[0] = torch.nn.Linear(lora[0].in_features, rank, bias=False)
                lora[1] = torch.nn.Linear(rank, lora[1].out_features, bias=False)
    randomize(model, seed)

    logits_of, steps_of = readers(model, Cache)
    if config.num_v_heads is not None:
        # The class's state has a matrix per query head, so it cannot decode with more value heads.
        steps_of = None
    about = {
        "family": "sse",
        "exercises": exercises,
        "seed": seed,
        "weights": model.state_dict(),
        "reference": {"fla-org/flash-linear-attention pull request 882": "741fbbf279a102944c39facdfe1fdf323aa85f5f"},
        "kernels": "the pull request's Triton kernels, run by Triton's interpreter",
    }
    record(name, model, logits_of, config.to_diff_dict() | {"model_type": "sse"}, about, steps_of)


case("sse_882_gla", "the class's defaults: GLA, two writers and readers of four partitions, varlen", 901)
case("sse_882_rank", "LoRA of rank 4 under value heads of 16; windowed attention in the second layer, a head of keys for two of queries", 902,
     rank=4, attn={"layers": [1], "num_heads": 2, "num_kv_heads": 1, "window_size": 16})
case("sse_882_conv_w1r2", "masked form, one writer and two readers, convolutions of the shared queries and keys", 903,
     num_writer=1, num_reader=2, sse_implementation="mask", use_short_conv=True)
case("sse_882_gdn", "Gated DeltaNet, twice as many value heads, one of three partitions, no output gate", 904,
     linear_attn_type="gdn", num_v_heads=4, num_sparse_partition=3, num_writer=1, num_reader=1, use_output_gate=False)
