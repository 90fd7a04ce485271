"""Answers, split into content, thoughts and tool calls."""

from __future__ import annotations

import json
from ctypes import byref, c_char_p, c_size_t
from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple, Optional

from . import _structs as structs
from ._library import Closing, check, library, make
from ._names import PartKind

if TYPE_CHECKING:
    from ._model import Model


class Part(NamedTuple):
    """A part of an answer: `text` of the content, of the thoughts, or of a call's arguments, or a function's name. `call` is the number of
    the call, from 0."""

    kind: PartKind
    call: int
    text: str
    id: Optional[str]


class ToolCall(NamedTuple):
    """A tool call. `arguments` is None if a limit cut the call; `text` is the arguments as the model wrote them, in JSON."""

    name: str
    arguments: Optional[dict[str, Any]]
    text: str
    id: Optional[str]


def tool_calls(message: Mapping[str, Any]) -> list[ToolCall]:
    """Returns the calls of a message."""

    def call(fields: Mapping[str, Any]) -> ToolCall:
        function = fields["function"]
        text = function["arguments"]
        try:
            arguments = json.loads(text or "{}")
        except ValueError:
            arguments = None
        return ToolCall(function["name"], arguments if isinstance(arguments, dict) else None, text, fields.get("id"))

    return [call(fields) for fields in message.get("tool_calls", [])]


class AnswerParser(Closing):
    """Splits the text of an answer of a model into parts. `tools` are the schemas of `Session.tools`, and the end of `prompt` says whether
    the answer begins inside a thought."""

    def __init__(self, model: Model, tools: Iterable[Mapping[str, Any]] = (), prompt: str = "") -> None:
        schemas, text = json.dumps(list(tools)).encode(), prompt.encode()
        sized = (schemas, len(schemas), text, len(text))
        self._handle = make(library.wl_answer_parser_free, library.wl_answer_parser_new, model._value, *sized)

    @classmethod
    def _made(cls, function: Any, *arguments: Any) -> AnswerParser:
        parser = cls.__new__(cls)
        parser._handle = make(library.wl_answer_parser_free, function, *arguments)
        return parser

    def _push(self, text: bytes) -> None:
        check(library.wl_answer_push(self._value, text, len(text)))

    def _finish(self, cut: bool) -> None:
        check(library.wl_answer_finish(self._value, bool(cut)))

    def push(self, text: str | bytes) -> list[Part]:
        """Adds a piece of the answer, which may begin or end inside a character, and returns the parts that it completes."""
        self._push(text.encode() if isinstance(text, str) else text)
        return self.parts()

    def finish(self, cut: bool = False) -> list[Part]:
        """Ends the answer and returns the remaining parts; `cut` if a limit ended it."""
        self._finish(cut)
        return self.parts()

    def parts(self) -> list[Part]:
        """Returns the parts that have not been returned yet."""
        part, parts = structs.AnswerPart(), []
        while True:
            check(library.wl_answer_next(self._value, byref(part)))
            if not part.kind:
                return parts
            parts.append(Part(PartKind(part.kind), part.call, structs.text(part.text, part.length), part.id.decode() if part.id else None))

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far as a message: "role", "content", and "reasoning_content" and "tool_calls" if there are any."""
        text, length = c_char_p(), c_size_t()
        check(library.wl_answer_json(self._value, byref(text), byref(length)))
        message: dict[str, Any] = json.loads(text.value or b"{}")
        return message
