"""Trains experiments on one GPU in a given time: run_experiments.py sse hax/window... --out DIR --seconds N

A run is an arm of an experiment with all its seeds (see `stacked.py`). Workers, a process each, compile the layers of the next runs
while others train; runs train in the order of the list, TRAINING at once. A run whose models are in DIR is skipped, and none begins
that would not end in time. Writes

    DIR/EXPERIMENT-N.tar.gz   of each experiment EXPERIMENT.ARM.SEED/{config.json,model.safetensors} and EXPERIMENT.ARM.csv, in pieces
    DIR/log.txt               what was done, one line a run and a stage
"""

import argparse
import multiprocessing as processes
import os
import queue
import signal
import statistics
import tarfile
import time
import traceback
from pathlib import Path

WORKERS = 8
TRAINING = 3  # runs that train at once; the GPU does one thing at a time, but a run also draws rows and records graphs
PACKING = 15  # seconds for the archives
PIECE = 14 << 20  # bytes of models in an archive


class Log:
    """A file that several processes append to."""

    def __init__(self, path, start):
        self.path, self.start = path, start

    def say(self, text):
        line = f"{time.time() - self.start:7.1f} s  {text}\n"
        print(line, end="", flush=True)
        with open(self.path, "a") as file:
            file.write(line)


def folders(out, experiment, arm, seeds):
    return [out / f"{experiment}.{arm}.{seed}" for seed in seeds]


def worker(jobs, done, gate, out, log, args):
    import torch

    from experiments import EXPERIMENTS, SEEDS
    from train_stacked import Run

    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)
    while True:
        experiment, arm, compiled = jobs.get()
        begun = time.time()
        try:
            run = Run(experiment, EXPERIMENTS[experiment], arm, args.seeds or SEEDS, args.smoke, log)
            run.prepare(compiled)
            ready = time.time()
            with gate:
                waited = time.time()
                run.train(out)
            now = time.time()
            log.say(f"{experiment}/{arm}: done; prepared {ready - begun:.0f} s, waited {waited - ready:.0f} s, trained {now - waited:.0f} s")
            done.put((ready - begun, now - waited))
        except BaseException:
            log.say(f"{experiment}/{arm}: failed\n{traceback.format_exc()}")
            done.put(None)


def pack(out, names):
    """One archive for each experiment, or several."""
    for name in names:
        files = sorted(path for path in out.glob(f"{name}.*") if path.suffix != ".gz")
        piece, size, number = None, 0, 0
        for path in files:
            bytes_ = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
            if piece is None or size + bytes_ > PIECE:
                if piece:
                    piece.close()
                number, size = number + 1, 0
                piece = tarfile.open(out / f"{name}-{number}.tar.gz", "w:gz", compresslevel=1)
            piece.add(path, path.name)
            size += bytes_
        if piece:
            piece.close()


def main():
    start = time.time()
    from experiments import SEEDS, runs

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="experiments, or single arms as EXPERIMENT/ARM")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--work", type=Path, help="where models lie until they are packed; DIR if not given")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--smoke", action="store_true", help="few steps of few rows, to try the script")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    work = args.work or args.out
    for folder in (args.out, work):
        folder.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "log.txt", start)
    todo = [run for run in runs(args.runs) if not all((f / "model.safetensors").exists() for f in folders(work, *run, args.seeds or SEEDS))]
    log.say(f"{len(todo)} runs, {args.seconds:.0f} s")
    # Set before the workers import PyTorch.
    os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="2", OMP_NUM_THREADS="1", TORCHINDUCTOR_FX_GRAPH_CACHE="1")
    context = processes.get_context("spawn")
    jobs, done, gate = context.Queue(), context.Queue(), context.Semaphore(TRAINING)
    team = [context.Process(target=worker, args=(jobs, done, gate, work, log, args)) for _ in range(min(args.workers, len(todo)))]
    for process in team:
        process.start()
    end = start + args.seconds - PACKING
    given, finished, times = 0, 0, []
    while finished < len(todo) and time.time() < end:
        # A run trains when it is prepared and the runs ahead of it have trained.
        prepared, trained = (statistics.mean(x) for x in zip(*times)) if times else (0.0, 0.0)
        expected = max(prepared, trained * (given - finished) / TRAINING) + trained
        if given < len(todo) and given - finished < len(team) and time.time() + expected < end:
            # The first runs train without compiling, while the others compile.
            jobs.put((*todo[given], args.compile and given >= TRAINING))
            given += 1
            continue
        if given == finished and given < len(todo):
            log.say(f"{len(todo) - given} runs do not fit")
            break
        try:
            result = done.get(timeout=max(0.1, min(5.0, end - time.time())))
        except queue.Empty:
            if not any(process.is_alive() for process in team):
                break
            continue
        finished += 1
        if result:
            times.append(result)
    for process in team:
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
    complete = [f"{e}/{a}" for e, a in runs(args.runs) if all((f / "model.safetensors").exists() for f in folders(work, e, a, args.seeds or SEEDS))]
    log.say("complete: " + " ".join(complete))
    left = [f"{e}/{a}" for e, a in runs(args.runs) if f"{e}/{a}" not in complete]
    log.say("left: " + " ".join(left))
    pack(work, list(dict.fromkeys(e for e, _ in runs(args.runs))))
    if work != args.out:
        for archive in work.glob("*.tar.gz"):
            (args.out / archive.name).write_bytes(archive.read_bytes())
    log.say("packed")


if __name__ == "__main__":
    main()
