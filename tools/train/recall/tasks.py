"""The recall tasks: exact evaluation sequences, and training batches.

A sequence writes pairs of key and value, then asks for them: BOS, body, ASK, questions. The body holds the pairs and filler in random
order. A question is a key (in joint recall a context and a key); the model must predict the value next, and then reads it. Vocabulary:

    0 PAD | 1 BOS | 2 ASK | 3 MARK | 16..32 contexts | 32..160 keys | 160..224 values | 224..256 filler

`waterline eval recall` draws exactly the same sequences: every random number comes from SplitMix64, in the order of the code below.
"""

import math
from dataclasses import dataclass, field

PAD, BOS, ASK, MARK = 0, 1, 2, 3
VOCAB = 256
CONTEXTS, KEYS, VALUES, FILLER = range(16, 32), range(32, 160), range(160, 224), range(224, 256)
JOINT_CONTEXTS = 4  # contexts of a joint recall table
LEVEL_CONTEXTS = 2  # contexts of each of two levels
MARKED_VALUES = 4  # tokens of a marked pair's value
TABLE_VALUES = 16  # different values of a table


class SplitMix64:
    """The generator of Steele, Lea and Flood."""

    def __init__(self, seed):
        self.state = seed & (2**64 - 1)

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return z ^ (z >> 31)

    def below(self, n):
        """Returns a number in 0..n."""
        return self.next() % n

    def one_of(self, tokens):
        return tokens[self.below(len(tokens))]

    def shuffle(self, items):
        """Shuffles like Fisher and Yates, from the last item down."""
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]

    def order(self, n):
        """Returns 0..n in random order."""
        numbers = list(range(n))
        self.shuffle(numbers)
        return numbers

    def distinct(self, tokens, n):
        """Returns n different tokens: the first n of a shuffle from the first item up."""
        pool = list(tokens)
        for i in range(n):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]


@dataclass
class Sequence:
    tokens: list = field(default_factory=list)
    questions: list = field(default_factory=list)  # (position of the question's last token, position of the value in the body)
    answer: int = 1  # tokens of a value


def shortest(task, keys):
    """Returns the number of tokens of a sequence without filler."""
    if task == "marked":
        return 2 + (3 + 2 * MARKED_VALUES) * keys
    if task == "levels":
        return 2 + LEVEL_CONTEXTS + LEVEL_CONTEXTS**2 + 6 * keys
    if task == "table":
        return 2 + 2 * math.isqrt(keys) + 4 * keys
    return 2 + JOINT_CONTEXTS + 5 * keys if task == "joint" else 2 + 4 * keys


def sequence(task, keys, length, seed):
    """Returns one sequence of `task` (mqar, needle, needles, marked, joint, levels or table) with `keys` pairs, filled up to `length`
    tokens (0: no filler).

    mqar, needle and needles differ only in their usual numbers: many pairs without filler, one pair in filler, several pairs in filler.
    marked: pairs with values of several tokens and a mark after the value, among plain pairs of other keys, which are not asked for.
    joint: the pairs are the entries of a table of JOINT_CONTEXTS contexts by keys / JOINT_CONTEXTS keys; the body's items are complete
    contexts.
    levels: joint recall with LEVEL_CONTEXTS contexts within each of LEVEL_CONTEXTS others; the body's items are complete outer contexts.
    table: joint recall as its authors ask for it, in a square table of contexts and keys: context by context, each named once.
    """
    if task == "marked":
        return marked(keys, length, SplitMix64(seed))
    if task == "levels":
        return levels(keys, length, SplitMix64(seed))
    if task == "table":
        return table(keys, length, SplitMix64(seed))
    rng = SplitMix64(seed)
    filler = max(0, length - shortest(task, keys))
    if task == "joint":
        per_context = keys // JOINT_CONTEXTS
        contexts = rng.distinct(CONTEXTS, JOINT_CONTEXTS)
        names = rng.distinct(KEYS, per_context)
        cues = [[c, k] for c in contexts for k in names]
    else:
        cues = [[k] for k in rng.distinct(KEYS, keys)]
    values = [rng.one_of(VALUES) for _ in cues]
    if task == "joint":
        blocks = []
        for c in range(JOINT_CONTEXTS):
            block = list(range(c * per_context, (c + 1) * per_context))
            rng.shuffle(block)
            blocks.append(block)
    else:
        blocks = [[i] for i in range(keys)]
    items = blocks + [None] * filler
    rng.shuffle(items)
    s = Sequence([BOS])
    written = {}
    for item in items:
        if item is None:
            s.tokens.append(rng.one_of(FILLER))
            continue
        s.tokens += cues[item[0]][:-1]  # the context, if any
        for i in item:
            s.tokens += [cues[i][-1], values[i]]
            written[i] = len(s.tokens) - 1
    return ask(s, cues, values, written, rng)


