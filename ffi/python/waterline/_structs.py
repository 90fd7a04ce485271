"""The structs of the C library, and checks of their values."""

from __future__ import annotations

import ctypes
import operator
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, Iterable, Mapping, Sequence, SupportsIndex, TypeVar

Struct = TypeVar("Struct", bound="Tagged")


class Tagged(ctypes.Structure):
    """A struct that begins with its size."""

    size: int
    _fields_: ClassVar[Sequence[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.size = ctypes.sizeof(self)

    def as_dict(self) -> dict[str, Any]:
        def value(name: str, type_: type) -> Any:
            # A 32-bit 0.95 is 0.949999988079071 as a Python float.
            found = getattr(self, name)
            return float(f"{found:.7g}") if type_ is c_float else found

        return {name: value(name, type_) for name, type_ in self._fields_ if name not in ("size", "reserved")}

    def set(self: Struct, values: Mapping[str, Any]) -> Struct:
        """Sets fields by name; None keeps the default."""
        types = dict(self._fields_)
        for name, value in values.items():
            if value is None:
                continue
            if types[name] in (c_uint32, c_uint64, c_size_t):
                value = whole(name, value, types[name])
            setattr(self, name, value)
        return self


def whole(name: str, value: SupportsIndex, type_: Any) -> int:
    """Returns an integer in the range of its type; ctypes would truncate a larger one."""
    number, most = operator.index(value), 256 ** ctypes.sizeof(type_) - 1
    if not 0 <= number <= most:
        raise ValueError(f"{name}: found {number}, expected 0 to {most}")
    return number


def tokens(values: Iterable[SupportsIndex]) -> ctypes.Array[c_uint32]:
    """Returns an array of tokens."""
    numbers = [whole("token", value, c_uint32) for value in values]
    return (c_uint32 * len(numbers))(*numbers)


def c_string(name: str, text: bytes) -> bytes:
    """Checks that bytes hold no zero byte, at which C would cut them off."""
    if b"\0" in text:
        raise ValueError(f"{name}: found a zero byte in {text!r}, expected none")
    return text


def path(value: str | bytes | os.PathLike[Any]) -> bytes:
    """Returns a path for C."""
    return c_string("path", os.fsencode(value))


def text(pointer: int | None, length: int) -> str:
    """Returns the text of `length` bytes in the library's memory; "" for NULL."""
    return ctypes.string_at(pointer, length).decode() if pointer else ""


class ModelParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("device", c_uint32), ("gpu", c_uint32), ("allow_unused", c_uint32),
        ("copy", c_uint32), ("mtp", c_uint32),
    ]


class ModelInfo(Tagged):
    _fields_ = [
        ("size", c_uint32), ("vocab", c_uint32), ("parameters", c_uint64), ("weight_bytes", c_uint64),
        ("bos", c_int64), ("eos", c_int64), ("has_tokenizer", c_uint32), ("has_chat_template", c_uint32),
        ("trained_context", c_uint64), ("ends", POINTER(c_uint32)), ("end_count", c_size_t),
    ]


class LogitBias(ctypes.Structure):
    _fields_ = [("token", c_uint32), ("bias", c_float)]


class SamplerParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("top_k", c_uint32), ("seed", c_uint64), ("temperature", c_float), ("top_p", c_float),
        ("min_p", c_float), ("repetition_penalty", c_float), ("frequency_penalty", c_float),
        ("presence_penalty", c_float), ("penalty_window", c_uint32), ("reserved", c_uint32),
        ("bias", POINTER(LogitBias)), ("bias_count", c_size_t),
    ]


class SessionParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("threads", c_uint32), ("context", c_size_t), ("history", c_size_t), ("chunk", c_size_t),
        ("marks", c_size_t), ("cache", c_uint32), ("on_full", c_uint32), ("sampler", POINTER(SamplerParams)),
        ("exact", c_uint32), ("keep", c_uint32), ("store", c_void_p), ("lookup", c_uint32), ("mtp", c_uint32),
    ]


class StoreParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("grid", c_uint32), ("bytes", c_uint64), ("directory", c_char_p), ("directory_bytes", c_uint64),
    ]


class StoreStats(Tagged):
    _fields_ = [
        ("size", c_uint32), ("reserved", c_uint32), ("checkpoints", c_uint64), ("bytes", c_uint64), ("files", c_uint64),
        ("file_bytes", c_uint64), ("evicted", c_uint64), ("reused_tokens", c_uint64), ("read_tokens", c_uint64),
    ]


class Plan(Tagged):
    _fields_ = [
        ("size", c_uint32), ("threads", c_uint32), ("weight_bytes", c_uint64), ("state_bytes", c_uint64),
        ("work_bytes", c_uint64),
    ]


class SessionInfo(Tagged):
    _fields_ = [
        ("size", c_uint32), ("threads", c_uint32), ("position", c_uint64), ("state_bytes", c_uint64),
        ("work_bytes", c_uint64), ("drafted", c_uint64), ("accepted", c_uint64),
    ]


TOKEN = ctypes.CFUNCTYPE(c_int, c_uint32, c_float, c_void_p, c_size_t, c_void_p)
LOGITS = ctypes.CFUNCTYPE(None, c_void_p, c_size_t, c_void_p)


class EmbedParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("pooling", c_uint32), ("normalize", c_int), ("reserved", c_uint32), ("dimensions", c_size_t),
    ]


class GenerateParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("ignore_end", c_uint32), ("max_tokens", c_size_t), ("stop", POINTER(c_char_p)),
        ("stop_count", c_size_t), ("stop_tokens", POINTER(c_uint32)), ("stop_token_count", c_size_t),
        ("logprobs", c_uint32), ("reserved", c_uint32), ("on_token", TOKEN), ("on_logits", LOGITS), ("user", c_void_p),
        ("thought_tokens", c_int64),
    ]


class GenerateResult(Tagged):
    _fields_ = [
        ("size", c_uint32), ("finish", c_uint32), ("tokens", c_uint64), ("prompt_tokens", c_uint64),
        ("prompt_seconds", c_double), ("seconds", c_double), ("reused_tokens", c_uint64),
    ]


class RenderParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("add_generation_prompt", c_uint32), ("messages", c_char_p), ("tools", c_char_p),
        ("variables", c_char_p),
    ]


class AnswerPart(Tagged):
    _fields_ = [
        ("size", c_uint32), ("kind", c_uint32), ("call", c_size_t), ("text", c_void_p), ("length", c_size_t), ("id", c_char_p),
    ]


PROGRESS = ctypes.CFUNCTYPE(c_int, c_uint64, c_uint64, c_void_p)
