#!/usr/bin/env python3
"""Compares waterline with llama.cpp, and with ik_llama.cpp, on the same GGUF files, and prints one table in Markdown.

The programs alternate, so that other load on the machine affects them equally; a cell holds the median of the rounds and, in parentheses,
the minimum and maximum. Each measurement is a process: a prompt, then a generation. On a CPU both peers are measured with and without their
repacking of weights, and a cell holds the faster of the two medians.

    python3 tools/reference/compare.py --llama-bench build/bin/llama-bench [--ik-llama-bench ik/bin/llama-bench] \\
        [--waterline target/release/waterline] [--device cpu] [--threads 1,2,8] [--rounds 5] [--prompt 256] [--gen 48] MODEL.gguf...

With --device cuda the complete model is on the GPU; otherwise the GPU is hidden from a llama-bench built for CUDA.
tools/reference/random_gguf.py writes models of many families to compare.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def waterline(program, device, model, threads, prompt, gen):
    """Returns tokens per second of a prompt and of a generation."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [program, "bench", model, "--device", device, "--threads", threads, "--prompt", prompt, "--gen", gen, "--depth", "0"]
        subprocess.run([*command, "--json", out.name], check=True, stdout=subprocess.DEVNULL)
        result = json.load(open(out.name))
    return result["prefill_tokens_per_s"], result["decode_tokens_per_s"]


def llama_bench(program, device, model, threads, prompt, gen, *options):
    """Like `waterline`, for a llama-bench. On a GPU a test is short compared with the start of the process, so each test is repeated."""
    command = [program, "-m", model, "-t", threads, "-p", prompt, "-n", gen, "-o", "json", *options]
    command += ["-r", "1"] if device == "cpu" else ["-r", "3", "-ngl", "99"]
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    result = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **hidden}).stdout
    speed = {row["n_gen"] > 0: row["avg_ts"] for row in json.loads(result)}
    return speed[False], speed[True]


def peer(program, device, options):
    """Returns a function that runs llama-bench with these options."""
    return lambda *case: llama_bench(program, device, *case, *options)


def cell(samples):
    """Formats the median (minimum to maximum)."""
    digits = 0 if statistics.median(samples) >= 100 else 1
    return f"{statistics.median(samples):.{digits}f} ({min(samples):.{digits}f} to {max(samples):.{digits}f})"


def best(variants, part):
    """Returns the samples of the variant with the greatest median."""
    measured = [[speed[part] for speed in samples] for samples in variants if samples]
    return max(measured, key=statistics.median, default=[])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--waterline", default="target/release/waterline")
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--ik-llama-bench")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", default="256")
    parser.add_argument("--gen", default="48")
    args = parser.parse_args()
    cpu = args.device == "cpu"
    programs = {"waterline": [lambda *case: waterline(args.waterline, args.device, *case)]}
    repacking = [["--repack", "1"], ["--repack", "0"]] if cpu else [[]]
    programs["llama.cpp"] = [peer(args.llama_bench, args.device, options) for options in repacking]
    if args.ik_llama_bench:
        repacking = [["-rtr", "1"], ["-rtr", "0"]] if cpu else [[]]
        programs["ik_llama.cpp"] = [peer(args.ik_llama_bench, args.device, options) for options in repacking]
    names = list(programs)
    heads = [f"{name}, {what}" for what in ("prompt", "generation") for name in names]
    print(f"Prompts of {args.prompt} and generations of {args.gen} tokens on {args.device}, tokens/s: median of {args.rounds} rounds (least to most).\n")
    print("| model | threads |", " | ".join(heads), "| of the fastest peer |")
    print("|" + "---|" * (len(heads) + 3))
    for model in args.models:
        for threads in args.threads.split(","):
            samples = {name: [[] for _ in programs[name]] for name in names}
            for _ in range(args.rounds):
                for name in names:
                    for variant, measure in enumerate(programs[name]):
                        try:
                            samples[name][variant].append(measure(model, threads, args.prompt, args.gen))
                        except (subprocess.CalledProcessError, KeyError) as error:
                            detail = getattr(error, "stderr", "") or ""
                            print(f"{name} {model}: {error} {detail[-300:]}", file=sys.stderr)
            cells, shares = [], []
            for part in (0, 1):
                speeds = {name: best(samples[name], part) for name in names}
                cells += [cell(found) if found else "-" for found in speeds.values()]
                own = speeds.pop("waterline")
                peers = [statistics.median(found) for found in speeds.values() if found]
                shares.append(f"{statistics.median(own) / max(peers):.2f}" if own and peers else "-")
            name = model.rsplit("/", 1)[-1].removesuffix(".gguf")
            print(f"| {name} | {threads} |", " | ".join(cells), "|", " / ".join(shares), "|", flush=True)


if __name__ == "__main__":
    main()
