"""Converts the corpus to arrays of tokens, and writes as much fresh synthetic text as the run will read.

prepare.py --corpus DIR --out DIR [--tokens MILLIONS] [--further] [--workers N]

DIR holds corpus.jsonl.xz, gen_synth.py and tok4096/. The file `ready` is written last. Each group of the output has <group>.<n>.tokens.npy
(uint16) and <group>.<n>.ends.npy (int64, the end of each document). A code holds the token in its low 12 bits, and above them flags that
control what is learned from it.

A conversation in which a user repeats word for word what a question of card100.json tells or asks is left out, and counted.
"""

import argparse
import itertools
import json
import lzma
import multiprocessing
import os
import sysconfig
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy as np
from tokenizers import Tokenizer

from memory_chat import Writer, load_synth
from skills import common_words
from words import WORDS as COMMON

BOS, EOS, USER, ASSISTANT = 1, 2, 4, 5
ROLES = {"system": 3, "user": USER, "assistant": ASSISTANT}
TOKEN = 0x0FFF
ANSWER = 0x1000  # said by the assistant (or plain text): learned in both phases
NEVER = 0x2000  # random text from the user: never learned
RECALL = 0x4000  # an answer that had to be remembered or computed: there is only one correct form
LONGEST, FURTHER_LONGEST = 4096, 8192  # tokens of a document in the first and in a further run

# Shares of the tokens: in the first and in the second phase of the first run, and in a further run, which has long documents.
MIX = {
    "books": (0.14, 0.04, 0.07), "stories": (0.015, 0.015, 0.01), "fairytale_qa": (0.015, 0.015, 0.01), "human_chat": (0.035, 0.01, 0.015), "tasks": (0.015, 0, 0.01),
    "small_talk": (0.005, 0.01, 0.01), "synth_story": (0.15, 0.10, 0.05), "request": (0.125, 0.13, 0.10), "synth_chat": (0.03, 0.03, 0.02), "recall": (0.05, 0.05, 0.03),
    "sums": (0.06, 0.08, 0.10), "skills": (0.08, 0.11, 0.11), "facts": (0.07, 0.09, 0.09), "free": (0.06, 0.10, 0.15), "memory_short": (0.05, 0.06, 0.05), "memory_mid": (0.07, 0.08, 0.06),
    "memory_long": (0.02, 0.10, 0.06), "memory_far": (0, 0, 0.05)}
SECOND_PHASE = 0.6  # progress at which the second phase begins
MEMORY = {"memory_short": (40, 1200), "memory_mid": (1200, 6000), "memory_long": (6000, 14500), "memory_far": (12000, 26000)}  # characters from telling to asking


SYNTHETIC = ("synth_story", "request", "synth_chat", "recall", "sums", "skills", "facts", "free", *MEMORY)
PRIVATE = ("facts", "free", "recall", *MEMORY)  # the facts that the user tells there are random


def group_of(doc):
    source, kind = doc["source"], doc["kind"]
    if kind == "book":
        return "books"
    if kind == "story":
        return "stories"
    if kind == "qa_ctx":
        return "fairytale_qa"
    if source.startswith(("BYU", "Topical")):
        return "human_chat"
    if source.startswith(("SGD", "Taskmaster")):
        return "tasks"
    if source.startswith("Microsoft"):
        return "small_talk" if doc.get("persona") == "friendly" else None
    return None  # synthetic documents are generated afresh; trivia and definitions are too many to learn, and the model admits that instead


def messages(turns):
    """Returns turns of `memory_chat` as messages; `recall` marks answers that had to be remembered."""
    out = []
    for user, assistant, recall in turns:
        out += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant, "recall": recall}]
    return out


def pieces(doc, private=False):
    """Returns a document in the chat layout: (leading special token, text, trailing special token, flags of its tokens)."""
    if "text" in doc:
        return [(BOS, doc["text"], EOS, ANSWER)]
    out = [(BOS, "", None, NEVER)]
    for m in doc["messages"]:
        said = m["role"] == "assistant"
        flags = (ANSWER | (RECALL if m.get("recall") else 0)) if said else (NEVER if private else 0)
        out.append((ROLES[m["role"]], m["content"], EOS if said else None, flags))
    return out


def encode(tokenizer, docs):
    """Encodes documents (lists of pieces) as arrays of codes."""
    texts = iter(tokenizer.encode_batch_fast([p[1] for d in docs for p in d], add_special_tokens=False))
    for doc in docs:
        codes = []
        for lead, _, trail, flags in doc:
            codes.append(np.array([lead | (flags & NEVER)], np.uint16))
            codes.append(np.array(next(texts).ids, np.uint16) | np.uint16(flags))
            if trail is not None:
                codes.append(np.array([trail | flags], np.uint16))
        yield np.concatenate(codes)


def held_out(path):
    """Returns what the card's questions tell and ask, except what any conversation may contain: the last of several messages, plain
    requests."""
    return {m for q in json.loads(path.read_text()) for m in (q["messages"][:-1] or q["messages"]) if isinstance(m, str) and not m.startswith("Tell me a story")}


def synthetic(group, seed, synth_path, pairs, texts, words, licences, avoided):
    """Yields endless documents of a synthetic group, and whether each was left out because it contains one of the `avoided` messages."""
    synth = load_synth(synth_path, seed)
    writer = Writer(synth, seed, pairs, texts, words, licences)
    while True:
        if group == "synth_story":
            said = synth["storychat"]()[1]
        elif group in ("synth_chat", "recall"):
            said = mark(*synth[{"synth_chat": "chat"}.get(group, group)]())
        elif group in MEMORY:
            said = messages(writer.memory(*MEMORY[group]))
        else:
            said = messages(getattr(writer, group)())
        if any(m["content"] in avoided for m in said if m["role"] == "user"):
            yield None
        else:
            yield pieces({"messages": said}, private=group in PRIVATE)


