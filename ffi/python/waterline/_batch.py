"""Sessions that step together."""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import c_size_t, c_uint32, c_void_p
from typing import Iterable, Sequence, SupportsIndex

from . import _structs as structs
from ._generation import Generation
from ._library import Closing, check, library, make
from ._session import Session


class Batch(Closing):
    """Sessions of one model that step together: one pass over the weights serves them all. Each gives the tokens it would give alone."""

    def __init__(self, session: Session, most: int) -> None:
        """Makes a batch for up to `most` sessions like this one; it computes with this session's threads."""
        with session._lock:
            self._handle = make(library.wl_batch_free, library.wl_batch_new, session._value, structs.whole("most", most, c_size_t))

    def step(self, sessions: Iterable[Session]) -> list[int]:
        """Each session chooses a token and reads it."""
        with _Held(sessions) as handles:
            tokens = (c_uint32 * len(handles))()
            check(library.wl_batch_step(self._value, handles, len(handles), tokens))
            return tokens[:]

    def feed(self, sessions: Iterable[Session], tokens: Iterable[SupportsIndex]) -> None:
        """Session i reads tokens[i]."""
        numbers = structs.tokens(tokens)
        with _Held(sessions) as handles:
            if len(numbers) != len(handles):
                raise ValueError(f"tokens: found {len(numbers)} for {len(handles)} sessions")
            check(library.wl_batch_feed(self._value, handles, numbers, len(handles)))

    def generate(self, generations: Sequence[Generation]) -> list[str | None]:
        """Advances the generations that `generate` or `say` of their sessions began by one token each; returns their pieces of text, empty
        while a character is incomplete, None where a generation has ended."""
        with _Held([generation._session for generation in generations]) as handles:
            for generation in generations:
                generation._check_newest()
            texts, lengths = (c_void_p * len(handles))(), (c_size_t * len(handles))()
            check(library.wl_batch_generate(self._value, handles, len(handles), texts, lengths))
            pieces = [structs.text(text, length) if text else None for text, length in zip(texts, lengths)]
            for generation, piece in zip(generations, pieces):
                generation._parser._push((piece or "").encode())
            for generation in generations:
                generation._hooks.check()
        return pieces


class _Held:
    """The handles of sessions, locked against other threads."""

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._sessions, self._locks = list(sessions), contextlib.ExitStack()

    def __enter__(self) -> ctypes.Array[c_void_p]:
        with contextlib.ExitStack() as locks:
            # A fixed order, so that two batches cannot deadlock.
            for session in sorted(self._sessions, key=id):
                locks.enter_context(session._lock)
            self._handles = [session._value for session in self._sessions]
            self._locks = locks.pop_all()
        return (c_void_p * len(self._handles))(*(handle._as_parameter_ for handle in self._handles))

    def __exit__(self, *_: object) -> None:
        self._locks.close()
