"""Draws training rows on the device, a share of each task, laid out like `tasks.sequence`.

The random numbers are PyTorch's, so no row equals one of the evaluation.
"""

import torch

from tasks import ASK, BOS, CONTEXTS, FILLER, JOINT_CONTEXTS, KEYS, MARK, MARKED_VALUES, TABLE_VALUES, VALUES, shortest

TASKS = ("mqar", "needles", "joint")
NEEDLES = 8  # maximum number of pairs in a row of needles


def below(generator, limit, *shape):
    """Returns integers in 0..limit; `limit` is a number or a tensor that broadcasts to `shape`."""
    return (torch.rand(shape, generator=generator, device=generator.device) * limit).long()


def ranks(generator, present):
    """Returns a random order of the present entries of each row of `present` [..., n]; absent entries come last."""
    priority = torch.rand(present.shape, generator=generator, device=generator.device) + ~present
    return priority.argsort(-1).argsort(-1)


def distinct(generator, tokens, rows, n):
    """Returns n different tokens for each row: [rows, n]."""
    return tokens.start + torch.rand(rows, len(tokens), generator=generator, device=generator.device).argsort(-1)[:, :n]


class Rows:
    """Tokens [rows, length], padded with zeros, and a mask of the tokens that are followed by a requested value."""

    def __init__(self, rows, length, device):
        self.length = length
        self.tokens = torch.zeros(rows, length + 1, dtype=torch.long, device=device)  # the last column receives absent entries
        self.asked = torch.zeros(rows, length + 1, dtype=torch.bool, device=device)
        self.tokens[:, 0] = BOS

    def put(self, position, tokens, present):
        """Writes tokens where present. All three [rows, n]."""
        self.tokens.scatter_(1, torch.where(present, position, self.length), tokens)

    def result(self):
        return self.tokens[:, :-1].to(torch.uint8), self.asked[:, :-1].clone()


def lay_out(generator, sizes, present, filler):
    """Draws a random order of a row's items and filler tokens: the start of each item [rows, n], the position of each filler, the end of
    the body."""
    rows, n = sizes.shape
    most = max(1, int(filler.max()))
    fillers = torch.arange(most, device=sizes.device) < filler[:, None]
    size = torch.cat([sizes * present, fillers.long()], 1)
    rank = ranks(generator, size > 0)
    ordered = torch.zeros_like(size).scatter_(1, rank, size)
    start = 1 + (ordered.cumsum(1) - ordered).gather(1, rank)
    return start[:, :n], start[:, n:], fillers, 1 + size.sum(1, keepdim=True)


def ask(generator, rows, end, cues, values, present):
    """Writes the questions: cues a list of [rows, n], values [rows, n]."""
    rows.tokens.scatter_(1, end, ASK)
    at = end + 1 + (len(cues) + 1) * ranks(generator, present)
    for i, part in enumerate(cues + [values]):
        rows.put(at + i, part, present)
    rows.asked.scatter_(1, torch.where(present, at + len(cues) - 1, rows.length), True)
    rows.asked[:, -1] = False


def pairs(generator, count, length, keys, filler):
    """Returns rows of `keys` [count] pairs among `filler` [count] tokens."""
    rows, device = Rows(count, length, generator.device), generator.device
    most = int(keys.max())
    present = torch.arange(most, device=device) < keys[:, None]
    names, values = distinct(generator, KEYS, count, most), VALUES.start + below(generator, len(VALUES), count, most)
    start, where, fillers, end = lay_out(generator, torch.full_like(names, 2), present, filler)
    rows.put(start, names, present)
    rows.put(start + 1, values, present)
    rows.put(where, FILLER.start + below(generator, len(FILLER), *where.shape), fillers)
    ask(generator, rows, end, [names], values, present)
    return rows.result()


def tables(generator, count, length, keys, filler):
    """Returns rows of joint recall: `keys` [count] keys in each of JOINT_CONTEXTS contexts."""
    rows, device = Rows(count, length, generator.device), generator.device
    most = int(keys.max())
    present = (torch.arange(most, device=device) < keys[:, None])[:, None].expand(-1, JOINT_CONTEXTS, -1)
    contexts = distinct(generator, CONTEXTS, count, JOINT_CONTEXTS)
    names = distinct(generator, KEYS, count, most)[:, None].expand_as(present)
    values = VALUES.start + below(generator, len(VALUES), *present.shape)
    size = (1 + 2 * keys)[:, None].expand(-1, JOINT_CONTEXTS)
    start, where, fillers, end = lay_out(generator, size, torch.ones_like(size, dtype=torch.bool), filler)
    rows.put(start, contexts, torch.ones_like(start, dtype=torch.bool))
    entry = (start[..., None] + 1 + 2 * ranks(generator, present)).flatten(1)
    cues = contexts[..., None].expand_as(present).flatten(1)
    names, values, present = names.flatten(1), values.flatten(1), present.flatten(1)
    rows.put(entry, names, present)
    rows.put(entry + 1, values, present)
    rows.put(where, FILLER.start + below(generator, len(FILLER), *where.shape), fillers)
    ask(generator, rows, end, [cues, names], values, present)
    return rows.result()


