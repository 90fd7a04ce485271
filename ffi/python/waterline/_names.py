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


class Finish(_Name):
    """Why a generation ended."""

    END = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    CALLER = 4
