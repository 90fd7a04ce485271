#!/usr/bin/env python3
"""Compares the speed of two programs on a fixed list of models, as a guard against changes that slow anything down.

usage: guard.py A B [--device cuda] [--short] [--json FILE] [--only TEXT] [--seconds N] [--folder DIR]

A is the last program that landed, B the program of this branch: each a path, or a commit, which is built in target/guard. Both measure each
case alternately (A B, B A, ...), five times. A ratio is B's speed over A's in one round; the median, minimum and maximum of the ratios are
printed. With five rounds, the minimum and maximum enclose the true median with 94 % probability. A case whose median is under 0.95 is
measured five more times, and fails if the median of all rounds stays there. The exit status is then 1.

On a CPU the list has 1 to 16 threads, as far as the machine has cores, prompts of 16 to 2,048 tokens and generation at depths 0 and 4,096;
on a GPU steps, prompts, and batches of 8 and 32 sessions. DIR keeps the models. The run takes about eight minutes (--short: two) on 16
cores or on an H100; --seconds limits it with fewer rounds, at least three. A writes the models before that, with random weights.
"""
import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, FEWEST_ROUNDS, SLOWER = 5, 3, 0.95
BUILT_IN = "built-in"
TOKENIZER = ROOT / "runtime" / "text" / "tests" / "data" / "tok4096"


def program(name):
    """Returns the path of a program, given as a path or a commit."""
    if os.path.isfile(name):
        return os.path.abspath(name)
    commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short=12", f"{name}^{{commit}}"], text=True).strip()
    folder = ROOT / "target" / "guard" / commit
    built = folder / "target" / "release" / "waterline"
    if not built.exists():
        if not folder.exists():
            subprocess.run(["git", "-C", ROOT, "worktree", "add", "--force", "--detach", folder, commit], check=True, stdout=subprocess.DEVNULL)
        print(f"building {commit}", file=sys.stderr)
        subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=folder, check=True)
    return str(built)


class Case:
    """One case: a model, its number format, threads or a GPU, and what is measured."""

    def __init__(self, preset, kind, threads=None, prompt=256, gen=24, depth=0, sessions="", short=False):
        self.preset, self.kind, self.threads = preset, kind, threads
        self.prompt, self.gen, self.depth, self.sessions, self.short = prompt, gen, depth, sessions, short

    def name(self):
        words = [self.preset] if self.preset == BUILT_IN else [self.preset, self.kind]
        words += [f"{self.threads} threads"] if self.threads else []
        return ", ".join([*words, f"prompt {self.prompt}"] + ([f"depth {self.depth}"] if self.depth else []))

    def measure(self, path, model):
        """Returns tokens per second, by the name of the measurement."""
        device = ["--threads", str(self.threads)] if self.threads else ["--device", "cuda"]
        batches = ["--sessions", self.sessions] if self.sessions and has_batches(path) else []
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [path, "bench", *model, *device, "--prompt", self.prompt, "--gen", self.gen, "--depth", self.depth, "--context", "8300"]
            call([*command, *batches, "--json", out.name])
            found = json.load(open(out.name))
        speeds = {} if self.depth else {"prompt": found["prefill_tokens_per_s"]}
        speeds["generation"] = found["decode_tokens_per_s"]
        for batch in found.get("batches", []):
            speeds[f"{batch['sessions']} sessions"] = batch["sessions"] * 1e6 / batch["p50_us"]
        return speeds


@functools.cache
def has_batches(path):
    """Returns whether the program measures batches; programs before 27 November 2026 do not."""
    return "--sessions" in subprocess.run([path, "bench", "--help"], capture_output=True, text=True).stdout


def call(command):
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr.strip()[-600:]}")


