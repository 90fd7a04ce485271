"""What a history costs that was read before: tokens read and time to the first token, for each thing that clients do.

    PYTHONPATH=ffi/python WATERLINE_LIBRARY=target/release/libwaterline_ffi.so python3 tools/reference/histories.py MODEL... [--tokens N,N] [--device cpu|cuda] [--cost]

MODEL is a GGUF file, or `builtin`. Token ids are random, so a model without a tokenizer and with random weights does as well. The store
is one as it comes, with a directory. Every bound of the table is checked; the status is 1 if one is not kept. `--cost` measures what
checkpoints cost a prompt instead: read without a store, with one as it comes, and with one whose grid is 2048."""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time

from waterline import Device, Model, Store

# Positions between the checkpoints of a store as it comes.
GRID = 256
# A turn: a message and its answer.
MESSAGE, ANSWER = 60, 200


def history(vocab, count, seed=1):
    numbers = random.Random(seed)
    return [numbers.randrange(3, vocab) for _ in range(count)]


def changed(tokens, at, vocab):
    """The same with another token at one place."""
    return tokens[:at] + [(tokens[at] + 1) % vocab] + tokens[at + 1 :]


def read(session, tokens):
    """Tokens read and milliseconds to the first token of an answer."""
    start = time.perf_counter()
    found = session.read_history(tokens)
    session.sample()
    return found.read, 1e3 * (time.perf_counter() - start)


def rows(model, tokens, options, directory):
    """Each client with what it reads, the most that it may read, and its time."""
    vocab = model.info["vocab"]
    said = history(vocab, tokens)
    context = tokens + 4 * (MESSAGE + ANSWER)
    new = lambda store: model.session(temperature=0, context=context, history=context, store=store, **options)
    with Store(grid=256, directory=directory) as store:
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
        store.flush()


def cost(model, tokens, options):
    """Milliseconds that a prompt takes with and without checkpoints, the best of two; and how many checkpoints and bytes were kept."""
    said = history(model.info["vocab"], tokens)
    for name, grid in (("no store", None), ("a store as it comes", 0), ("a store with a grid of 2048", 2048)):
        best, held = float("inf"), (0, 0)
        for _ in range(2):
            store = Store(grid=grid) if grid is not None else None
            with model.session(temperature=0, context=tokens + 8, history=tokens + 8, store=store, **options) as session:
                best = min(best, read(session, said)[1])
            if store:
                stats = store.stats
                held = stats["checkpoints"], stats["bytes"] >> 20
                store.close()
        yield name, best, *held


def appended(session, tokens, bound):
    count, ms = read(session, tokens)
    return count, bound, ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--tokens", default="8192,32768")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--again", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    options = {"threads": args.threads}
    kept = True
    for name in args.models:
        device = Device.CUDA if args.device == "cuda" else Device.CPU
        model = Model.builtin(device=device) if name == "builtin" else Model(name, device=device)
        for tokens in map(int, args.tokens.split(",")):
            if args.again:
                # Another process, which finds the directory.
                context = tokens + 4 * (MESSAGE + ANSWER)
                with Store(grid=256, directory=args.again) as store:
                    with model.session(temperature=0, context=context, history=context, store=store, **options) as session:
                        print(*read(session, history(model.info["vocab"], tokens) + [5] * MESSAGE))
                continue
            print(f"\n{os.path.basename(name)}, {tokens} tokens, {model.device}\n", flush=True)
            if args.cost:
                print("| the prompt is read with | ms | checkpoints | MiB |\n|---|---|---|---|")
                for with_what, ms, checkpoints, mebibytes in cost(model, tokens, options):
                    print(f"| {with_what} | {ms:.1f} | {checkpoints} | {mebibytes} |", flush=True)
                continue
            print("| the client | tokens read | at most | ms to the first token |\n|---|---|---|---|")
            with tempfile.TemporaryDirectory() as directory:
                table = list(rows(model, tokens, options, directory))
                again = [sys.executable, __file__, name, "--tokens", str(tokens), "--device", args.device]
                again += ["--threads", str(args.threads), "--again", directory]
                count, ms = subprocess.run(again, check=True, capture_output=True, text=True).stdout.split()
                table.append(("starts again in a new process", int(count), MESSAGE + ANSWER + GRID, float(ms)))
            for client, count, bound, ms in table:
                kept &= count <= bound
                print(f"| {client} | {count} | {bound} | {ms:.1f} |", flush=True)
    sys.exit(not kept)


if __name__ == "__main__":
    main()
