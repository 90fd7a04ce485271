#!/usr/bin/env python3
"""Records a model of a configuration in configs/ of idiap/hybrid-linear-sparse-attention, which was never saved by its class and so
lacks vocab_size. Widths, layers and windows are smaller here; no key is added.

idiap.py CHECKOUT...: that repository (82ec3bca), and where transformers and einops are if they are not installed.
"""

import json
import sys
from pathlib import Path

from case import checkouts, randomize, readers, record

checkouts(__doc__)

import torch  # noqa: E402
from fla.models import TransformerConfig, TransformerForCausalLM  # noqa: E402
from fla.models.utils import Cache  # noqa: E402

# The layers round f32 to f16 before attention.
to = torch.Tensor.to
torch.Tensor.to = lambda tensor, *args, **keys: tensor if args[:1] == (torch.float16,) else to(tensor, *args, **keys)

VOCAB = 64


def case(name, file, exercises, seed, config, model, **smaller):
    raw = json.loads((Path(sys.argv[1]) / "configs" / file).read_text()) | smaller
    model = model(config(**raw, vocab_size=VOCAB)).eval()
    randomize(model, seed)
    logits_of, steps_of = readers(model, Cache)
    weights = {key: weight for key, weight in model.state_dict().items() if key != "lm_head.weight" or not raw["tie_word_embeddings"]}
    about = {
        "family": "idiap",
        "exercises": exercises,
        "seed": seed,
        "weights": weights,
        "reference": {"idiap/hybrid-linear-sparse-attention": "82ec3bca5a9ed9f4a2fe982c70daf92090eeebb7", "configuration": file},
        "kernels": "the repository's Triton kernels, run by Triton's interpreter; f32 kept where it rounds to f16; attention in plain PyTorch",
    }
    record(name, model, logits_of, raw, about, steps_of, tokens=60, vocab=VOCAB)


SMALL = dict(hidden_size=32, num_hidden_layers=2, intermediate_size=48)
case("idiap_raw_transformer", "transformer_1.4B.json", "a configuration without vocab_size: a Transformer, not tied", 942,
     TransformerConfig, TransformerForCausalLM, num_heads=4, num_kv_heads=2, **SMALL)
