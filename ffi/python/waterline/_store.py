"""Checkpoints that sessions share."""

from __future__ import annotations

import os
from ctypes import byref
from typing import Any, NamedTuple

from . import _structs as structs
from ._library import Closing, check, filled, library, make


class HistoryRead(NamedTuple):
    """How a history came into a session: tokens that were not read again, and tokens that were."""

    reused: int
    read: int


class Store(Closing):
    """Checkpoints that sessions share, `model.session(store=store)`: a history that grew, was edited or is continued by another
    process goes on from the deepest one that it begins with."""

    def __init__(
        self,
        bytes: int | None = None,
        grid: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        directory_bytes: int | None = None,
    ) -> None:
        """At most `bytes` in memory, a checkpoint at every `grid` tokens of a long prompt (or after every chunk); with a `directory` they
        are kept there, too, in at most `directory_bytes`. None leaves the library's defaults."""
        params = filled(structs.StoreParams(), library.wl_store_params_init)
        params.set({"bytes": bytes, "grid": grid, "directory_bytes": directory_bytes})
        if directory is not None:
            params.directory = structs.path(directory)
        self._handle = make(library.wl_store_free, library.wl_store_new, byref(params))

    @property
    def stats(self) -> dict[str, Any]:
        """Its size and what it has saved."""
        stats = structs.StoreStats()
        check(library.wl_store_get_stats(self._value, byref(stats)))
        return stats.as_dict()

    def clear(self) -> None:
        """Forgets all checkpoints, those of the directory too."""
        check(library.wl_store_clear(self._value))

    def flush(self) -> None:
        """Waits until everything that was to be written to the directory has been."""
        check(library.wl_store_flush(self._value))
