"""Checkpoints that sessions share."""

from __future__ import annotations

import os
from ctypes import byref
from typing import Any, NamedTuple

from . import _structs as structs
from ._library import Closing, check, filled, library, make


class HistoryRead(NamedTuple):
    """The numbers of tokens of a history that were not read again, and that were read."""

    reused: int
    read: int


class Store(Closing):
    """Checkpoints that sessions share, `model.session(store=store)`: a history that grew, was edited or comes from another process
    continues from the longest checkpoint that is a prefix of it."""

    def __init__(
        self,
        bytes: int | None = None,
        grid: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        directory_bytes: int | None = None,
    ) -> None:
        """Keeps at most `bytes` in memory, with a checkpoint at every `grid` tokens of a long prompt (or after every chunk); a `directory`
        also holds them, in at most `directory_bytes`. None means the library's default."""
        params = filled(structs.StoreParams(), library.wl_store_params_init)
        params.set({"bytes": bytes, "grid": grid, "directory_bytes": directory_bytes})
        if directory is not None:
            params.directory = structs.path(directory)
        self._handle = make(library.wl_store_free, library.wl_store_new, byref(params))

    @property
    def stats(self) -> dict[str, Any]:
        """The store's size and the work it has saved."""
        stats = structs.StoreStats()
        check(library.wl_store_get_stats(self._value, byref(stats)))
        return stats.as_dict()

    def clear(self) -> None:
        """Removes all checkpoints, including those in the directory."""
        check(library.wl_store_clear(self._value))

    def flush(self) -> None:
        """Waits until all pending writes to the directory are done."""
        check(library.wl_store_flush(self._value))
