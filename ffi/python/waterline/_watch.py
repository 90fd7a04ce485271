"""Calls that read a prompt: their progress, and Ctrl-C in the middle of them."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Callable, Optional

from ._library import check

OnProgress = Callable[[int, int], object]


class Watch:
    """Is called after every chunk of a prompt. Exceptions cannot pass through C: one that is raised here cancels the call, and
    is raised again when the call returns. Meanwhile Ctrl-C is noted, so that its handler runs here and not where an exception
    would be lost."""

    def __init__(self) -> None:
        self.function: OnProgress | None = None
        self.raised: BaseException | None = None
        self._interrupt: tuple[int, Optional[FrameType]] | None = None
        self._handler: Callable[[int, Optional[FrameType]], Any] | None = None

    def __call__(self, read: int, total: int, _: object) -> bool:
        try:
            self._handle()
            stops = self.function is not None and self.function(read, total) is False
            self._handle()
            return stops
        except BaseException as raised:
            self.raised = raised
            return True

    def call(self, function: Callable[..., int], *arguments: Any) -> None:
        """Calls a function that reads; raises what was raised meanwhile, or what a status other than WL_OK means."""
        handler = signal.getsignal(signal.SIGINT)
        notes = callable(handler) and threading.current_thread() is threading.main_thread()
        if notes and callable(handler):
            self._handler = handler
            signal.signal(signal.SIGINT, self._note)
        try:
            status = function(*arguments)
        finally:
            if notes:
                signal.signal(signal.SIGINT, handler)
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
        self._handle()
        check(status)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupt = number, frame

    def _handle(self) -> None:
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None and self._handler is not None:
            self._handler(*interrupt)
