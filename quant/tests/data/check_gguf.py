"""Opens a GGUF file with ggml's own Python reader and prints its contents: pip install gguf numpy

    python check_gguf.py FILE

One line per key and per tensor: name, type, shape (outermost first), sum and sum of squares of the decoded numbers.
"""

import sys

import numpy as np
from gguf import GGUFReader, quants

reader = GGUFReader(sys.argv[1])
for key, field in reader.fields.items():
    value = field.contents()
    text = repr(value)
    print("key", key, "/".join(kind.name for kind in field.types), text if len(text) <= 100 else text[:100] + "...")
for tensor in reader.tensors:
    shape = [int(dim) for dim in reversed(tensor.shape)]
    try:
        values = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
    except NotImplementedError:
        print("tensor", tensor.name, tensor.tensor_type.name, shape)
        continue
    assert values.size == int(np.prod(shape)), tensor.name
    print(
        "tensor", tensor.name, tensor.tensor_type.name, shape, f"sum {values.sum():.9g} squares {(values * values).sum():.9g}"
    )
print(f"{len(reader.fields)} fields, {len(reader.tensors)} tensors, alignment {reader.alignment}")
