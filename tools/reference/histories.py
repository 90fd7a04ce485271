"""Measures the cost of a history that was read before: tokens read and time to the first token, for each kind of client.

    PYTHONPATH=ffi/python WATERLINE_LIBRARY=target/release/libwaterline_ffi.so python3 tools/reference/histories.py MODEL... [--tokens N,N] [--device cpu|cuda] [--cost]

MODEL is a GGUF file, or `builtin`. Token ids are random, so a model without a tokenizer and with random weights works too. The store has a
grid of 256 and a directory. Every limit in the table is checked; the status is 1 if one is exceeded. `--cost` measures instead what
checkpoints cost a prompt: read without a store, in default chunks and in chunks of 256 tokens, and with stores of several grids (0 is the
default grid)."""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

from waterline import Device, Model, Store

# The number of positions between checkpoints.
GRID = 256
# The tokens of a turn: a message and its answer.
MESSAGE, ANSWER = 60, 200


def history(vocab, count, seed=1):
    numbers = random.Random(seed)
    return [numbers.randrange(3, vocab) for _ in range(count)]


def changed(tokens, at, vocab):
    """Returns the tokens with a different token at one position."""
    return tokens[:at] + [(tokens[at] + 1) % vocab] + tokens[at + 1 :]


def read(session, tokens):
    """Returns the number of tokens read, and milliseconds to the first token of an answer."""
    start = time.perf_counter()
    found = session.read_history(tokens)
    session.sample()
    return found.read, 1e3 * (time.perf_counter() - start)


def rows(model, tokens, options, directory):
    """Yields, for each kind of client, the tokens read, their limit, and the time."""
    vocab = model.info["vocab"]
    said = history(vocab, tokens)
    context = tokens + 4 * (MESSAGE + ANSWER)
    new = lambda store: model.session(temperature=0, context=context, history=context, store=store, **options)
    with Store(grid=GRID, directory=directory) as store:
        with new(store) as session:
            fresh = read(session, said)
            yield "reads it for the first time", fresh[0], tokens, fresh[1]
            answer = [session.step() for _ in range(ANSWER)]
            session.checkpoint()
            message = history(vocab, MESSAGE, 2)
            yield "appends a message", *appended(session, said + answer + message, MESSAGE)
            turn = said + answer + message
            answer = [session.step() for _ in range(ANSWER)]
            session.checkpoint()
            edited = changed(turn + answer, len(turn) + 10, vocab) + history(vocab, MESSAGE, 3)
            yield "edits the last answer", *appended(session, edited, MESSAGE + ANSWER + GRID)
            dropped = turn + answer[ANSWER // 2 :] + history(vocab, MESSAGE, 4)
            yield "drops its thinking", *appended(session, dropped, MESSAGE + ANSWER + GRID)
            middle = tokens // 2
            system = changed(said, middle, vocab)
            yield "changes a line in the middle", *appended(session, system, tokens - middle + GRID)
            most = 0
            for _ in range(8):
                with new(store) as fork:
                    count, ms = read(fork, said)
                    most = max(most, count)
            yield "forks into 8 (the last one's time)", most, 0, ms
            ms = min(forked(session) for _ in range(8))
            yield "forks a session (the best of 8)", 0, 0, ms
        store.flush()


def forked(session):
    """Returns the milliseconds that a fork takes."""
    start = time.perf_counter()
    fork = session.fork()
    ms = 1e3 * (time.perf_counter() - start)
    fork.close()
    return ms


def cost(model, tokens, options, grids):
    """Measures the milliseconds that a prompt takes with and without checkpoints, the best of two, and the number and bytes of
    checkpoints."""
    said = history(model.info["vocab"], tokens)
    ways = [("no store", None, 0), ("no store, chunks of 256", None, 256)]
    ways += [(f"a store with a grid of {grid}" if grid else "a store as it comes", grid, 0) for grid in grids]
    for name, grid, chunk in ways:
        best, held = float("inf"), (0, 0)
        for _ in range(2):
            store = Store(grid=grid) if grid is not None else None
            with model.session(temperature=0, context=tokens + 8, history=tokens + 8, chunk=chunk, store=store, **options) as session:
                best = min(best, read(session, said)[1])
            if store:
                stats = store.stats
                held = stats["checkpoints"], stats["bytes"] >> 20
                store.close()
        yield name, best, 1e3 * tokens / best, *held


def again(model, tokens, options, directory):
    """Acts as another process, which finds the directory: reads the same history, and the history with one more message."""
    context = tokens + 4 * (MESSAGE + ANSWER)
    said = history(model.info["vocab"], tokens)
    for more in ([], [5] * MESSAGE):
        with Store(grid=GRID, directory=directory) as store:
            with model.session(temperature=0, context=context, history=context, store=store, **options) as session:
                print(*read(session, said + more))


def appended(session, tokens, bound):
    count, ms = read(session, tokens)
    return count, bound, ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cost", metavar="GRID,GRID", nargs="?", const="0,256,2048")
    parser.add_argument("--again", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    options = {"threads": args.threads}
    kept = True
    for name in args.models:
        device = Device.CUDA if args.device == "cuda" else Device.CPU
        model = Model.builtin(device=device) if name == "builtin" else Model(name, device=device)
        for tokens in map(int, args.tokens.split(",")):
            if args.again:
                again(model, tokens, options, args.again)
                continue
            print(f"\n{os.path.basename(name)}, {tokens} tokens, {model.device}\n", flush=True)
            if args.cost:
                print("| the prompt is read with | ms | tokens/s | checkpoints | MiB |\n|---|---|---|---|---|")
                for with_what, ms, speed, checkpoints, mebibytes in cost(model, tokens, options, map(int, args.cost.split(","))):
                    print(f"| {with_what} | {ms:.1f} | {speed:.0f} | {checkpoints} | {mebibytes} |", flush=True)
                continue
            print("| the client | tokens read | at most | ms to the first token |\n|---|---|---|---|")
            with tempfile.TemporaryDirectory() as directory:
                table = list(rows(model, tokens, options, directory))
                command = [sys.executable, __file__, name, "--tokens", str(tokens), "--device", args.device]
                command += ["--threads", str(args.threads), "--again", directory]
                process = subprocess.run(command, check=True, capture_output=True, text=True)
                clients = ("reads the same in a new process", "starts again in a new process")
                for client, line in zip(clients, process.stdout.splitlines()):
                    count, ms = line.split()
                    table.append((client, int(count), MESSAGE + ANSWER + GRID, float(ms)))
            for client, count, bound, ms in table:
                kept &= count <= bound
                print(f"| {client} | {count} | {bound} | {ms:.1f} |", flush=True)
    sys.exit(not kept)


if __name__ == "__main__":
    main()
