"""Builds batches: rows of complete documents, packed without cutting (except books), in the proportions of the mix."""

import queue
import threading

import numpy as np
import torch

from prepare import ANSWER, MIX, NEVER, RECALL, TOKEN

RECALL_WEIGHT = 4.0  # remembered answers have few tokens, and the model is built for them
JUMPS = 0.4  # share of the documents whose rotary positions jump once, so that distances of up to FARTHEST tokens occur
FARTHEST = 120_000


class Group:
    """The documents of one group in a random order, endlessly; each pass has a new order."""

    def __init__(self, folder, name, index):
        shards = sorted(folder.glob(f"{name}.*.tokens.npy"))
        tokens, ends, base = [], [], 0
        for shard in shards:
            tokens.append(np.load(shard))
            ends.append(np.load(str(shard).replace(".tokens.", ".ends.")) + base)
            base += len(tokens[-1])
        self.tokens, self.ends = np.concatenate(tokens), np.concatenate(ends)
        self.starts = np.concatenate([[0], self.ends[:-1]])
        self.index, self.drawn, self.epoch = index, 0, -1

    def draw(self):
        epoch, i = divmod(self.drawn, len(self.ends))
        if epoch != self.epoch:
            self.epoch, self.order = epoch, np.random.default_rng([self.index, epoch]).permutation(len(self.ends))
        self.drawn += 1
        d = self.order[i]
        return self.tokens[self.starts[d] : self.ends[d]]


class Batches:
    """Draws, packs and prefetches batches in a thread. `state` is what a resumed run needs."""

    def __init__(self, folder, rows, length, state=None, phase=0, seed=0):
        self.rows, self.length = rows, length
        self.groups = {}
        for i, name in enumerate(MIX):
            if any(folder.glob(f"{name}.*.tokens.npy")):
                self.groups[name] = Group(folder, name, i)
        self.names = list(self.groups)
        self.served = {n: 0 for n in self.names}  # tokens
        for name, (drawn, served) in (state or {}).items():
            self.groups[name].drawn, self.served[name] = drawn, served
        self.waiting, self.phase, self.answers, self.random = [], phase, phase > 0, np.random.default_rng(seed)
        self.queue = queue.Queue(maxsize=4)
        threading.Thread(target=self.fill, daemon=True).start()

    def state(self):
        return {n: (g.drawn, self.served[n]) for n, g in self.groups.items()}

    def epochs(self):
        return {n: g.drawn / len(g.ends) for n, g in self.groups.items()}

    def pick(self):
        """Returns the group with the smallest fraction of its share."""
        debt = {n: self.since[n] / MIX[n][self.phase] for n in self.names if MIX[n][self.phase]}
        return min(debt, key=debt.get)

    def fill(self):
        phase = None
        while True:
            if phase != self.phase:
                phase, self.since = self.phase, {n: 0 for n in self.names}
            self.queue.put(self.pack())

    def pack(self):
        """Packs first-fit, longest first; documents that do not fit wait for the next batch."""
        total, target = sum(len(d) for _, d in self.waiting), int(self.rows * self.length * 1.02)
        while total < target:
            name = self.pick()
            doc = self.groups[name].draw()[: self.length + 1]
            self.since[name] += len(doc)
            self.waiting.append((name, doc))
            total += len(doc)
        self.waiting.sort(key=lambda d: -len(d[1]))
        shape = (self.rows, self.length)
        codes, targets = np.zeros(shape, np.uint16), np.full(shape, NEVER, np.uint16)
        pos, group, jump = np.zeros(shape, np.int32), np.zeros(shape, np.uint8), np.zeros(shape, np.int32)
        used, left = np.zeros(self.rows, np.int64), []
        for name, doc in self.waiting:
            n = len(doc) - 1  # the last token is only a target
            room = np.flatnonzero(used + n <= self.length)
            if len(room) == 0:
                left.append((name, doc))
                continue
            r, a = room[0], used[room[0]]
            codes[r, a : a + n], targets[r, a : a + n] = doc[:-1], doc[1:]
            pos[r, a : a + n], group[r, a : a + n] = np.arange(n), self.groups[name].index
            if self.random.random() < JUMPS:
                jump[r, a + self.random.integers(n) : a + n] = int(FARTHEST ** self.random.uniform(0.4, 1))
            used[r] += n
            self.served[name] += n
        for r in range(self.rows):
            pos[r, used[r] :] = np.arange(self.length - used[r])
        self.waiting = left
        learned = (targets & NEVER) == 0
        if self.answers:
            learned &= (targets & ANSWER) != 0
        recalled = (targets & RECALL) != 0
        weight = learned * np.where(recalled, RECALL_WEIGHT, 1.0).astype(np.float32)
        out = {"tokens": (codes & TOKEN).astype(np.int64), "targets": (targets & TOKEN).astype(np.int64), "pos": pos.astype(np.int64), "angle": (pos + jump).astype(np.int64),
            "weight": weight.astype(np.float32), "recalled": recalled, "group": group.astype(np.int64)}
        tensors = {k: torch.from_numpy(v) for k, v in out.items()}
        return {k: v.pin_memory() for k, v in tensors.items()} if torch.cuda.is_available() else tensors

    def next(self, phase, answers, device):
        """Returns a batch. With `answers`, only the assistant's messages and plain text are learned."""
        self.phase, self.answers = phase, answers
        return {k: v.to(device, non_blocking=True) for k, v in self.queue.get().items()}