def mark(kind, said):
    """Marks the remembered answers among gen_synth's messages."""
    for m in said:
        if m["role"] == "assistant" and (kind in ("recall_needle", "recall_list")
                or kind in ("recall_chat", "chat_memory") and m["content"].startswith(("Your ", "You have", "The password is"))):
            m["recall"] = True
    return said


def work(task):
    group, n, seed, budget, docs, synth_path, tokenizer_path, out = task
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    source = iter(docs) if docs is not None else synthetic(group, seed, synth_path, PAIRS, TEXTS, WORDS, LICENCES, HELD_OUT)
    kept, total, avoided = [], 0, 0
    while docs is not None or total < budget:
        batch = list(itertools.islice(source, 256))
        if not batch:
            break
        avoided += batch.count(None)
        batch = [doc for doc in batch if doc is not None]
        for codes in encode(tokenizer, batch):
            if len(codes) > LONGEST:
                if group not in ("books", "stories"):
                    continue
                codes = codes[:LONGEST]
            kept.append(codes)
            total += len(codes)
    np.save(out / f"{group}.{n}.tokens.npy", np.concatenate(kept))
    np.save(out / f"{group}.{n}.ends.npy", np.cumsum([len(c) for c in kept]))
    return group, len(kept), total, avoided


def licences():
    """Returns the licences of the installed Python packages, except this repository's licence, which card100.json pastes."""
    found = sorted(Path(sysconfig.get_paths()["purelib"]).glob("*.dist-info/**/LICEN[SC]E*"))
    texts = {p.read_text(errors="replace") for p in found if p.is_file()}
    return sorted(t for t in texts if len(t) > 500 and "apache" not in t.lower())


def pasted_texts(real):
    """Returns texts for users to paste: passages of books, and equally often this repository's documents and sources."""
    books = [d["text"] for d in real.get("books", [])]
    root = Path(__file__).resolve().parents[2]
    own = [p.read_text(errors="replace") for kind in ("*.md", "*.rs", "*.py") for p in sorted(root.glob(f"**/{kind}")) if not {"target", ".device"} & set(p.relative_to(root).parts)]
    own = [t[i : i + 6000] for t in own for i in range(0, len(t), 6000) if len(t) - i > 500]
    return books + own * max(1, len(books) // (2 * max(1, len(own))))


def read_jsonl(path):
    with lzma.open(path, "rt", encoding="utf-8") as f:
        for line in f:
            yield json.loads(line)


def main():
    global PAIRS, TEXTS, WORDS, LICENCES, HELD_OUT, LONGEST
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=float, default=800, help="millions of tokens that the run is expected to read")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--limit", type=int, default=None, help="read only so many real documents (for a trial)")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--further", action="store_true", help="the data of a further run")
    args = parser.parse_args()
    LONGEST = FURTHER_LONGEST if args.further else LONGEST
    begin = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "ready").unlink(missing_ok=True)
    real = {}
    for doc in itertools.islice(read_jsonl(args.corpus / "corpus.jsonl.xz"), args.limit):
        group = group_of(doc)
        if group and any(MIX[group][2:] if args.further else MIX[group][:2]):
            real.setdefault(group, []).append(doc)
    PAIRS = [(d["messages"][0]["content"], d["messages"][1]["content"]) for d in real.get("small_talk", []) if len(d["messages"]) == 2]
    WORDS, TEXTS = common_words(d["text"] for d in real.get("books", [])) or COMMON, pasted_texts(real)
    LICENCES, HELD_OUT = licences(), held_out(Path(__file__).parent / "card100.json")
    print(f"read {sum(map(len, real.values()))} real documents and {len(LICENCES)} licences in {time.time() - begin:.0f} s", flush=True)

    common = (args.corpus / "gen_synth.py", args.corpus / "tok4096" / "tokenizer.json", args.out)
    tasks, seed = [], args.seed
    for group, (first, second, further) in MIX.items():
        if group in real:
            docs = [pieces(d) for d in real[group]]
            shards = max(1, len(docs) // 1000)
            tasks += [(group, i, 0, 0, docs[i::shards], *common) for i in range(shards)]
        elif group in SYNTHETIC:
            budget = args.tokens * 1e6 * (further if args.further else SECOND_PHASE * first + (1 - SECOND_PHASE) * second)
            if not budget:
                continue
            shards = max(1, round(budget / 1.5e6))
            for i in range(shards):
                tasks.append((group, i, seed, budget / shards, None, *common))
                seed += 1
    assert seed < 900000, "seeds from 900000 on are for evaluation"
    totals, avoided = {}, 0
    with multiprocessing.get_context("fork").Pool(args.workers) as pool:
        for group, docs, tokens, left_out in pool.imap_unordered(work, reversed(tasks), chunksize=1):  # the slowest groups are last in MIX
            d, t = totals.get(group, (0, 0))
            totals[group] = d + docs, t + tokens
            avoided += left_out
    for group, (docs, tokens) in totals.items():
        print(f"{group:14} {docs:8} documents {tokens / 1e6:8.2f} M tokens")
    print(f"{avoided} conversations left out: they held a message of card100.json")
    (args.out / "ready").touch()
    print(f"prepared {sum(t for _, t in totals.values()) / 1e6:.0f} M tokens in {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
