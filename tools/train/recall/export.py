"""Writes a model as a Hugging Face directory: config.json and model.safetensors, matrices and embedding as f16, the rest as f32."""

import json

import torch
from safetensors.torch import save_file


def is_matrix(name, p):
    """Returns whether GGUF files store a tensor in a selectable number format. All other tensors must stay exact."""
    small = ("a_proj.weight", "b_proj.weight", "lsh_hash")
    return p.dim() == 2 and not name.endswith(small) and "dx_proj" not in name


@torch.no_grad()
def round_matrices(model):
    """Rounds the model's matrices to f16, so that the measured model equals the written one."""
    for name, p in model.named_parameters():
        if is_matrix(name, p):
            p.copy_(p.half().float())


def export(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: (p.half() if is_matrix(n, p) else p.float()).detach().cpu().contiguous() for n, p in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(model.config, indent=1) + "\n")
