"""Trains experiments on all GPUs in a given time and evaluates the models: run_experiments.py sse hax/window... --out DIR --seconds N

A run is an arm of an experiment with all its seeds, in a separate process (`train_stacked.py`); the longest runs begin first, EACH at a
time per GPU. A run that fails is tried once more, with a GPU to itself as far as CUDA can ensure that, and without graphs. A run whose log
of losses is in DIR is skipped. With --waterline, idle cores evaluate the trained models. Writes

    DIR/EXPERIMENT.tar   the finished parts of each experiment, appended at once: EXPERIMENT.ARM.SEED/, EXPERIMENT.ARM.csv, MODEL.recall.csv
    DIR/log.txt          a line for each start and end of a run, the output of the runs, and finally what is complete and what is left
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from experiments import EXPERIMENTS, SEEDS, runs
from table import answer, files
from train_stacked import LATE

HERE = Path(__file__).resolve().parent
EACH = 6  # runs per GPU at a time: a step has a thousand small kernels, which leave most of a GPU idle
ASKING = 45  # seconds reserved at the end for evaluating the models trained last
CONTROL = "nvidia-cuda-mps-control"
PROBE = "import torch; x = torch.ones(64, 64, device='cuda'); print((x @ x).sum().item())"
ALONE = {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}  # excludes a process from the sharing


class Log:
    def __init__(self, path):
        self.file, self.start = open(path, "a"), time.time()

    def say(self, text):
        for line in text.splitlines():
            line = f"{time.time() - self.start:6.1f} s  {line}\n"
            self.file.write(line)
            print(line, end="", flush=True)
        self.file.flush()


def gpus():
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(i) for i in range(listed.count("GPU "))]


def share(names, log):
    """Lets processes compute on a GPU at the same time (CUDA MPS) if available; returns the variables that a process needs."""
    if not names or not shutil.which(CONTROL):
        log.say("kernels of different runs take turns")
        return {}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    probes = []
    try:
        subprocess.run([CONTROL, "-d"], timeout=30, **quiet)
        for name in names:
            visible = os.environ | {"CUDA_VISIBLE_DEVICES": name}
            probes.append(subprocess.Popen([sys.executable, "-c", PROBE], env=visible, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        said = [probe.communicate(timeout=60)[0].decode().strip() for probe in probes]
    except subprocess.TimeoutExpired:
        said = ["no answer"]
    if all(text == "262144.0" for text in said):
        log.say("kernels of different runs share a GPU")
        return {}
    for probe in probes:
        probe.kill()
    log.say(f"kernels of different runs take turns: {said[0][-200:]}")
    unshare()
    return ALONE


def unshare():
    if shutil.which(CONTROL):
        command = ["timeout", "20", CONTROL]
        subprocess.run(command, input="quit\n", text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def cost(run):
    """Returns the approximate duration of a run, for ordering."""
    experiment, arm = run
    stages = EXPERIMENTS[experiment].stages
    square = 3e-3 if experiment == "lalte" and arm != "gdn" or experiment == "hax" else 0.0  # for attention over complete rows
    return sum(s.steps * s.rows * s.length * (1 + square * s.length) for s in stages)


class Queue:
    """Runs, and the slots on the GPUs where they train."""

    def __init__(self, todo, names, variables, args, log):
        self.todo = [(run, 1) for run in sorted(todo, key=cost, reverse=True)]
        # Slots of different GPUs alternate, so that the longest runs do not share one.
        self.places = [{"gpu": name, "process": None} for _ in range(args.each) for name in names or [""]]
        self.variables, self.args, self.log = variables, args, log

    def fill(self, end):
        for place in self.places:
            if place["process"] is None and self.todo:
                run, attempt = self.todo.pop(0)
                name = "/".join(run)
                command = [sys.executable, HERE / "train_stacked.py", name, "--out", self.args.work, "--end", str(end)]
                command += ["--smoke"] if self.args.smoke else []
                command += ["--text", self.args.text] if self.args.text else []
                command += ["--no-graphs"] if attempt > 1 else []
                variables = {"CUDA_VISIBLE_DEVICES": place["gpu"], "OMP_NUM_THREADS": "1"} | (self.variables if attempt == 1 else ALONE)
                said = open(self.args.work / f"{run[0]}.{run[1]}.said", "w+")
                process = subprocess.Popen(command, env=os.environ | variables, stdout=said, stderr=subprocess.STDOUT)
                place |= {"process": process, "run": run, "attempt": attempt, "said": said, "begun": time.time()}
                self.log.say(f"{name} begins" + (f" on GPU {place['gpu']}" if place["gpu"] else ""))

    def ended(self):
        """Returns the runs that finished training since the last call."""
        done = []
        for place in self.places:
            if place["process"] is None or place["process"].poll() is None:
                continue
            run, status = place["run"], place["process"].returncode
            place["process"] = None
            place["said"].seek(0)
            self.log.say(f"{'/'.join(run)} ends with {status}, {time.time() - place['begun']:.0f} s\n{place['said'].read()[-3000:]}")
            if status == 0:
                done.append(run)
            elif status != LATE and place["attempt"] == 1:
                self.todo.insert(0, (run, 2))
        return done

    def idle(self):
        return not self.todo and all(place["process"] is None for place in self.places)

    def stop(self):
        for place in self.places:
            if place["process"]:
                place["process"].terminate()


def keep(args, experiment, names):
    """Appends files or folders to the experiment's archive."""
    with tarfile.open(args.out / f"{experiment}.tar", "a") as archive:
        for name in names:
            archive.add(args.work / name, name)


