"""Runs the 60 questions of card.json on a model and marks the answers: card.py WATERLINE MODEL.gguf [--card FILE.json] [--seeds N] [--out
FILE.md]

Each question is a conversation of one or more messages, in one process of `waterline chat`; only the last answer is marked. It must contain
every word of `all`, at least one of `any` and none of `none` (ignoring case, complete words), and have at least `words` and at most `most`
words. Each question is answered once greedily, then with the program's default sampling and seeds 1 to N. A sampled score is the mean over
the seeds. A message {"paste": KIND, "characters": N, "messages": M} is N characters of other text in M messages: this repository's licence
repeated, or random words or numbers. Uses only Python's standard library.
"""

import argparse
import json
import os
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


WORDS = """abbey acorn adverb alloy amber anthem apron arch atlas bamboo banner bargain beacon blossom breeze bristle cabin canvas cargo cedar chapter clay clover comet copper crest dagger debt delta diary dusk ember
errand fable fern flannel fleet foam fossil gallop glacier grain gravel harvest hinge hollow hymn ink ivory jigsaw juniper kernel knot lagoon lather ledger lentil lever linen locust lumber mantle marsh meadow mortar mosaic
motto nectar oath oven paddle parcel pasture pebble plaster plume quarrel quill raft relic riddle rust satin scaffold shrub sickle slate sonnet spruce syrup tavern thimble timber tonic trench tunic turret vapor verse wharf
willow wisdom yarn zenith""".split()


def pasted(kind, characters, messages):
    """Returns this many characters of text of a kind in this many messages, each of them one line."""
    r = random.Random(f"{kind} {characters} {messages}")
    if kind == "licence":
        text = " ".join((Path(__file__).resolve().parents[2] / "LICENSE").read_text().split()) + " "
        text *= characters // len(text) + 1
    else:
        text = " ".join(r.choice(WORDS) if kind == "words" else str(r.randint(0, 9999)) for _ in range(characters))
    size = characters // messages
    return [text[i * size : (i + 1) * size].strip() for i in range(messages)]


def conversation(messages):
    return [line for m in messages for line in ([m] if isinstance(m, str) else pasted(m["paste"], m["characters"], m["messages"]))]


def chat(binary, model, messages, options, seconds=600):
    """Returns the program's answers to a conversation of these messages."""
    done = subprocess.run([binary, "chat", *options, model], input="\n".join(messages) + "\n", capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        raise SystemExit(f"{binary} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def last_answer(binary, model, messages, options):
    """Returns the answer to the last message. An answer may have several lines, so the conversation also runs without its last message."""
    before = chat(binary, model, messages[:-1], options) if len(messages) > 1 else ""
    return chat(binary, model, messages, options)[len(before) :].strip()


def holds(answer, text):
    return re.search(rf"(?<!\w){re.escape(text.lower())}(?!\w)", answer.lower()) is not None


def right(answer, want):
    return (all(holds(answer, t) for t in want.get("all", [])) and (not want.get("any") or any(holds(answer, t) for t in want["any"]))
        and not any(holds(answer, t) for t in want.get("none", [])) and want.get("words", 0) <= len(answer.split()) <= want.get("most", 10**6))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--card", type=Path, default=Path(__file__).parent / "card.json", help="the questions")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a table of every question, its greedy answer and its marks")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="questions at a time")
    args = parser.parse_args()
    questions = json.loads(args.card.read_text())
    scores, table = {}, ["| | kind | conversation | greedy answer | greedy | sampled |", "|---|---|---|---|---|---|"]

    def answers(q):
        ways = [["--greedy"]] + [["--seed", str(s)] for s in range(1, args.seeds + 1)]
        return [last_answer(args.binary, args.model, conversation(q["messages"]), ["--threads", "1", *way]) for way in ways]

    with ThreadPoolExecutor(args.jobs) as pool:
        answered = list(pool.map(answers, questions))
    for i, (q, said) in enumerate(zip(questions, answered), 1):
        greedy, marks = said[0], [right(answer, q) for answer in said]
        scores.setdefault(q["kind"], []).append(marks)
        asked = " / ".join(m if isinstance(m, str) else f"({m['characters']} characters of {m['paste']} in {m['messages']})" for m in q["messages"])
        cell = " ".join(greedy.split())
        table.append(f"| {i} | {q['kind']} | {asked if len(asked) < 160 else asked[:157] + '...'} | {cell if len(cell) < 160 else cell[:157] + '...'} "
            f"| {'yes' if marks[0] else '**no**'} | {sum(marks[1:])} of {args.seeds} |")
    print(f"{'kind':24} questions greedy sampled")
    for kind, rows in [*scores.items(), ("all", [m for rows in scores.values() for m in rows])]:
        sampled = sum(sum(m[1:]) for m in rows) / max(1, args.seeds)
        print(f"{kind:24} {len(rows):9} {sum(m[0] for m in rows):6} {f'{sampled:.1f}' if args.seeds else '-':>7}")
    if args.out:
        args.out.write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
