#!/usr/bin/env python3
"""Compares `quantize`, `imatrix` and `eval ppl` with llama-quantize, llama-imatrix and llama-perplexity on the same files.

usage: llama_tools.py WATERLINE BIN MODEL TEXT [--folder DIR] [--ctx N] [--types T,...]

BIN is a folder with llama-quantize, llama-imatrix and llama-perplexity, built from llama.cpp's sources (targets of the same names; the
source distribution of llama-cpp-python has them). MODEL is a GGUF file in f16 or f32 that both programs read, TEXT a file of at least two
windows of N tokens. Quantized files must have the same tensors, formats and bytes, without an importance matrix and with llama-imatrix's;
waterline's matrix must be within a hundredth of it. Perplexities must agree within 0.5 %, and the divergence of each program's logits from
those saved by the other is printed. Needs the packages gguf and numpy.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from gguf import GGUFReader

TYPES = "q8_0 q6_k q5_k_m q5_k_s q5_1 q5_0 q4_k_m q4_k_s q4_1 q4_0 iq4_nl iq4_xs q3_k_l q3_k_m q3_k_s q2_k bf16 f16".split()


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stderr[-800:]}")
    return done.stdout + done.stderr


def differences(ours, theirs):
    """Returns the names of tensors that differ in format or bytes, or exist in one file only."""
    ours, theirs = ({tensor.name: tensor for tensor in GGUFReader(path).tensors} for path in (ours, theirs))
    found = [f"{name} is in one file only" for name in sorted(set(ours) ^ set(theirs))]
    for name in sorted(set(ours) & set(theirs)):
        a, b = ours[name], theirs[name]
        if a.tensor_type != b.tensor_type:
            found.append(f"{name} is {a.tensor_type.name}, llama-quantize has {b.tensor_type.name}")
        elif a.data.tobytes() != b.data.tobytes():
            found.append(f"{name} ({a.tensor_type.name}) has other bytes")
    return found


def distance(ours, theirs):
    """Returns the largest difference between two importance matrices' sums, relative to the tensor's largest sum; infinite if names
    differ."""
    ours, theirs = ({tensor.name: tensor.data.ravel() for tensor in GGUFReader(path).tensors} for path in (ours, theirs))
    if set(ours) != set(theirs):
        return float("inf")
    return max(float(abs(ours[name] - theirs[name]).max() / theirs[name].max()) for name in theirs)


def perplexity(text):
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", text)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("waterline", type=Path)
    parser.add_argument("bin", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--types", default=" ".join(TYPES))
    args = parser.parse_args()
    waterline, failed = args.waterline.resolve(), False
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        ours, theirs = Path(folder) / "ours.gguf", Path(folder) / "theirs.gguf"
        matrices = [Path(folder) / name for name in ("ours.imatrix", "theirs.imatrix")]
        run(waterline, "imatrix", args.text, args.model, "-o", matrices[0], "--ctx", args.ctx, "--windows", 8)
        run(args.bin / "llama-imatrix", "-m", args.model, "-f", args.text, "-o", matrices[1], "-c", args.ctx, "--chunks", 8)
        found = distance(*matrices)
        failed |= found > 0.01
        print(f"importance matrices differ by {100 * found:.2f} % at most")
        for kind, matrix in [(kind, matrix) for matrix in (None, matrices[1]) for kind in args.types.replace(",", " ").split()]:
            option = ["--imatrix", matrix] if matrix else []
            run(waterline, "quantize", args.model, "-o", ours, "--type", kind, *option)
            run(args.bin / "llama-quantize", *option, args.model, theirs, kind)
            found = differences(ours, theirs)
            failed |= bool(found)
            print(f"{kind:8} {'with matrix' if matrix else ''} {'equal' if not found else '; '.join(found[:4]) + f' ({len(found)} in all)'}", flush=True)
        saved = [Path(folder) / name for name in ("ours.logits", "theirs.logits")]
        ours_says = json.loads(run(waterline, "eval", "ppl", args.text, args.model, "--ctx", args.ctx, "--save-logits", saved[0], "--json"))
        words = ["-m", args.model, "-f", args.text, "-c", args.ctx, "-b", args.ctx]
        theirs_says = perplexity(run(args.bin / "llama-perplexity", *words, "--kl-divergence-base", saved[1]))
        ratio = ours_says["perplexity"] / theirs_says
        failed |= abs(ratio - 1) > 0.005
        print(f"perplexity {ours_says['perplexity']:.4f}, llama-perplexity {theirs_says:.4f}, ratio {ratio:.5f}")
        kl = json.loads(run(waterline, "eval", "ppl", args.text, args.model, "--kl", saved[1], "--json"))
        print(f"from llama.cpp's logits: KL divergence {kl['kl_divergence']:.2e}, same top token {100 * kl['same_top']:.2f} %")
        back = run(args.bin / "llama-perplexity", *words, "--kl-divergence-base", saved[0], "--kl-divergence")
        print("from ours, by llama-perplexity: " + "; ".join(re.findall(r"(?:Mean    KLD|Same top p):.*", back)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