def models(run):
    return [f"{run[0]}.{run[1]}.{seed}" for seed in SEEDS] + [f"{run[0]}.{run[1]}.csv"]


def trained(work, run):
    return (work / f"{run[0]}.{run[1]}.csv").exists()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=list(EXPERIMENTS), help="experiments, or single arms as EXPERIMENT/ARM")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--work", type=Path, help="where files lie until they are packed; DIR if not given")
    parser.add_argument("--each", type=int, default=EACH)
    parser.add_argument("--text", type=Path, help="the folder that text.py has written, for the experiment `text`")
    parser.add_argument("--waterline", help="the program, to ask the models")
    parser.add_argument("--smoke", action="store_true", help="two steps of two rows in every stage, to try the script")
    args = parser.parse_args()
    args.work = args.work or args.out
    for folder in (args.out, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "log.txt")
    end = log.start + args.seconds
    wanted = list(runs(args.runs))
    names = gpus()
    variables = share(names, log)
    queue = Queue([run for run in wanted if not trained(args.work, run)], names, variables, args, log)
    log.say(f"{len(queue.todo)} of {len(wanted)} runs, {len(queue.places)} at once, {os.cpu_count()} cores")
    team = ThreadPoolExecutor(max(1, os.cpu_count() - len(queue.places)))
    asked = {}
    for run in wanted if args.waterline else []:
        asked |= {team.submit(answer, args.waterline, args.work, *run, seed, args.text): (*run, seed) for seed in SEEDS if trained(args.work, run)}
    late = end - ASKING if args.waterline else end - 5
    while time.time() < end and not (queue.idle() and not asked):
        if time.time() < late:
            queue.fill(late)
        for run in queue.ended():
            keep(args, run[0], models(run))
            if args.waterline:
                asked |= {team.submit(answer, args.waterline, args.work, *run, seed, args.text): (*run, seed) for seed in SEEDS}
        for future in [future for future in asked if future.done()]:
            model = asked.pop(future)
            if error := future.exception():
                log.say(f"{model} not asked: {error}")
            else:
                keep(args, model[0], [f"{name}.recall.csv" for _, name, _ in files(*model)])
        time.sleep(0.2)
    for run in queue.ended():
        keep(args, run[0], models(run))
    queue.stop()
    log.say("complete: " + " ".join("/".join(run) for run in wanted if trained(args.work, run)))
    log.say("left: " + " ".join("/".join(run) for run in wanted if not trained(args.work, run)))
    log.say(f"{len(asked)} models not asked to the end")
    unshare()
    os._exit(0)  # questions still running end with the program


if __name__ == "__main__":
    main()