def ask(s, cues, values, written, rng):
    """Ends a sequence with one question for each cue, in random order; `written` holds the positions of the values."""
    s.tokens.append(ASK)
    order = list(range(len(cues)))
    rng.shuffle(order)
    for i in order:
        s.tokens += cues[i] + [values[i]]
        s.questions.append((len(s.tokens) - 2, written[i]))
    return s


def marked(keys, length, rng):
    names = rng.distinct(KEYS, keys)
    others = [key for key in KEYS if key not in names]
    values = [[rng.one_of(VALUES) for _ in range(MARKED_VALUES)] for _ in names]
    items = list(range(keys)) + [None] * (max(0, length - shortest("marked", keys)) // 2)
    rng.shuffle(items)
    s = Sequence([BOS], answer=MARKED_VALUES)
    written = {}
    for item in items:
        if item is None:
            s.tokens += [rng.one_of(others), rng.one_of(VALUES)]
            continue
        s.tokens.append(names[item])
        written[item] = len(s.tokens)
        s.tokens += values[item] + [MARK]
    s.tokens.append(ASK)
    order = list(range(keys))
    rng.shuffle(order)
    for i in order:
        s.tokens.append(names[i])
        s.questions.append((len(s.tokens) - 1, written[i]))
        s.tokens += values[i]
    return s


def levels(keys, length, rng):
    outer, inner = rng.distinct(CONTEXTS[:8], LEVEL_CONTEXTS), rng.distinct(CONTEXTS[8:], LEVEL_CONTEXTS)
    names = rng.distinct(KEYS, keys // LEVEL_CONTEXTS**2)
    cues = [[a, b, name] for a in outer for b in inner for name in names]
    values = [rng.one_of(VALUES) for _ in cues]
    items = []
    for a in range(LEVEL_CONTEXTS):
        blocks = []
        for b in range(LEVEL_CONTEXTS):
            first = (a * LEVEL_CONTEXTS + b) * len(names)
            blocks.append(list(range(first, first + len(names))))
            rng.shuffle(blocks[-1])
        rng.shuffle(blocks)
        items.append(blocks)
    items += [None] * max(0, length - shortest("levels", keys))
    rng.shuffle(items)
    s = Sequence([BOS])
    written = {}
    for item in items:
        if item is None:
            s.tokens.append(rng.one_of(FILLER))
            continue
        s.tokens.append(cues[item[0][0]][0])
        for block in item:
            s.tokens.append(cues[block[0]][1])
            for i in block:
                s.tokens += [cues[i][2], values[i]]
                written[i] = len(s.tokens) - 1
    return ask(s, cues, values, written, rng)


def table(keys, length, rng):
    side = math.isqrt(keys)
    values = [VALUES[rng.below(TABLE_VALUES)] for _ in range(keys)]
    items = [(context, rng.order(side)) for context in range(side)]
    items += [None] * max(0, length - shortest("table", keys))
    rng.shuffle(items)
    s = Sequence([BOS])
    written = {}

    def write(context, order):
        s.tokens.append(CONTEXTS[context])
        for key in order:
            s.tokens += [KEYS[key], values[context * side + key]]
            yield context * side + key

    for item in items:
        if item is None:
            s.tokens.append(rng.one_of(FILLER))
            continue
        for pair in write(*item):
            written[pair] = len(s.tokens) - 1
    s.tokens.append(ASK)
    for context in rng.order(side):
        for pair in write(context, rng.order(side)):
            s.questions.append((len(s.tokens) - 2, written[pair]))
    return s
