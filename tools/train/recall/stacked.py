"""Models of one configuration with different seeds, computed together: every operation has a leading seed dimension.

Three seeds then cost little more than one if kernels are small. All trained parameters form one matrix [seeds, parameters], which reduces
the optimizer to a dozen kernels.
"""

import torch
import torch.nn.functional as F
from torch.func import functional_call

from model import rms
from models import Model
from tasks import PAD

ALIGN = 8  # parameters begin at multiples of this, for vector loads


class Stacked:
    """`forward` maps tokens [seeds, B, T] to logits [seeds, B, T, V] and penalties [seeds]; `flat` [seeds, parameters] holds the trained
    parameters."""

    def __init__(self, config, prepare, seeds, device):
        """`prepare(model)` changes initial values."""
        self.config, self.seeds, self.device = config, len(seeds), device
        models = []
        for seed in seeds:
            torch.manual_seed(seed)
            models.append(Model(config))
            prepare(models[-1])
        self.template = models[0].to(device)
        named = [dict(model.named_parameters()) for model in models]
        stack = {name: torch.stack([parameters[name].detach().to(device) for parameters in named]) for name in named[0]}
        trained = {name: p for name, p in named[0].items() if p.requires_grad}
        self.fixed = {name: p for name, p in stack.items() if name not in trained}
        self.names, self.shapes = list(trained), [p.shape for p in trained.values()]
        self.sizes = [p.numel() + -p.numel() % ALIGN for p in trained.values()]
        flat = [F.pad(stack[name].flatten(1), (0, size - stack[name][0].numel())) for name, size in zip(self.names, self.sizes)]
        self.flat = torch.cat(flat, 1).requires_grad_()
        # Weight decay applies to matrices only.
        decays = [p.dim() == 2 and "embeddings" not in name for name, p in trained.items()]
        self.decays = torch.cat([torch.full((size,), float(d), device=device) for size, d in zip(self.sizes, decays)])
        self.calls = [self.layer(block) for block in self.template.body[0].layers]

    def parameters(self):
        """Returns the trained parameters by name, [seeds, ...], as views of `flat`."""
        parts = self.flat.split(self.sizes, 1)
        named = {name: part[:, : shape.numel()].unflatten(1, shape) for name, part, shape in zip(self.names, parts, self.shapes)}
        return named | self.fixed

    def layer(self, block):
        """Returns the function of a layer: (parameters, x [seeds, B, T, D], used [seeds, B, T], pos, open) to (x, penalty [seeds])."""
        def call(parameters, x, used, pos, open_rows):
            y, penalty = functional_call(block, parameters, (x, {"pos": pos, "open": open_rows, "used": used}))
            return y, x.new_zeros(()) if penalty is None else penalty

        return torch.vmap(call, in_dims=(0, 0, 0, None, None), randomness="different")

    def forward(self, tokens, open_rows):
        S, B, T = tokens.shape
        parameters = self.parameters()
        pos, used = torch.arange(T, device=tokens.device).expand(B, T), tokens != PAD
        prefix = "backbone" if "mamba" in self.config["model_type"] else "model"
        embedding = parameters[f"{prefix}.embeddings.weight"]
        V = embedding.shape[1]
        offset = V * torch.arange(S, device=tokens.device)[:, None, None]
        x = F.embedding(tokens + offset, embedding.flatten(0, 1))
        penalties = 0.0
        for i, call in enumerate(self.calls):
            scope = f"{prefix}.layers.{i}."
            own = {name.removeprefix(scope): p for name, p in parameters.items() if name.startswith(scope)}
            x, penalty = call(own, x, used, pos, open_rows)
            penalties = penalties + penalty
        norm = parameters[f"{prefix}.norm_f.weight" if prefix == "backbone" else "model.norm.weight"]
        x = rms(x, norm[:, None, None], self.template.eps)
        return (x.flatten(1, 2) @ embedding.mT).unflatten(1, (B, T)), penalties

    def redraw(self):
        """Draws the hashes of HAX anew; a CUDA graph draws others at each replay."""
        for name, p in self.fixed.items():
            if name.endswith("lsh_hash"):
                p.normal_()

    @torch.no_grad()
    def one(self, index):
        """Returns the model of one seed."""
        model = Model(self.config).to(self.device)
        model.load_state_dict({name: p[index] for name, p in self.parameters().items()})
        return model


class AdamW:
    """AdamW on the matrix of a `Stacked`, with the gradient of each seed clipped to norm 1. All state is on the device, for CUDA graphs."""

    BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1

    def __init__(self, stacked):
        self.flat, self.decays = stacked.flat, stacked.decays
        self.mean, self.square = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.steps = torch.zeros((), device=self.flat.device)

    @torch.no_grad()
    def step(self, loss, lr):
        (gradient,) = torch.autograd.grad(loss, self.flat)
        gradient = gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1.0)
        self.steps += 1
        self.mean.lerp_(gradient, 1 - self.BETAS[0])
        self.square.lerp_(gradient.square(), 1 - self.BETAS[1])
        mean, square = (x / (1 - beta**self.steps) for x, beta in zip((self.mean, self.square), self.BETAS))
        self.flat -= lr * (mean / (square.sqrt() + self.EPS) + self.DECAY * self.decays * self.flat)
