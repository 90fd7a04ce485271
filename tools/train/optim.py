"""Muon for the matrices, AdamW for the rest, and the fake quantization of the last phase."""

import contextlib

import torch
import torch.nn.functional as F

from model import is_matrix


def orthogonalize(x):
    """Runs five Newton-Schulz steps towards the nearest orthogonal matrices. x [n, rows, cols]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[1] > x.shape[2]
    x = x.bfloat16()
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        g = x @ x.mT
        x = a * x + (b * g + c * g @ g) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum; updates are scaled to the size of AdamW's (0.2 root mean square), so that one learning rate serves both."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.05):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                for p in params:
                    if not self.state[p]:
                        self.state[p]["momentum"] = torch.zeros_like(p)
                grads = [p.grad for p in params]
                moments = [self.state[p]["momentum"] for p in params]
                torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
                updates = torch._foreach_lerp(grads, moments, group["momentum"])  # Nesterov
                updates = orthogonalize(torch.stack(updates)).float() * (0.2 * max(shape) ** 0.5)
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(params, list(updates.unbind()), alpha=-group["lr"])


def optimizers(model, lr):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    matrices = [p for n, p in named if is_matrix(n, p)]
    decayed = [p for n, p in named if not is_matrix(n, p) and p.dim() >= 2 and "conv1d" not in n]
    plain = [p for n, p in named if not is_matrix(n, p) and (p.dim() < 2 or "conv1d" in n)]
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
        lr=lr / 2, betas=(0.9, 0.95), eps=1e-10, fused=matrices[0].is_cuda)
    pair = [Muon(matrices, lr), adam]
    for opt in pair:
        for group in opt.param_groups:
            group["base_lr"] = group["lr"]
    return pair


def quantize_4bit(w):
    """Returns w rounded as in Q4_K: per 32 columns 4 bits with a scale and a minimum, stored in 6 bits relative to the row's superblock of
    256."""
    rows, cols = w.shape
    superblock = 256 if cols % 256 == 0 else cols
    x = w.view(rows, cols // superblock, superblock // 32, 32)
    low = x.amin(-1, keepdim=True).clamp(max=0)
    scale = (x.amax(-1, keepdim=True).clamp(min=0) - low) / 15

    def six_bits(s):
        unit = s.amax(-2, keepdim=True) / 63
        return (s / unit.clamp(min=1e-12)).round() * unit

    scale, low = six_bits(scale), -six_bits(-low)
    q = ((x - low) / scale.clamp(min=1e-12)).round().clamp(0, 15)
    return (q * scale + low).view_as(w)


def quantize_6bit(w):
    """Returns w rounded approximately as in Q6_K: per 16 columns 6 bits, signed."""
    x = w.view(-1, 16)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 31
    return ((x / scale).round() * scale).view_as(w)


@contextlib.contextmanager
def fake_quantized(model, active):
    """Inside the context the model computes with quantized weights; the gradients apply to the exact ones (straight through)."""
    if not active:
        yield
        return
    with torch.no_grad():
        params = [(p, quantize_4bit if is_matrix(n, p) else quantize_6bit) for n, p in model.named_parameters()
            if is_matrix(n, p) or n == "model.embeddings.weight"]
        exact = [p.detach().clone() for p, _ in params]
        for p, quantize in params:
            p.copy_(quantize(p))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_([p for p, _ in params], exact)
