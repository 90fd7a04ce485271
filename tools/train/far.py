"""Recall over long texts, by the shipped file and program: far.py WATERLINE MODEL.gguf --corpus DIR [--distances 2000,10000] [--count N] [--table]

A name, a pet and a password are told in the first message; then come pasted texts (held-out documents, in messages of about 6,000 tokens,
each one line) of so many tokens in all; then one question, answered greedily. Marked is whether the answer holds the value.
--table also asks sums and differences, every one a conversation of its own: pairs of numbers seen in training and withheld ones.
"""

import argparse
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from card import chat
from facts import make_facts
from memory_chat import Writer, load_synth
from prepare import read_jsonl
from skills import common_words, withheld, word_withheld

PASTE = 6000  # tokens of a message


def ask(binary, model, messages):
    return chat(binary, model, messages, ["--greedy", "--threads", "1"], seconds=3600).strip().split("\n")


def pasted(texts, tokenizer, r, distance):
    """Messages of held-out text, `distance` tokens in all."""
    out, ids = [], []
    while distance > 0:
        if len(ids) < min(PASTE, distance):
            ids += tokenizer.encode(" ".join(r.choice(texts).split()) + " ", add_special_tokens=False).ids
            continue
        out.append("Here is a long text. " + tokenizer.decode(ids[: min(PASTE, distance)]).strip())
        ids, distance = [], distance - PASTE
    return out


def recall(args, texts, tokenizer):
    for distance in args.distances:
        r, writer, right, wrong = random.Random(distance), Writer(load_synth(args.corpus / "gen_synth.py", 900000 + distance), 900000 + distance), {}, []
        talks = []
        for _ in range(args.count if distance < 50000 else max(1, args.count // 4)):
            facts, keys = make_facts(writer.r), ["name", "pet", "password"]
            writer.r.shuffle(keys)
            key = r.choice(keys)
            value = facts[key].answer.rstrip(".").split(" called " if key == "pet" else " is ")[-1]
            talks.append((facts[key], value, [writer.sentences([r.choice(facts[k].tell) for k in keys]), *pasted(texts, tokenizer, r, distance), r.choice(facts[key].ask)]))
        with ThreadPoolExecutor(args.jobs) as pool:
            answers = list(pool.map(lambda talk: ask(args.binary, args.model, talk[2])[-1], talks))
        for (fact, value, _), said in zip(talks, answers):
            right.setdefault(fact.key, []).append(value in said)
            if value not in said:
                wrong.append(f"{fact.answer} <- {said}")
        print(f"distance {distance:6}: {sum(map(sum, right.values()))} of {sum(map(len, right.values()))} ", {k: f"{sum(v)} of {len(v)}" for k, v in right.items()}, wrong[:6], flush=True)


def table(args, words):
    r = random.Random(7)
    for name, kept in (("seen in training", False), ("withheld", True)):
        for sign in "+-":
            pairs = [(a, b) for a in range(100) for b in range(100) if max(a, b) > 20 and withheld(a, b) == kept and (sign == "+" or a >= b)]
            sample = r.sample(pairs, min(len(pairs), args.pairs))
            wrong = []
            for a, b in sample:
                said = ask(args.binary, args.model, [f"What is {a} {sign} {b}?"])[-1]
                if said != f"{a} {sign} {b} = {a + b if sign == '+' else a - b}.":
                    wrong.append(said)
            print(f"{name}: {len(sample) - len(wrong)} of {len(sample)} with {sign} ", wrong[:4], flush=True)
        pool = [w for w in words if word_withheld(w) == kept]
        sample = r.sample(pool, min(len(pool), args.pairs))
        wrong = [(w, said) for w in sample if (said := ask(args.binary, args.model, [f"How do you spell {w}?"])[-1]) != "-".join(w) + "."]
        print(f"{name}: {len(sample) - len(wrong)} of {len(sample)} words spelt ", wrong[:4], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--distances", type=lambda s: [int(x) for x in s.split(",")], default=[2000, 10000, 100000])
    parser.add_argument("--count", type=int, default=20, help="conversations per distance; a quarter of them beyond 50,000 tokens")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="conversations at a time")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--pairs", type=int, default=200)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.corpus / "tok4096" / "tokenizer.json"))
    texts = [d["text"] for d in read_jsonl(args.corpus / "heldout.jsonl.xz") if "text" in d and len(d["text"]) > 1000]
    recall(args, texts, tokenizer)
    if args.table:
        table(args, common_words(d["text"] for d in read_jsonl(args.corpus / "corpus.jsonl.xz") if d["kind"] == "book"))


if __name__ == "__main__":
    main()
