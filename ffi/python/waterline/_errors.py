"""Statuses of the library as exceptions."""

from __future__ import annotations

import re


class Error(Exception):
    """What a call that failed raises: the library's sentence. `status` is the name of the status."""

    status: str

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self._sentence = sentence

    def __str__(self) -> str:
        return self._sentence


class FileError(Error, OSError):
    """The system refused a file operation; `errno` says why."""

    def __init__(self, status: str, sentence: str, errno: int | None) -> None:
        super().__init__(status, sentence)
        self.errno = errno


class MissingFileError(FileError, FileNotFoundError):
    """There is no such file: a FileNotFoundError."""


class ForbiddenFileError(FileError, PermissionError):
    """The system allows no access: a PermissionError."""


_FILE_ERRORS = {2: MissingFileError, 13: ForbiddenFileError}

# What the library's sentences call by its name in C, and its name here.
_NAMES = [
    (r"wl_\w+_params\.bias\b", "logit_bias"),
    (r"wl_\w+_params\.(\w+)", r"\1"),
    (r"WL_DEVICE_(\w+)", r"Device.\1"),
    (r"wl_model_open", "Model"),
    (r"wl_session_reset", "reset"),
    (r"wl_chat_(\w+)", r"\1"),
]


def error(status: str, sentence: str, errno: int) -> Error:
    """The exception for a status of the library; `errno` is the system's reason, or 0."""
    for name, here in _NAMES:
        sentence = re.sub(name, here, sentence)
    if status != "WL_ERROR_IO":
        return Error(status, sentence)
    return _FILE_ERRORS.get(errno, FileError)(status, sentence, errno or None)
