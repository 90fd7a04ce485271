"""Checks the training forms: check.py DIR... compares recorded logits with ours; check.py --write DIR writes a case of every model and
every arm of the experiments.

A case of `--write` has random weights and our logits, for `waterline verify`. A DIR holds config.json, model.safetensors and
case.safetensors (input_ids [T], logits [T, V]).
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from export import export, round_matrices
from experiments import EXPERIMENTS
from models import CONFIGS, Model
from tasks import sequence


def compare(folder):
    config = json.loads((folder / "config.json").read_text())
    model = Model(config).eval()
    tensors = {n: t.float() for n, t in load_file(folder / "model.safetensors").items() if n not in ("model.l1_lambda", "model.num_kept")}
    model.load_state_dict(tensors)
    case = load_file(folder / "case.safetensors")
    with torch.no_grad():
        logits = model(case["input_ids"].long()[None])[0][0]
    difference = {n: (logits[-len(case[n]):] if n != "prefill_logits" else logits[: len(case[n])]) - case[n] for n in case if "logits" in n}
    worst = {n: f"{d.abs().max().item():.1e}" for n, d in difference.items()}
    print(f"{folder.name}: {len(case['input_ids'])} tokens, largest |logit| {case['logits'].abs().max():.2f}, largest difference {worst}")


def write(folder):
    arms = {f"{experiment}.{name}": arm.config for experiment, setup in EXPERIMENTS.items() for name, arm in setup.arms.items()}
    for seed, (name, config) in enumerate((CONFIGS | arms).items()):
        torch.manual_seed(seed)
        model = Model(config).eval()
        with torch.no_grad():  # so that the logits tell the inputs apart, and scores lie on both sides of zero
            for n, p in model.named_parameters():
                if "router.conv_stack.proj" in n:
                    p.mul_(4 if n.endswith("weight") else 0)
                elif p.dim() >= 2:
                    p.mul_(2 if "embeddings" in n else 1.5)
        round_matrices(model)
        tokens = torch.tensor(sequence("needles", 40, 300, seed).tokens)
        with torch.no_grad():
            logits = model(tokens[None])[0][0]
        export(model, folder / name)
        save_file({"input_ids": tokens, "logits": logits.contiguous()}, folder / name / "case.safetensors")
        (folder / name / "meta.json").write_text(json.dumps({"compare": ["logits"], "tolerance": 1e-3}))
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} weights, largest |logit| {logits.abs().max():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    parser.add_argument("folders", nargs="*", type=Path)
    args = parser.parse_args()
    for folder in args.folders:
        compare(folder)
    if args.write:
        write(args.write)
