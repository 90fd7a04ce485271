"""The C library as ctypes sees it: structs, functions, and statuses that become exceptions."""

import ctypes
import ctypes.util
import operator
import os
import re
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

ABI_VERSION = 1
ROOM, CANCELLED = 4, 12


class Error(Exception):
    """What a call that failed raises: the library's sentence. `status` is the name of the status."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


# What the library's sentences call by its name in C, and its name here.
_NAMES = [
    (r"wl_\w+_params\.bias\b", "logit_bias"),
    (r"wl_\w+_params\.(\w+)", r"\1"),
    (r"WL_DEVICE_(\w+)", r"Device.\1"),
    (r"wl_model_open", "Model"),
    (r"wl_session_reset", "reset"),
    (r"wl_chat_(\w+)", r"\1"),
]


def in_python(sentence):
    """A sentence of the library with the names of this package."""
    for name, here in _NAMES:
        sentence = re.sub(name, here, sentence)
    return sentence


class Tagged(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self):
        super().__init__()
        self.size = ctypes.sizeof(self)

    def as_dict(self):
        def value(name, type_):
            # A 32-bit 0.95 is 0.949999988079071 as a float of Python.
            found = getattr(self, name)
            return float(f"{found:.7g}") if type_ is c_float else found

        return {name: value(name, type_) for name, type_ in self._fields_ if name not in ("size", "reserved")}

    def set(self, values):
        """Sets fields by name; None leaves the default."""
        types = dict(self._fields_)
        for name, value in values.items():
            if value is None:
                continue
            if types[name] in (c_uint32, c_uint64, c_size_t):
                value = whole(name, value, types[name])
            setattr(self, name, value)
        return self


def whole(name, value, type_):
    """A whole number in the range of its type: ctypes would cut one that is too large."""
    value, most = operator.index(value), 256 ** ctypes.sizeof(type_) - 1
    if not 0 <= value <= most:
        raise ValueError(f"{name}: found {value}, expected 0 to {most}")
    return value


def tokens(values):
    """An array of tokens."""
    values = [whole("token", value, c_uint32) for value in values]
    return (c_uint32 * len(values))(*values)


def c_string(name, text):
    """Bytes that C reads up to a zero byte, so they hold none: C would take what comes before it for the whole."""
    if b"\0" in text:
        raise ValueError(f"{name}: found a zero byte in {text!r}, expected none")
    return text


def path(value):
    """A path for C."""
    return c_string("path", os.fsencode(value))


class ModelParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("device", c_uint32), ("gpu", c_uint32), ("allow_unused", c_uint32),
        ("copy", c_uint32), ("mtp", c_uint32),
    ]


class ModelInfo(Tagged):
    _fields_ = [
        ("size", c_uint32), ("vocab", c_uint32), ("parameters", c_uint64), ("weight_bytes", c_uint64),
        ("bos", c_int64), ("eos", c_int64), ("has_tokenizer", c_uint32), ("has_chat_template", c_uint32),
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
        ("marks", c_size_t), ("cache", c_uint32), ("drop_oldest", c_uint32), ("sampler", POINTER(SamplerParams)),
        ("exact", c_uint32), ("reserved", c_uint32), ("store", c_void_p), ("lookup", c_uint32), ("mtp", c_uint32),
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


class GenerateParams(Tagged):
    _fields_ = [
        ("size", c_uint32), ("ignore_end", c_uint32), ("max_tokens", c_size_t), ("stop", POINTER(c_char_p)),
        ("stop_count", c_size_t), ("stop_tokens", POINTER(c_uint32)), ("stop_token_count", c_size_t),
        ("logprobs", c_uint32), ("reserved", c_uint32), ("on_token", TOKEN), ("on_logits", LOGITS), ("user", c_void_p),
    ]


class GenerateResult(Tagged):
    _fields_ = [
        ("size", c_uint32), ("finish", c_uint32), ("tokens", c_uint64), ("prompt_tokens", c_uint64),
        ("prompt_seconds", c_double), ("seconds", c_double), ("reused_tokens", c_uint64),
    ]


PROGRESS = ctypes.CFUNCTYPE(c_int, c_uint64, c_uint64, c_void_p)


# A handle is a number to Python; the strings come back as pointers, since most are no C strings.
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
    "wl_session_set_progress": [HANDLE, PROGRESS, c_void_p],
    "wl_session_cancel": [HANDLE],
    "wl_session_clear_cancel": [HANDLE],
    "wl_session_constrain": [HANDLE, c_uint32, TEXT, c_size_t],
    "wl_session_mark": [HANDLE],
    "wl_session_rewind": [HANDLE, c_uint64],
    "wl_feed": [HANDLE, POINTER(c_uint32), c_size_t, SIZE_OUT],
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
    "wl_state_size": [HANDLE, SIZE_OUT],
    "wl_state_write": [HANDLE, c_char_p, c_size_t, SIZE_OUT],
    "wl_state_read": [HANDLE, c_char_p, c_size_t],
    "wl_state_save": [HANDLE, PATH],
    "wl_state_load": [HANDLE, PATH],
}


def _find():
    here = Path(__file__).parent
    beside = [here / name for name in ("libwaterline.so", "libwaterline.dylib", "waterline.dll")]
    places = [os.environ.get("WATERLINE_LIBRARY"), *(str(path) for path in beside if path.exists())]
    place = next(filter(None, places), None) or ctypes.util.find_library("waterline")
    if not place:
        raise ImportError(
            "libwaterline was not found; install it with ffi/install, or set WATERLINE_LIBRARY to its path"
        )
    return ctypes.CDLL(place)


def _declare(library):
    for name in ("wl_last_error", "wl_version"):
        getattr(library, name).restype = c_char_p
    library.wl_status_name.argtypes, library.wl_status_name.restype = [c_int], c_char_p
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    found = library.wl_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"libwaterline has ABI {found}, this package needs {ABI_VERSION}")
    return library


library = _declare(_find())


def check(status):
    """Raises what a status other than WL_OK means."""
    if status:
        sentence = library.wl_last_error().decode("utf-8", "replace")
        raise Error(library.wl_status_name(status).decode(), in_python(sentence))


def filled(params, init):
    """The parameters with the library's defaults."""
    check(init(ctypes.byref(params), ctypes.sizeof(params)))
    return params


class Handle:
    """A handle that is freed when nothing uses it any more: a call that it is passed to, or a view of its memory."""

    def __init__(self, value, free):
        self._as_parameter_, self._free = c_void_p(value), free

    def __del__(self):
        self._free(self._as_parameter_)


def make(free, function, *arguments):
    """Calls a function that makes something at its last argument."""
    value = c_void_p()
    check(function(*arguments, ctypes.byref(value)))
    return Handle(value.value, free)


class Closing:
    """Something with a handle, closed at the end of a `with`."""

    _handle = None

    def close(self):
        """Gives the handle up. It is freed when nothing uses its memory any more."""
        self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def _value(self):
        """The handle. Who reads what it points to after a call holds it: another thread may close this meanwhile."""
        handle = self._handle
        if handle is None:
            raise ValueError(f"this {type(self).__name__.lower()} is closed")
        return handle
