"""Generations: pieces of text as they are generated, from an iterator or for an event loop."""

from __future__ import annotations

import asyncio
from ctypes import byref, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

from . import _structs as structs
from ._answer import AnswerParser, Part, ToolCall, tool_calls
from ._errors import Error
from ._hooks import Hooks
from ._library import check, library
from ._names import Finish

if TYPE_CHECKING:
    from ._session import Session


class Outcome:
    """The result of a generation: `finish` is the reason why it ended, `tokens` the number of tokens and `seconds` their time;
    `prompt_tokens` and `prompt_seconds` are the same for the message before it, and `reused_tokens` is the number of tokens of the
    conversation that were not read again. All are None before the end."""

    finish: Optional[Finish] = None
    tokens: Optional[int] = None
    seconds: Optional[float] = None
    prompt_tokens: Optional[int] = None
    prompt_seconds: Optional[float] = None
    reused_tokens: Optional[int] = None


class Generation(Outcome):
    """An iterator of pieces of text, as the model writes it. Any other call on the session ends it early.

    `text()`, `reasoning` and `tool_calls` generate the rest first, and `parts()` splits the answer as it arrives. A text that is no answer
    in a conversation is content only."""

    def __init__(self, session: Session, hooks: Hooks) -> None:
        self._session, self._hooks = session, hooks
        self._parser = AnswerParser._made(library.wl_chat_parser, session._value)

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, with "reasoning_content" and "tool_calls" if there are any."""
        for _ in self:
            pass
        return self._parser.message

    def text(self) -> str:
        """The content, without thoughts and calls."""
        content: str = self.message["content"]
        return content

    @property
    def reasoning(self) -> str:
        """The model's thoughts; "" if there are none."""
        reasoning: str = self.message.get("reasoning_content", "")
        return reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of the session's `tools`."""
        return tool_calls(self.message)

    def parts(self) -> Iterator[Part]:
        """Splits the answer as it arrives, in place of the pieces."""
        for _ in self:
            yield from self._parser.parts()
        yield from self._parser.parts()

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> str:
        if self.finish is not None:
            raise StopIteration
        text, length, result = c_void_p(), c_size_t(), structs.GenerateResult()
        with self._session._lock:
            self._check_newest()
            handle = self._session._value
            check(library.wl_generate_next(handle, byref(text), byref(length), byref(result)))
            piece = structs.text(text.value, length.value)
            self._parser._push(piece.encode())
            self._hooks.check()
        if not text.value:
            self.finish = Finish(result.finish)
            self._parser._finish(self.finish is not Finish.END)
            for name in ("tokens", "seconds", "prompt_tokens", "prompt_seconds", "reused_tokens"):
                setattr(self, name, getattr(result, name))
            raise StopIteration
        return piece

    def _check_newest(self) -> None:
        """Raises an error if the session has started another generation since."""
        if self._session._hooks is not self._hooks:
            raise Error("WL_ERROR_ARGUMENT", "no generation has been started on this session, or another call ended it")


class AsyncGeneration(Outcome):
    """Like Generation, for `async for`: a thread of the event loop's pool reads and generates, so the loop stays responsive. Cancelling the
    task ends the generation."""

    def __init__(self, session: Session, start: Callable[[], Generation]) -> None:
        self._session, self._start = session, start
        self._generation: Generation | None = None

    def __aiter__(self) -> AsyncGeneration:
        return self

    async def text(self) -> str:
        """The content, without thoughts and calls; generates the rest first."""
        async for _ in self:
            pass
        return self._generation.text() if self._generation else ""

    @property
    def reasoning(self) -> str | None:
        """The model's thoughts; None before the end."""
        return self._generation.reasoning if self._generation and self.finish is not None else None

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """The calls of the session's `tools`; None before the end."""
        return self._generation.tool_calls if self._generation and self.finish is not None else None

    async def __anext__(self) -> str:
        try:
            piece = await asyncio.to_thread(self._next)
        except asyncio.CancelledError:
            self._session.cancel()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    def _next(self) -> str | None:
        if self._generation is None:
            self._generation = self._start()
        piece = next(self._generation, None)
        if piece is None:
            for name in Outcome.__annotations__:
                setattr(self, name, getattr(self._generation, name))
        return piece
