"""Writes a recorded case: a small model of somebody's own code with random weights, a sequence, and the logits that the code gives."""

import contextlib
import importlib.machinery
import json
import os
import sys
import types
import warnings
from pathlib import Path

# The kernels of flash-linear-attention run on the CPU, in Triton's interpreter. Read when triton is imported.
os.environ["TRITON_INTERPRET"] = "1"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import triton  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402

device = types.SimpleNamespace(get_device_properties=lambda index: {"multiprocessor_count": 1})
target = types.SimpleNamespace(backend="cpu")
triton.runtime.driver.set_active(types.SimpleNamespace(get_current_target=lambda: target, utils=device))
# There is nothing to measure; the first configuration of each kernel serves.
Autotuner._bench = lambda *args, **kwargs: 0.0
# flash-linear-attention enters the device of its tensors.
torch.cpu.device = lambda index: contextlib.nullcontext()

from safetensors.torch import save_file  # noqa: E402

FIXTURES = Path(__file__).parent.parent / "fixtures"


def randomize(model, seed):
    """Draws all weights so that every mechanism contributes; norms stay near one, decays where their class puts them."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if name.endswith(("A_log", "dt_bias", "D", "dt_proj.bias")):
                parameter.add_(0.1 * noise)
            elif "norm" in name and parameter.dim() == 1:
                parameter.copy_(1 + 0.1 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.3 * noise)
            elif "embedding" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(1.5 * noise / parameter[0].numel() ** 0.5)


def perturb(model, size):
    """Moves all weights by a relative `size`."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + size * torch.randn(parameter.shape, generator=generator))


def record(name, model, logits_of, config, about, steps_of=None, tokens=72, vocab=None):
    """Writes tests/fixtures/NAME. `logits_of(ids)` returns the logits of all tokens `[tokens, vocab]`; `steps_of(ids, first)`
    those after token `first`, read one by one from the state after the tokens before."""
    generator = torch.Generator().manual_seed(about["seed"] + 1)
    ids = torch.randint(0, vocab or config["vocab_size"], (tokens,), generator=generator)
    saved = {key: value.detach().clone().contiguous() for key, value in about.pop("weights").items()}
    arrays, compare = {"input_ids": ids}, ["logits"]
    with torch.no_grad():
        arrays["logits"] = logits_of(ids).float().contiguous()
        if steps_of is not None:
            arrays["decode_logits"] = steps_of(ids, tokens - 16).float().contiguous()
            compare.append("decode_logits")
            apart = (arrays["decode_logits"] - arrays["logits"][-16:]).abs().max()
            about["max_abs_prefill_minus_decode"] = float(apart)
        perturb(model, 1e-6)
        moved = float((logits_of(ids).float() - arrays["logits"]).abs().max())
    # As in the other cases: room for ten times what the last bits of the weights change.
    tolerance = max(1e-3, 10 * moved)
    assert tolerance < 1e-2, f"{name}: ill-conditioned, {moved}"
    folder = FIXTURES / name
    folder.mkdir(exist_ok=True)
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(arrays, folder / "case.safetensors")
    meta = {"name": name, "T": tokens, "compare": compare, "tolerance": tolerance, "informational": False, "why": ""}
    meta |= {"perturb_1e-6": moved, "logit_absmax": float(arrays["logits"].abs().max())}
    meta |= {"versions": {"torch": torch.__version__}} | about
    for file, value in (("config.json", config), ("meta.json", meta)):
        (folder / file).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: {size // 1024} KiB, logits to {meta['logit_absmax']:.2f}, perturbed {moved:.1e}", about.get("max_abs_prefill_minus_decode", ""))


def readers(model, cache):
    """`logits_of` and `steps_of` of a model of flash-linear-attention, whose state is a `cache`."""

    def logits_of(ids):
        return model(ids[None], use_cache=False).logits[0]

    def steps_of(ids, first):
        past = model(ids[None, :first], use_cache=True, past_key_values=cache()).past_key_values
        rows = []
        for token in ids[first:]:
            out = model(token[None, None], use_cache=True, past_key_values=past)
            past = out.past_key_values
            rows.append(out.logits[0, -1])
        return torch.stack(rows)

    return logits_of, steps_of


def attend(q, k, v, causal=True, window_size=(-1, -1), **_):
    """flash_attn_func in plain PyTorch: [batch, tokens, heads, head_dim], the last query at the last key."""
    assert causal
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    behind = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
    seen = behind <= 0
    if window_size[0] >= 0:
        seen &= behind >= -window_size[0]
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def checkouts(usage):
    """Puts the folders given on the command line first on the path of modules, and plain PyTorch where a GPU is needed."""
    if len(sys.argv) < 2:
        sys.exit(usage)
    sys.path[:0] = sys.argv[1:]
    flash = types.ModuleType("flash_attn")
    # transformers asks whether the module is installed.
    flash.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    flash.flash_attn_func, flash.flash_attn_varlen_func, flash.flash_attn_with_kvcache = attend, None, None
    sys.modules["flash_attn"] = flash
    from fla.modules import activations

    # The library's own function of this name on a CPU.
    activations.swiglu_fwd = getattr(activations, "swiglu_fwd_torch", activations.swiglu_fwd)
