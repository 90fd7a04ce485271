"""Arrays of logits: numpy arrays if numpy is installed, otherwise memoryviews of floats."""

from __future__ import annotations

import ctypes
from typing import Any


def array(memory: ctypes.Array[ctypes.c_float], writable: bool) -> Any:
    """Returns an array over `memory`, which the array keeps alive."""
    view = memoryview(memory).cast("B")
    if not writable:
        view = view.toreadonly()
    try:
        import numpy
    except ImportError:
        return view.cast("f")
    return numpy.frombuffer(view, dtype=numpy.float32)
