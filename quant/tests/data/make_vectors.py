"""Makes the test vectors with ggml's own Python package: pip install gguf numpy

    python make_vectors.py FOLDER

For every format NAME:
    NAME.blocks   stored blocks
    NAME.values   f32: the output of gguf.quants.dequantize for NAME.blocks
and for the formats that the package encodes:
    encode.values f32: the inputs; NAME.blocks is the output of gguf.quants.quantize for them
The package only decodes Q4_K, Q5_K and Q6_K; their blocks are random bytes with finite scales.
"""

import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

folder = Path(sys.argv[1])
rng = np.random.default_rng(20240607)


def inputs():
    rows = [
        rng.standard_normal(256),
        rng.standard_normal(256) * 0.02,
        rng.uniform(-3, 3, 256),
        np.zeros(256),
        np.full(256, -1.25),
        rng.standard_normal(256) * np.where(rng.random(256) < 0.05, 40, 0.1),
        rng.integers(-8, 9, 256) / 8,  # ties in rounding, equal magnitudes of both signs
        rng.standard_normal(256) * 1e-7,  # f16 scales below the normal range
        rng.standard_normal(256) * 1000,
    ]
    return np.concatenate(rows).astype(np.float32)


def random_blocks(kind, count):
    """Random bytes, in which the f16 scales are finite, of either sign, and sometimes zero or subnormal."""
    scales = {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}[kind.name]
    blocks = rng.integers(0, 256, (count, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    for at in scales:
        halves = (rng.standard_normal(count) * 10.0 ** rng.integers(-7, 1, count)).astype(np.float16)
        halves[0] = 0
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(count, 2)
    return blocks.reshape(-1)


values = inputs()
values.tofile(folder / "encode.values")
for name in ["F16", "BF16", "Q8_0", "Q4_0"]:
    kind = GGMLQuantizationType[name]
    blocks = quants.quantize(values, kind)
    blocks.tofile(folder / f"{name}.blocks")
    quants.dequantize(blocks, kind).astype(np.float32).tofile(folder / f"{name}.values")
for name in ["Q4_K", "Q5_K", "Q6_K"]:
    kind = GGMLQuantizationType[name]
    blocks = random_blocks(kind, 12)
    blocks.tofile(folder / f"{name}.blocks")
    quants.dequantize(blocks, kind).astype(np.float32).tofile(folder / f"{name}.values")
