"""Converts statuses of the library to exceptions."""

from __future__ import annotations

import re


class Error(Exception):
    """Raised when a call fails, with the library's sentence. `status` is the name of the status."""

    status: str

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self._sentence = sentence

    def __str__(self) -> str:
        return self._sentence


class FileError(Error, OSError):
    """The system refused a file operation; `errno` is its reason."""

    def __init__(self, status: str, sentence: str, errno: int | None) -> None:
        super().__init__(status, sentence)
        self.errno = errno


class MissingFileError(FileError, FileNotFoundError):
    """The file does not exist: a FileNotFoundError."""


class ForbiddenFileError(FileError, PermissionError):
    """The system denied access: a PermissionError."""


_FILE_ERRORS = {2: MissingFileError, 13: ForbiddenFileError}

# Names in the library's sentences, with their Python equivalents.
_NAMES = [
    (r"wl_\w+_params\.bias\b", "logit_bias"),
    (r"wl_\w+_params\.(\w+)", r"\1"),
    (r"WL_DEVICE_(\w+)", r"Device.\1"),
    (r"wl_model_open", "Model"),
    (r"wl_session_reset", "reset"),
    (r"wl_chat_(\w+)", r"\1"),
]


def error(status: str, sentence: str, errno: int) -> Error:
    """Returns the exception for a status of the library; `errno` is the system's reason, or 0."""
    for name, here in _NAMES:
        sentence = re.sub(name, here, sentence)
    if status != "WL_ERROR_IO":
        return Error(status, sentence)
    return _FILE_ERRORS.get(errno, FileError)(status, sentence, errno or None)
