"""waterline: recurrent and hybrid language models in fixed memory.

>>> with Model.builtin() as model, model.session(temperature=0) as session:
...     print("".join(session.say("Tell me a story.")))
"""

from __future__ import annotations

from ._answer import AnswerParser, Part, ToolCall
from ._batch import Batch
from ._errors import Error, FileError
from ._generation import AsyncGeneration, Generation
from ._hooks import Token
from ._library import library
from ._model import Model, plan
from ._names import Cache, Device, Finish, OnFull, PartKind, Pooling
from ._session import Session
from ._store import HistoryRead, Store

__all__ = [
    "AnswerParser",
    "AsyncGeneration",
    "Batch",
    "Cache",
    "Device",
    "Error",
    "FileError",
    "Finish",
    "Generation",
    "HistoryRead",
    "Model",
    "OnFull",
    "Part",
    "PartKind",
    "Pooling",
    "Session",
    "Store",
    "Token",
    "ToolCall",
    "plan",
    "version",
]


def version() -> str:
    """The library's version."""
    return library.wl_version().decode()  # type: ignore[no-any-return]
