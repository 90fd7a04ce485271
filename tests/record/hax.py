#!/usr/bin/env python3
"""Records the models of joint recall of HAX (arXiv 2507.00449): a base model without a head, whose logits are products with the
embedding, as scripts/joint_recall.py there has it.

hax.py HAX MAMBA FOLDER...: checkouts of DeepGraphLearning/HAX (73d3c18b) and state-spaces/mamba (e9594ce1), and where
flash-linear-attention 0.2.0, transformers 4.49 and einops are if they are not installed.
"""

import importlib.util
import re
import sys
import types
from pathlib import Path

from case import checkouts, randomize, record

checkouts(__doc__)

import torch  # noqa: E402
from einops import rearrange, repeat  # noqa: E402

HAX, MAMBA = (Path(folder) for folder in sys.argv[1:3])
STANDARD = dict(
    hidden_size=32, state_size=16, conv_kernel=4, expand=2, num_hidden_layers=2, vocab_size=64, pad_token_id=3,
    initializer_range=0.1, time_step_rank=4, tie_word_embeddings=False, sparse_keys=8, num_hash=3,
)


def selective_scan():
    """selective_scan_ref of the authors of Mamba, from the text of its file, whose imports need a GPU."""
    text = (MAMBA / "mamba_ssm/ops/selective_scan_interface.py").read_text()
    source = re.search(r"^def selective_scan_ref.*?(?=^class )", text, re.M | re.S).group()
    scope = {"torch": torch, "F": torch.nn.functional, "rearrange": rearrange, "repeat": repeat}
    exec(source, scope)
    return scope["selective_scan_ref"]


def scan_heads(x, dt, A, B, C, chunk_size, D=None, dt_bias=None, return_final_states=True, **_):
    """The scan of Mamba-2 by that of Mamba: every channel of a head has the head's step and decay."""
    heads, width, state = x.shape[2], x.shape[3], B.shape[3]
    channels = lambda values: repeat(values, "h -> (h p)", p=width)  # noqa: E731
    out = SCAN(
        rearrange(x, "b l h p -> b (h p) l"), repeat(dt, "b l h -> b (h p) l", p=width),
        repeat(A, "h -> (h p) n", p=width, n=state), *(rearrange(y, "b l g n -> b g n l") for y in (B, C)),
        D=channels(D), delta_bias=channels(dt_bias), delta_softplus=True,
    )
    return rearrange(out, "b (h p) l -> b l h p", h=heads), None


def convolve(x, weight, bias=None, activation=None):
    out = torch.nn.functional.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=x.shape[1])
    return torch.nn.functional.silu(out[..., : x.shape[2]])


SCAN = selective_scan()
FAKES = {
    "causal_conv1d": {"causal_conv1d_fn": convolve, "causal_conv1d_update": None},
    "mamba_ssm.ops.selective_scan_interface": {"selective_scan_fn": SCAN, "mamba_inner_fn": None},
    "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": None},
    "mamba_ssm.ops.triton.ssd_combined": {"mamba_chunk_scan_combined": scan_heads, "mamba_split_conv1d_scan_combined": None},
}
for name, values in FAKES.items():
    module = types.ModuleType(name)
    vars(module).update(values)
    sys.modules[name] = module


def running(x):
    """The mean over the tokens so far."""
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


def enhanced(base, is_running):
    """The authors' module; with `is_running`, its means over all tokens, later ones too, are over the tokens so far, a vector
    is normalized by itself instead of over time, and the hash is a weight."""
    name = f"modeling_enhanced_{base}"
    text = (HAX / f"src/{name}.py").read_text()
    if is_running:
        for old, new in (
            (r"(\w+)\.mean\(1, keepdim=True\)", r"running(\1)"),
            (r"normalize\((\w+)\)", r"normalize(\1, dim=-1)"),
            (r"torch\.randn\(\(self\.ssm_state_size, self\.num_hash\).*\)", "self.lsh_hash"),
            (r"( +)self\.xx_proj = ", r"\1self.lsh_hash = nn.Parameter(torch.randn(self.ssm_state_size, config.num_hash))\n\g<0>"),
        ):
            text, found = re.subn(old, new, text)
            assert found, old
    module = types.ModuleType(name)
    module.running = running
    sys.modules[name] = module
    exec(compile(text, name, "exec"), vars(module))
    return module


def case(name, exercises, seed, model, config, changes="none"):
    torch.manual_seed(seed)
    model = model(config).float().eval()
    randomize(model, seed)
    head = model.get_input_embeddings().weight
    with torch.no_grad():
        head.mul_(0.3)

    def logits_of(ids):
        return (model(input_ids=ids[None], use_cache=False).last_hidden_state @ head.T)[0]

    about = {
        "family": "hax",
        "exercises": exercises,
        "seed": seed,
        "weights": model.state_dict(),
        "reference": {
            "DeepGraphLearning/HAX": "73d3c18b5dfd554392d6e278ff2f2564629cab97",
            "flash-linear-attention (PyPI)": "0.2.0",
            "state-spaces/mamba (torch reference ops)": "e9594ce1c732d97440f0332fdc43170a2294dbfa",
        },
        "changes": changes,
    }
    saved = config.to_diff_dict() | {"architectures": [type(model).__name__]}
    record(name, model, logits_of, saved, about)


from fla.models import MambaConfig, MambaModel, SambaConfig, SambaModel  # noqa: E402
from src.configuration_enhanced_mamba import EnhancedMambaConfig  # noqa: E402
from src.configuration_enhanced_mamba2 import EnhancedMamba2Config  # noqa: E402

STREAMS = "means over the tokens so far, keys and queries normalized by themselves, the hash a weight of the file"
case("hax_recall_mamba2_sink", "EnhancedMamba2Model without a head: a window and sinks", 921, enhanced("mamba2", False).EnhancedMamba2Model,
     EnhancedMamba2Config(sparse_arch="sliding_window+sink", head_dim=16, num_heads=4, n_groups=1, chunk_size=24, **STANDARD))
case("hax_recall_mamba2", "EnhancedMamba2Model without a head: hashed and selected keys", 922, enhanced("mamba2", True).EnhancedMamba2Model,
     EnhancedMamba2Config(sparse_arch="sign_bin_lsh+key_selection", head_dim=16, num_heads=4, n_groups=1, chunk_size=24, **STANDARD), STREAMS)
case("hax_recall_mamba", "EnhancedMambaModel without a head: hashed and selected keys", 928, enhanced("mamba", True).EnhancedMambaModel,
     EnhancedMambaConfig(sparse_arch="sign_bin_lsh+key_selection", **STANDARD), STREAMS)
case("hax_recall_mamba_dilated", "EnhancedMambaModel without a head: a window and every 18th key", 924, enhanced("mamba", False).EnhancedMambaModel,
     EnhancedMambaConfig(sparse_arch="sliding_window+dilated", data_max_length=72, **STANDARD))
case("hax_recall_base", "the base of joint recall: MambaModel without a head, sparse_arch null", 925, MambaModel,
     MambaConfig(sparse_arch=None, **STANDARD))
attention = dict(layers=[1], num_heads=2, num_kv_heads=2, qkv_bias=False, rope_theta=10000.0, window_size=16)
case("hax_recall_samba", "Samba as a base of joint recall: SambaModel without a head, attention in the second layer", 926, SambaModel,
     SambaConfig(sparse_arch=None, attn=attention, hidden_ratio=1, **STANDARD))
