"""The callbacks that a generation calls at each token."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, NamedTuple, Optional

from . import _structs as structs
from ._logits import array


class Token(NamedTuple):
    """A generated token, its log-probability by the model alone if `logprobs` was set, and the text that it completes."""

    id: int
    logprob: Optional[float]
    text: str


OnToken = Callable[[Token], object]
OnLogits = Callable[[Any], object]


class Hooks:
    """The callbacks of a generation, adapted to C. An exception cannot pass through C: it stops the generation, and is raised again when
    the call returns."""

    def __init__(self, on_token: OnToken | None, on_logits: OnLogits | None, logprobs: bool) -> None:
        self.raised: BaseException | None = None
        self._on_token, self._on_logits, self._logprobs = on_token, on_logits, logprobs
        self.token = structs.TOKEN(self._token) if on_token or on_logits else structs.TOKEN()
        self.logits = structs.LOGITS(self._logits) if on_logits else structs.LOGITS()

    def _token(self, token: int, logprob: float, text: int, length: int, _: object) -> bool:
        if self.raised is None and self._on_token:
            try:
                piece = ctypes.string_at(text, length).decode()
                return self._on_token(Token(token, logprob if self._logprobs else None, piece)) is False
            except BaseException as raised:
                self.raised = raised
        return self.raised is not None

    def _logits(self, first: int, count: int, _: object) -> None:
        if self.raised is None and self._on_logits:
            try:
                # A copy, because a kept array outlives the library's memory.
                own = (ctypes.c_float * count).from_buffer_copy((ctypes.c_float * count).from_address(first))
                self._on_logits(array(own, writable=True))
                ctypes.memmove(first, own, ctypes.sizeof(own))
            except BaseException as raised:
                self.raised = raised

    def check(self) -> None:
        """Raises the exception that a callback raised, if any."""
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
