"""Numbers of the library that are printed as their names."""

from __future__ import annotations

import enum


class _Name(enum.IntEnum):
    __str__ = enum.Enum.__str__


class Device(_Name):
    """Where a model computes."""

    AUTO = 0
    CPU = 1
    CUDA = 2


class Cache(_Name):
    """How keys and values of attention are stored."""

    F16 = 0
    F32 = 1


class OnFull(_Name):
    """What happens when the context is full of tokens that attention looks back on."""

    STOP = 0
    SHIFT = 1
    COMPACT = 2


class Finish(_Name):
    """Why a generation ended."""

    END = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    CALLER = 4
