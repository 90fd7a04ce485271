"""Loads the C library with ctypes: its location, its functions, and its handles."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, TypeVar

from ._errors import error
from ._structs import (
    PROGRESS,
    AnswerPart,
    EmbedParams,
    GenerateParams,
    GenerateResult,
    ModelInfo,
    ModelParams,
    Plan,
    RenderParams,
    SamplerParams,
    SessionInfo,
    SessionParams,
    StoreParams,
    StoreStats,
    Struct,
)

Self = TypeVar("Self", bound="Closing")

ABI_VERSION = 1
ROOM = 4


# A handle is a number in Python; strings come back as pointers, since most are not C strings.
HANDLE, PATH, TEXT, POINTER_OUT, SIZE_OUT = c_void_p, c_char_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t)

FUNCTIONS = {
    "wl_model_params_init": [POINTER(ModelParams), c_size_t],
    "wl_model_open": [PATH, POINTER(ModelParams), POINTER_OUT],
    "wl_model_from_memory": [c_char_p, c_size_t, POINTER(ModelParams), POINTER_OUT],
    "wl_model_builtin": [POINTER(ModelParams), POINTER_OUT],
    "wl_model_free": [HANDLE],
    "wl_model_get_info": [HANDLE, POINTER(ModelInfo)],
    "wl_model_name": [HANDLE, POINTER(c_char_p)],
    "wl_model_device": [HANDLE, POINTER(c_char_p)],
    "wl_model_spec_json": [HANDLE, POINTER(c_char_p)],
    "wl_model_notes": [HANDLE, POINTER(c_char_p)],
    "wl_model_get_sampler": [HANDLE, POINTER(SamplerParams)],
    "wl_plan_file": [PATH, POINTER(SessionParams), POINTER(Plan)],
    "wl_plan_model": [HANDLE, POINTER(SessionParams), POINTER(Plan)],
    "wl_tokenize": [HANDLE, TEXT, c_size_t, c_uint32, POINTER(c_uint32), c_size_t, SIZE_OUT],
    "wl_detokenize": [HANDLE, POINTER(c_uint32), c_size_t, c_char_p, c_size_t, SIZE_OUT],
    "wl_sampler_params_init": [POINTER(SamplerParams), c_size_t],
    "wl_session_params_init": [POINTER(SessionParams), c_size_t],
    "wl_generate_params_init": [POINTER(GenerateParams), c_size_t],
    "wl_session_new": [HANDLE, POINTER(SessionParams), POINTER_OUT],
    "wl_session_free": [HANDLE],
    "wl_session_fork": [HANDLE, POINTER_OUT],
    "wl_session_reset": [HANDLE],
    "wl_session_get_info": [HANDLE, POINTER(SessionInfo)],
    "wl_session_set_sampler": [HANDLE, POINTER(SamplerParams)],
    "wl_session_get_sampler": [HANDLE, POINTER(SamplerParams)],
    "wl_session_constrain": [HANDLE, c_uint32, TEXT, c_size_t],
    "wl_session_set_progress": [HANDLE, PROGRESS, c_void_p],
    "wl_session_cancel": [HANDLE],
    "wl_session_clear_cancel": [HANDLE],
    "wl_session_mark": [HANDLE],
    "wl_session_rewind": [HANDLE, c_uint64],
    "wl_feed": [HANDLE, POINTER(c_uint32), c_size_t, SIZE_OUT],
    "wl_embed_params_init": [POINTER(EmbedParams), c_size_t],
    "wl_embed_tokenize": [HANDLE, TEXT, c_size_t, c_char_p, POINTER(c_uint32), c_size_t, SIZE_OUT],
    "wl_embed": [HANDLE, POINTER(c_uint32), c_size_t, POINTER(EmbedParams), POINTER(c_float), c_size_t, SIZE_OUT],
    "wl_sample": [HANDLE, POINTER(c_uint32)],
    "wl_step": [HANDLE, POINTER(c_uint32)],
    "wl_logits": [HANDLE, POINTER_OUT, SIZE_OUT],
    "wl_generate_start": [HANDLE, POINTER(GenerateParams)],
    "wl_generate_next": [HANDLE, POINTER_OUT, SIZE_OUT, POINTER(GenerateResult)],
    "wl_batch_new": [HANDLE, c_size_t, POINTER_OUT],
    "wl_batch_free": [HANDLE],
    "wl_batch_step": [HANDLE, POINTER(c_void_p), c_size_t, POINTER(c_uint32)],
    "wl_batch_feed": [HANDLE, POINTER(c_void_p), POINTER(c_uint32), c_size_t],
    "wl_batch_generate": [HANDLE, POINTER(c_void_p), c_size_t, POINTER(c_void_p), SIZE_OUT],
    "wl_chat_system": [HANDLE, TEXT, c_size_t],
    "wl_chat_thinking": [HANDLE, c_int],
    "wl_chat_variable": [HANDLE, TEXT, TEXT],
    "wl_chat_tools": [HANDLE, TEXT, c_size_t],
    "wl_session_set_messages": [HANDLE, TEXT, c_size_t, SIZE_OUT, SIZE_OUT],
    "wl_session_read_history": [HANDLE, POINTER(c_uint32), c_size_t, SIZE_OUT],
    "wl_session_checkpoint": [HANDLE],
    "wl_store_params_init": [POINTER(StoreParams), c_size_t],
    "wl_store_new": [POINTER(StoreParams), POINTER_OUT],
    "wl_store_free": [HANDLE],
    "wl_store_get_stats": [HANDLE, POINTER(StoreStats)],
    "wl_store_clear": [HANDLE],
    "wl_store_flush": [HANDLE],
    "wl_chat_start": [HANDLE, TEXT, c_size_t, POINTER(GenerateParams)],
    "wl_chat_undo": [HANDLE],
    "wl_chat_messages_json": [HANDLE, c_char_p, c_size_t, SIZE_OUT],
    "wl_chat_results": [HANDLE, POINTER(c_char_p), c_size_t],
    "wl_chat_parser": [HANDLE, POINTER_OUT],
    "wl_answer_parser_new": [HANDLE, TEXT, c_size_t, TEXT, c_size_t, POINTER_OUT],
    "wl_answer_parser_free": [HANDLE],
    "wl_answer_push": [HANDLE, TEXT, c_size_t],
    "wl_answer_finish": [HANDLE, c_uint32],
    "wl_answer_next": [HANDLE, POINTER(AnswerPart)],
    "wl_answer_json": [HANDLE, POINTER(c_char_p), SIZE_OUT],
    "wl_render_params_init": [POINTER(RenderParams), c_size_t],
    "wl_chat_render": [HANDLE, POINTER(RenderParams), c_char_p, c_size_t, SIZE_OUT],
    "wl_state_size": [HANDLE, SIZE_OUT],
    "wl_state_write": [HANDLE, c_char_p, c_size_t, SIZE_OUT],
    "wl_state_read": [HANDLE, c_char_p, c_size_t],
    "wl_state_save": [HANDLE, PATH],
    "wl_state_load": [HANDLE, PATH],
}


def _find() -> ctypes.CDLL:
    here = Path(__file__).parent
    beside = [here / name for name in ("libwaterline.so", "libwaterline.dylib", "waterline.dll")]
    places = [os.environ.get("WATERLINE_LIBRARY"), *(str(path) for path in beside if path.exists())]
    place = next(filter(None, places), None) or ctypes.util.find_library("waterline")
    if not place:
        raise ImportError(
            "libwaterline was not found; install it with ffi/install, or set WATERLINE_LIBRARY to its path"
        )
    return ctypes.CDLL(place)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name in ("wl_last_error", "wl_version"):
        getattr(library, name).restype = c_char_p
    library.wl_status_name.argtypes, library.wl_status_name.restype = [c_int], c_char_p
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    library.wl_last_os_error.restype = c_int
    found = library.wl_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"libwaterline has ABI {found}, this package needs {ABI_VERSION}")
    return library


library = _declare(_find())


def check(status: int) -> None:
    """Raises the exception for a status other than WL_OK."""
    if status:
        sentence = library.wl_last_error().decode("utf-8", "replace")
        raise error(library.wl_status_name(status).decode(), sentence, library.wl_last_os_error())


def filled(params: Struct, init: Callable[..., int]) -> Struct:
    """Fills the parameters with the library's defaults."""
    check(init(ctypes.byref(params), ctypes.sizeof(params)))
    return params


class Handle:
    """A handle that is freed when no call and no view of its memory uses it any more."""

    def __init__(self, value: int | None, free: Callable[[c_void_p], int]) -> None:
        self._as_parameter_, self._free = c_void_p(value), free

    def __del__(self) -> None:
        self._free(self._as_parameter_)


def make(free: Callable[[c_void_p], int], function: Callable[..., int], *arguments: Any) -> Handle:
    """Calls a function that stores a new handle at its last argument."""
    value = c_void_p()
    check(function(*arguments, ctypes.byref(value)))
    return Handle(value.value, free)


class Closing:
    """An object with a handle, closed at the end of a `with`."""

    _handle: Handle | None = None

    def close(self) -> None:
        """Releases the handle, which is freed when nothing uses its memory any more."""
        self._handle = None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _value(self) -> Handle:
        """The handle. Hold it while reading memory that it owns, because another thread may close this object."""
        handle = self._handle
        if handle is None:
            raise ValueError(f"this {type(self).__name__.lower()} is closed")
        return handle