def cpu_cases(cores):
    """A case's process takes two to five seconds on a Xeon, so that five rounds of both programs take eight minutes."""
    cases = [Case(BUILT_IN, None, threads, 256, 128, short=threads != 1) for threads in (1, 2, 16)]
    # A prompt and a generation of about a second each.
    tokens = {1: (16, 5), 2: (32, 8), 4: (64, 12), 8: (256, 24), 16: (256, 24)}
    cases += [Case("qwen3.5-0.8b", "q4_0", threads, *tokens[threads], short=threads != 4) for threads in tokens]
    cases += [Case("mamba2-1.3b", "q4_0", threads, tokens[threads][0] // 2, 12, short=threads == 16) for threads in (2, 8, 16)]
    cases.append(Case("lalte-1.4b", "q4_0", 16, 128, 24))
    cases.append(Case("qwen3.5-0.8b", "q4_k", 8, 128, 16))
    cases += [Case("mamba2-1.3b", "q8_0", 16, 128, 12), Case("lalte-1.4b", "q4_k", 16, 128, 12)]
    cases.append(Case("qwen3.5-0.8b", "q4_0", 16, 2048, 8))
    cases.append(Case("qwen3.5-0.8b", "q4_0", 16, 16, 16, depth=4096))
    return [case for case in cases if case.threads <= cores]


def gpu_cases():
    kinds = {
        "gdn-1.3b": ["q4_0", "q8_0", "bf16"],
        **{preset: ["q4_0"] for preset in ("mamba2-1.3b", "lalte-1.4b", "sse-n4k1-1.3b", "qwen3.5-0.8b", "lfm2-1.2b")},
        **{preset: ["q4_k"] for preset in ("rwkv7-1.5b", "nemotron-3-nano-4b", "kimi-linear-4.6b")},
    }
    first = ("gdn-1.3b", "lalte-1.4b", "qwen3.5-0.8b")
    cases = [Case(preset, kind, prompt=8192, gen=200, short=preset in first) for preset in kinds for kind in kinds[preset]]
    return cases + [Case(preset, "q4_0", prompt=512, gen=200, sessions="8,32") for preset in (*first, "mamba2-1.3b")]


def cores():
    """Returns the number of cores that this process may run on, without second hardware threads."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = set()
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(path.read_text().strip() if path.exists() else cpu)
    return len(siblings)


def machine(device):
    found = {"cpu": platform.processor() or platform.machine(), "cores": cores(), "load": os.getloadavg()[0]}
    if os.path.exists("/proc/cpuinfo"):
        names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
        found["cpu"] = names[0] if names else found["cpu"]
    if device == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found["gpu"] = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return found


class Guard:
    """The samples of all cases: for each case and measurement, the speeds of A and B in every round."""

    def __init__(self, programs, cases, folder):
        self.programs, self.cases, self.folder = programs, cases, folder
        self.samples = {case: {} for case in cases}
        self.rounds = 0

    def write_models(self):
        """Writes the missing models with A, several at once."""
        wanted = {self.path(case): case for case in self.cases if case.preset != BUILT_IN}
        commands = [
            [self.programs[0], "synth", case.preset, "--type", case.kind, "-o", path, "--tokenizer", TOKENIZER]
            for path, case in wanted.items()
            if not path.exists()
        ]
        with ThreadPoolExecutor(max(1, cores() // 2)) as pool:
            list(pool.map(call, commands))

    def path(self, case):
        return Path(self.folder) / f"{case.preset}-{case.kind}.gguf"

    def measure(self, cases):
        """Runs one round."""
        first = self.rounds % 2
        self.rounds += 1
        for case in cases:
            model = [] if case.preset == BUILT_IN else [self.path(case)]
            pair = [None, None]
            for index in (first, 1 - first):
                pair[index] = case.measure(self.programs[index], model)
            for part in (part for part in pair[0] if part in pair[1]):
                self.samples[case].setdefault(part, []).append([pair[0][part], pair[1][part]])

    def ratios(self, case):
        return {part: [b / a for a, b in pairs] for part, pairs in self.samples[case].items()}

    def slower(self):
        return [case for case in self.cases if any(statistics.median(ratios) < SLOWER for ratios in self.ratios(case).values())]

    def print(self):
        print(f"| case | part | A, tokens/s | B, tokens/s | B / A (least to greatest) |\n|---|---|---|---|---|")
        for case in self.cases:
            for part, ratios in self.ratios(case).items():
                a, b = (statistics.median(column) for column in zip(*self.samples[case][part]))
                mark = " slower" if statistics.median(ratios) < SLOWER else ""
                print(f"| {case.name()} | {part} | {a:,.1f} | {b:,.1f} | {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}){mark} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--short", action="store_true", help="a part of the list, three rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="cases whose names contain one of these, by semicolons")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--folder", help="where models are written and kept; otherwise a temporary one")
    args = parser.parse_args()
    seconds = args.seconds or (120 if args.short else 480)
    cases = gpu_cases() if args.device == "cuda" else cpu_cases(cores())
    cases = [case for case in cases if (case.short or not args.short) and any(word in case.name() for word in args.only.split(";"))]
    with tempfile.TemporaryDirectory() as temporary:
        guard = Guard([program(args.a), program(args.b)], cases, args.folder or temporary)
        begin = time.monotonic()
        guard.write_models()
        print(f"models written: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        wanted = FEWEST_ROUNDS if args.short else ROUNDS
        start = time.monotonic()
        for index in range(wanted):
            if index >= FEWEST_ROUNDS and start - begin + (time.monotonic() - start) * (index + 1) / index > seconds:
                break
            guard.measure(cases)
            print(f"round {index + 1}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        suspects = guard.slower()
        for _ in range(ROUNDS if suspects else 0):
            if time.monotonic() - begin > 1.25 * seconds:
                break
            guard.measure(suspects)
        failed = guard.slower()
    guard.print()
    known = machine(args.device)
    print(f"\n{args.a} (A) and {args.b} (B), {known}, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, {time.monotonic() - begin:.0f} s")
    if args.json:
        rows = [{"case": case.name(), "part": part, "speeds": pairs, "ratios": guard.ratios(case)[part]} for case in cases for part, pairs in guard.samples[case].items()]
        about = {"a": args.a, "b": args.b, "versions": [version(path) for path in guard.programs], "machine": known, "date": datetime.now(timezone.utc).isoformat()}
        args.json.write_text(json.dumps({"provenance": about, "cases": rows}, indent=1) + "\n")
    if failed:
        print("slower: " + "; ".join(case.name() for case in failed))
    return 1 if failed else 0


def version(path):
    return subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
