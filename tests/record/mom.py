#!/usr/bin/env python3
"""Records mixtures of memories without convolutions, as the baselines of arXiv 2507.16577 are, with flash-linear-attention.

mom.py CHECKOUT...: flash-linear-attention (bc3b101d), and where transformers and einops are if they are not installed.

The library's class refuses `use_short_conv: false`, and its code for that case forgets silu. Here the convolutions have only
a last tap of one, which leaves silu, and are left out of the file.
"""

from case import checkouts, randomize, readers, record

checkouts(__doc__)

import torch  # noqa: E402
from fla.models.mom import MomConfig, MomForCausalLM  # noqa: E402
from fla.models.utils import Cache  # noqa: E402

# The library's sort is unstable, so a memory would read tokens out of order.
unstable = torch.Tensor.argsort
torch.Tensor.argsort = lambda tensor, *args, **keys: unstable(tensor, *args, **{"stable": True, **keys})

SMALL = dict(hidden_size=32, num_heads=2, head_dim=16, num_hidden_layers=2, intermediate_size=48, vocab_size=64)


def case(name, exercises, seed, **keys):
    config = MomConfig(**{**SMALL, **keys})
    torch.manual_seed(seed)
    model = MomForCausalLM(config).eval()
    randomize(model, seed)
    with torch.no_grad():
        for module, weight in model.named_parameters():
            if "conv1d" in module:
                weight.zero_()
                weight[..., -1] = 1

    logits_of, steps_of = readers(model, Cache)
    about = {
        "family": "fla",
        "exercises": exercises,
        "seed": seed,
        "weights": {name: weight for name, weight in model.state_dict().items() if "conv1d" not in name},
        "reference": {"fla-org/flash-linear-attention": "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89"},
        "kernels": "the library's Triton kernels, run by Triton's interpreter; convolutions with a last tap of one; a stable sort",
    }
    record(name, model, logits_of, config.to_diff_dict() | {"model_type": "mom", "use_short_conv": False}, about, steps_of, tokens=60)


case("mom_k1_no_conv", "one of four memories and a shared one, no convolutions", 911, topk=1)
