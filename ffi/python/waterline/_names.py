"""Constants of the library that are printed as their names."""

from __future__ import annotations

import enum


class _Name(enum.IntEnum):
    __str__ = enum.Enum.__str__


class Device(_Name):
    """The device that a model computes on."""

    AUTO = 0
    CPU = 1
    CUDA = 2


class Cache(_Name):
    """The format in which attention stores keys and values."""

    F16 = 0
    F32 = 1


class OnFull(_Name):
    """The behavior when the context that attention looks back on is full."""

    STOP = 0
    SHIFT = 1
    COMPACT = 2


class Pooling(_Name):
    """How the final states of a text become its vector."""

    MODEL = 0
    MEAN = 1
    CLS = 2
    LAST = 3


class Finish(_Name):
    """Why a generation ended."""

    END = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    CALLER = 4


class PartKind(_Name):
    """The kind of a part of an answer."""

    CONTENT = 1
    REASONING = 2
    CALL_BEGINS = 3
    CALL_ID = 4
    CALL_ARGUMENTS = 5
    CALL_ENDS = 6
    CONTENT_WAS_REASONING = 7
