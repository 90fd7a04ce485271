"""Calls that read a prompt, with progress and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Callable, Optional

from ._library import check

OnProgress = Callable[[int, int], object]


class Watch:
    """Called after every chunk of a prompt. Exceptions cannot pass through C: an exception raised here cancels the call and is raised again
    when the call returns. During the call Ctrl-C is only recorded, so that its handler runs here and not where its exception would be
    lost."""

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
        """Calls a function that reads a prompt, then raises the exception raised during the call or that of a status other than WL_OK."""
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
