"""Arrays of logits in the library's memory: of numpy where it is installed, or else memoryviews of floats."""

from __future__ import annotations

import ctypes
from typing import Any


def array(memory: ctypes.Array[ctypes.c_float], writable: bool) -> Any:
    """An array over `memory`, which it keeps."""
    view = memoryview(memory).cast("B")
    try:
        import numpy
    except ImportError:
        floats = view.cast("f")
        return floats if writable else floats.toreadonly()
    found = numpy.frombuffer(view, dtype=numpy.float32)
    found.flags.writeable = writable
    return found