def whole_tables(generator, count, length, most):
    """Returns rows of tables that are asked for context by context (see `tasks.table`): contexts, and keys of each, number from half of
    `most` to `most`."""
    rows, device = Rows(count, length, generator.device), generator.device
    number = torch.arange(most, device=device)
    width, height = ((most + 1) // 2 + below(generator, most // 2 + 1, count) for _ in range(2))
    contexts, keys = number < width[:, None], number < height[:, None]
    present = contexts[:, :, None] & keys[:, None]
    values = (VALUES.start + below(generator, TABLE_VALUES, *present.shape)).flatten(1)
    names, here = (KEYS.start + number).expand_as(present).flatten(1), present.flatten(1)
    block = 1 + 2 * height
    for start in (torch.ones_like(width), 2 + width * block):  # of the body and the questions
        at = start[:, None] + block[:, None] * ranks(generator, contexts)
        rows.put(at, (CONTEXTS.start + number).expand_as(at), contexts)
        entry = (at[..., None] + 1 + 2 * ranks(generator, present)).flatten(1)
        rows.put(entry, names, here)
        rows.put(entry + 1, values, here)
    rows.tokens.scatter_(1, 1 + (width * block)[:, None], ASK)
    rows.asked.scatter_(1, torch.where(here, entry, length), True)
    rows.asked[:, -1] = False
    return rows.result()


def marked(generator, count, length, keys, plain):
    """Returns rows of `keys` [count] pairs with a mark after the value, among `plain` [count] other pairs, which are not asked for."""
    rows, device = Rows(count, length, generator.device), generator.device
    most, others = int(keys.max()), max(1, int(plain.max()))
    present = torch.cat([torch.arange(n, device=device) < number[:, None] for n, number in ((most, keys), (others, plain))], 1)
    named = distinct(generator, KEYS, count, len(KEYS))
    names = named[:, :most]
    values = VALUES.start + below(generator, len(VALUES), count, most, MARKED_VALUES)
    size = torch.tensor([2 + MARKED_VALUES] * most + [2] * others, device=device).expand(count, -1)
    start, _, _, end = lay_out(generator, size, present, torch.zeros_like(keys))
    at, here = start[:, :most], present[:, :most]
    rows.put(at, names, here)
    rows.put(at + 1 + MARKED_VALUES, torch.full_like(at, MARK), here)
    question = end + 1 + (1 + MARKED_VALUES) * ranks(generator, here)
    rows.tokens.scatter_(1, end, ASK)
    rows.put(question, names, here)
    for i in range(MARKED_VALUES):
        rows.put(at + 1 + i, values[..., i], here)
        rows.put(question + 1 + i, values[..., i], here)
        rows.asked.scatter_(1, torch.where(here, question + i, length), True)
    rows.asked[:, -1] = False
    at, there = start[:, most:], present[:, most:]
    rows.put(at, named.gather(1, most + below(generator, len(KEYS) - most, count, others)), there)
    rows.put(at + 1, VALUES.start + below(generator, len(VALUES), count, others), there)
    return rows.result()


def draw(generator, count, length, most, tasks=TASKS):
    """Returns `count` rows of up to `length` tokens and `most` pairs: tokens [count, length], asked [count, length], task [count],
    shuffled.

    A quarter of the rows of mqar and joint recall, and all rows of needles, have filler.
    """
    device = generator.device
    parts, task = [], []
    for i, name in enumerate(tasks):
        n = (count + i) // len(tasks)
        task.append(torch.full((n,), i, device=device))
        if name == "marked":
            keys = 1 + below(generator, most, n)
            room = length - shortest(name, keys)
            # Half of the rows are full, the others have any length.
            plain = torch.where(below(generator, 2, n) == 0, room, below(generator, room + 1, n)) // 2
            parts.append(marked(generator, n, length, keys, plain))
            continue
        if name == "table":
            parts.append(whole_tables(generator, n, length, most))
            continue
        if name == "joint":
            keys = 1 + below(generator, max(1, min(most, (length - 6) // 5) // JOINT_CONTEXTS), n)
            room = length - (2 + JOINT_CONTEXTS + 5 * JOINT_CONTEXTS * keys)
        else:
            keys = 1 + below(generator, min(most, (length - 2) // 4, NEEDLES if name == "needles" else most), n)
            room = length - (2 + 4 * keys)
        filled = below(generator, 4, n) == 0 if name != "needles" else torch.ones(n, dtype=torch.bool, device=device)
        filler = below(generator, room + 1, n) * filled
        parts.append((tables if name == "joint" else pairs)(generator, n, length, keys, filler))
    order = torch.randperm(count, generator=generator, device=device)
    tokens, asked = (torch.cat(x)[order] for x in zip(*parts))
    return tokens, asked, torch.cat(task)[order]
