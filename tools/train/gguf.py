"""Reads the tensors of a GGUF file written by `waterline convert --type Q4_K`, with the checkpoint's names and as f32.

Formats: F32, F16, Q4_K and Q6_K (the layouts are those of llama.cpp's ggml-quants.h).
"""

import mmap
import struct

import numpy as np
import torch

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NAMES = [("token_embd.", "model.embeddings."), ("output_norm.", "model.norm."), ("blk.", "model.layers."), (".ffn_norm.", ".mlp_norm."), (".ffn_", ".mlp."), (".mixer.", ".attn.")]


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def string(self):
        n = self.take("Q")
        self.at += n
        return bytes(self.data[self.at - n : self.at]).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            inner, n = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(n)]
        return self.take(SCALARS[kind])


def half(raw):
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def q4_k(raw):
    """Blocks of 256: two f16 units, 8 scales and 8 minima of 6 bits in 12 bytes, 128 bytes of 4 bits."""
    b = raw.reshape(-1, 144)
    unit, low_unit, s, q = half(b[:, 0:2]), half(b[:, 2:4]), b[:, 4:16], b[:, 16:].reshape(-1, 4, 1, 32)
    scale = np.concatenate([s[:, 0:4] & 63, (s[:, 8:12] & 15) | (s[:, 0:4] >> 6 << 4)], 1)
    low = np.concatenate([s[:, 4:8] & 63, (s[:, 8:12] >> 4) | (s[:, 4:8] >> 6 << 4)], 1)
    values = np.concatenate([q & 15, q >> 4], 2).reshape(-1, 8, 32).astype(np.float32)
    return values * (unit * scale)[..., None] - (low_unit * low)[..., None]


def q6_k(raw):
    """Blocks of 256: 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 scales of 8 bits, an f16 unit."""
    b = raw.reshape(-1, 210)
    low, high = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate([low & 15, low >> 4], 2)  # four runs of 32 in each half
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], 2)
    values = (low | high << 4).astype(np.float32) - 32
    scale = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32) * half(b[:, 208:210])
    return values.reshape(-1, 16, 16) * scale[..., None]


FORMATS = {0: (1, 4, lambda raw: np.ascontiguousarray(raw).view(np.float32)), 1: (1, 2, half), 12: (256, 144, q4_k), 14: (256, 210, q6_k)}


def load(path, shapes):
    """Returns the file's tensors, in the shapes of a checkpoint (`shapes`: name to shape)."""
    with open(path, "rb") as f:
        r = Reader(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
    if bytes(r.data[:4]) != b"GGUF":
        raise SystemExit(f"{path} is no GGUF file")
    r.at = 4
    r.take("I")
    tensors, keys = r.take("Q"), r.take("Q")
    meta = {}
    for _ in range(keys):
        key = r.string()
        meta[key] = r.value(r.take("I"))
    infos = []
    for _ in range(tensors):
        name = r.string()
        count = int(np.prod([r.take("Q") for _ in range(r.take("I"))]))
        infos.append((name, count, r.take("I"), r.take("Q")))
    align = meta.get("general.alignment", 32)
    base = -(-r.at // align) * align
    out = {}
    for name, count, kind, offset in infos:
        if kind not in FORMATS:
            raise SystemExit(f"{path}: {name} is of format {kind}, expected F32, F16, Q4_K or Q6_K")
        block, size, decode = FORMATS[kind]
        raw = np.frombuffer(r.data, np.uint8, count // block * size, base + offset)
        for old, new in NAMES:
            name = name.replace(old, new)
        for part in ("gate", "up", "down"):
            name = name.replace(f".mlp.{part}.", f".mlp.{part}_proj.")
        out[name] = torch.from_numpy(decode(raw).copy()).reshape(shapes[name])
    return out
