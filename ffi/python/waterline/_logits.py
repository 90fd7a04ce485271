"""Arrays of logits in the library's memory: numpy arrays if numpy is installed, otherwise memoryviews of floats."""

from __future__ import annotations

import ctypes
from typing import Any


def array(memory: ctypes.Array[ctypes.c_float], writable: bool) -> Any:
    """Returns an array over `memory`, which the array keeps alive."""
    view = memoryview(memory).cast("B")
    try:
        import numpy
    except ImportError:
        floats = view.cast("f")
        return floats if writable else floats.toreadonly()
    found = numpy.frombuffer(view, dtype=numpy.float32)
    found.flags.writeable = writable
    return found
