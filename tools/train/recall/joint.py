"""HAX as its authors train it on joint recall: the initial values and the ranking loss of key selection."""

import math

import torch
import torch.nn.functional as F
from torch import nn

STD = 0.1  # of the initial matrices and convolutions
TIME_STEPS = 1e-3, 1e-1


@torch.no_grad()
def authors_start(model):
    """Initializes a model of Mamba-2 blocks, and lets key selection learn from the ranking loss."""
    layers = model.backbone.layers
    for layer in layers:
        mixer = layer.mixer
        mixer.ranks = True
        for linear in (module for module in mixer.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=STD)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        nn.init.normal_(mixer.conv1d.weight, std=STD)
        nn.init.zeros_(mixer.conv1d.bias)
        nn.init.kaiming_uniform_(mixer.out_proj.weight, a=math.sqrt(5))
        mixer.out_proj.weight.div_(math.sqrt(len(layers)))
        least, most = map(math.log, TIME_STEPS)
        step = torch.exp(least + (most - least) * torch.rand(mixer.heads))
        mixer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
        mixer.A_log.copy_(torch.arange(1, mixer.heads + 1).log())


def ranking(score, q, k, used, n):
    """Returns the loss that orders the scores of `n` random tokens of each row as the sums of their weights in linear attention.

    score [B, T]; q, k [B, T, N]; used [B, T] is false for padding.
    """
    T = score.shape[1]
    chosen = torch.where(used, torch.rand_like(score), -1.0).topk(min(n, T), -1).indices
    counts = used.gather(1, chosen)
    k = k.gather(1, chosen[..., None].expand(-1, -1, k.shape[2]))
    sees = (torch.arange(T, device=q.device)[:, None] >= chosen[:, None]) & used[..., None]
    weight = ((q @ k.transpose(1, 2)).sigmoid() * sees).sum(1)
    order = torch.sign(weight[:, :, None] - weight[:, None]) / 2 + 0.5
    score = score.gather(1, chosen)
    loss = F.binary_cross_entropy_with_logits(score[:, :, None] - score[:, None], order, reduction="none")
    pairs = counts[:, :, None] & counts[:, None]
    return (loss * pairs).sum() / pairs.sum()
